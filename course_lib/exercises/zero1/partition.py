"""Deal whole parameters out to ranks."""

from __future__ import annotations

import heapq
import random
from itertools import islice
from typing import Any

from ..declare import Case, Exercise, Mistake, Solution
from . import stubs


def partition(numels: list[int], world_size: int) -> list[list[int]]:
    """Return, for each rank, the numbers of the parameters that it owns."""
    parts: list[list[int]] = [[] for _ in range(world_size)]
    loads = [0] * world_size
    for number in sorted(range(len(numels)), key=lambda number: numels[number], reverse=True):
        owner = loads.index(min(loads))
        parts[owner].append(number)
        loads[owner] += numels[number]
    return parts


def drops_the_remainder(numels: list[int], world_size: int) -> list[list[int]]:
    count = len(numels) // world_size
    return [list(range(rank * count, (rank + 1) * count)) for rank in range(world_size)]


def remainder_to_the_last(numels: list[int], world_size: int) -> list[list[int]]:
    parts, count = drops_the_remainder(numels, world_size), len(numels) // world_size
    parts[-1] = list(range((world_size - 1) * count, len(numels)))
    return parts


def equal_counts(numels: list[int], world_size: int) -> list[list[int]]:
    count = -(-len(numels) // world_size)
    numbers = list(range(len(numels)))
    return [numbers[rank * count : (rank + 1) * count] for rank in range(world_size)]


def runs_of_a_count(numels: list[int], world_size: int) -> list[list[int]]:
    count, left_over = divmod(len(numels), world_size)
    numbers = iter(range(len(numels)))
    return [list(islice(numbers, count + (rank < left_over))) for rank in range(world_size)]


def past_the_end(numels: list[int], world_size: int) -> list[list[int]]:
    count = -(-len(numels) // world_size)
    return [list(range(rank * count, (rank + 1) * count)) for rank in range(world_size)]


def all_on_one_rank(numels: list[int], world_size: int) -> list[list[int]]:
    parts: list[list[int]] = [[] for _ in range(world_size)]
    parts[0] = sorted(range(len(numels)), key=lambda number: -numels[number])
    return parts


def round_robin(numels: list[int], world_size: int) -> list[list[int]]:
    return [list(range(len(numels)))[rank::world_size] for rank in range(world_size)]


def largest_first_round_robin(numels: list[int], world_size: int) -> list[list[int]]:
    order = sorted(range(len(numels)), key=lambda number: -numels[number])
    return [order[rank::world_size] for rank in range(world_size)]


def not_sorted(numels: list[int], world_size: int) -> list[list[int]]:
    parts: list[list[int]] = [[] for _ in range(world_size)]
    for number in range(len(numels)):
        min(parts, key=lambda part: sum(numels[other] for other in part)).append(number)
    return parts


def places_when_sorted(numels: list[int], world_size: int) -> list[list[int]]:
    return partition(sorted(numels, reverse=True), world_size)


def sizes_for_numbers(numels: list[int], world_size: int) -> list[list[int]]:
    return [[numels[number] for number in part] for part in partition(numels, world_size)]


def everything_everywhere(numels: list[int], world_size: int) -> list[list[int]]:
    parts: list[list[int]] = [[]] * world_size
    for number in range(len(numels)):
        parts[number % world_size].append(number)
    return parts


def owners(numels: list[int], world_size: int) -> list[int]:
    parts = partition(numels, world_size)
    return [next(rank for rank, part in enumerate(parts) if number in part) for number in range(len(numels))]


def leaves_ranks_out(numels: list[int], world_size: int) -> list[list[int]]:
    return [part for part in partition(numels, world_size) if part]


def sorts_the_argument(numels: list[int], world_size: int) -> list[list[int]]:
    numels.sort(reverse=True)
    return partition(numels, world_size)


def cut_by_elements(numels: list[int], world_size: int) -> list[list[int]]:
    parts: list[list[int]] = [[] for _ in range(world_size)]
    before = 0
    for number, numel in enumerate(numels):
        parts[before * world_size // sum(numels)].append(number)
        before += numel
    return parts


def with_a_heap(numels: list[int], world_size: int) -> list[list[int]]:
    heap: list[tuple[int, int, list[int]]] = [(0, rank, []) for rank in range(world_size)]
    for numel, number in sorted(((numel, number) for number, numel in enumerate(numels)), reverse=True):
        load, rank, part = heap[0]
        part.append(number)
        heapq.heapreplace(heap, (load + numel, rank, part))
    return [part for _, _, part in sorted(heap, key=lambda entry: entry[1])]


def last_of_the_equal(numels: list[int], world_size: int) -> list[list[int]]:
    parts: dict[int, list[int]] = {rank: [] for rank in range(world_size)}
    left = dict(enumerate(numels))
    while left:
        number = max(left, key=lambda number: (left[number], number))
        rank = min(parts, key=lambda rank: (sum(numels[other] for other in parts[rank]), -rank))
        parts[rank].append(number)
        del left[number]
    return list(parts.values())


def draw(rng: random.Random, number: int) -> Case:
    world_size, count = ((2, 5), (4, 3), (3, 7), (1, 3), (4, 9), (3, 8))[number % 6]
    numels = [rng.randint(20, 90) if place % 2 == 0 else rng.randint(2, 9) for place in range(count)]
    numels[count // 2] = rng.randint(100, 120)  # one that is larger than all before it
    about = f"parameters of {', '.join(map(str, numels))} elements, on {world_size} rank{'s' * (world_size > 1)}"
    return Case(world_size=0, args=lambda rank: (list(numels), world_size), about=about)


def dealt_out(solution: Solution, numels: list[int], world_size: int) -> Any:
    """What does not depend on which of two equal ranks, or parameters, is taken first."""
    sizes = list(numels)
    parts = solution(numels, world_size)
    if parts is None:
        return None
    what = _what(parts, len(sizes))
    if what != _LISTS:
        return {"what was returned": what, "all numbers in the lists": None, "elements of a rank, the most first": None}
    return {
        "what was returned": f"{len(parts)} {what}",
        "all numbers in the lists": sorted(number for part in parts for number in part),
        "elements of a rank, the most first": sorted((sum(sizes[n] for n in part) for part in parts), reverse=True),
    }


_LISTS = "lists with numbers of parameters"


def _what(parts: Any, count: int) -> str:
    """What a solution returned, in words."""
    if not isinstance(parts, list):
        return f"a {type(parts).__name__}"
    for part in parts:
        if not isinstance(part, list):
            return f"a list of {type(part).__name__}"
        for number in part:
            if not isinstance(number, int):
                return f"lists of {type(number).__name__}"
            if number not in range(count):
                return f"lists with the number {number}, and the parameters are 0 to {count - 1}"
    return _LISTS


PARTITION = Exercise(
    name="zero1.partition",
    title="Who owns what",
    task="Deal the parameters out to the ranks: the largest first, each to the rank that has the fewest elements so "
    "far. Return a list for each rank, with the numbers of its parameters. Every parameter has one owner. Where there "
    "are more ranks than parameters, some lists are empty.",
    stub=stubs.partition,
    reference=partition,
    draw=draw,
    trial=dealt_out,
    variants={"with-a-heap": with_a_heap, "last-of-the-equal": last_of_the_equal},
    mistakes=[
        Mistake(
            id="drops-the-remainder",
            solution=drops_the_remainder,
            told="Each rank gets `len(numels) // world_size` parameters, and what is left over has no owner. These "
            "parameters would never be updated, and nothing would say so: the loss goes down all the same.",
            action="Go through the parameters and find an owner for each, rather than through the ranks.",
        ),
        Mistake(
            id="remainder-to-the-last",
            solution=remainder_to_the_last,
            told="The last rank gets what is left over on top of its own, and sizes do not count at all. The fullest "
            "rank decides what fits: its memory is the one that runs out.",
            action="Keep the number of elements that each rank has so far, and give the next parameter to the least.",
        ),
        Mistake(
            id="equal-counts",
            solution=equal_counts,
            told="Every rank gets about as many parameters, and not as many elements. A bias counts as much as an "
            "embedding then.",
            action="Compare the ranks by elements: keep the number that each has so far.",
        ),
        Mistake(
            id="runs-of-a-count",
            solution=runs_of_a_count,
            told="Nothing is lost: the ranks get runs of parameters, and their counts differ by one at most. But "
            "parameters differ in size, and a count does not see it.",
            action="Compare the ranks by elements: keep the number that each has so far.",
        ),
        Mistake(
            id="past-the-end",
            solution=past_the_end,
            told="`len(numels) / world_size` is rounded up, and the last ranks get numbers that no parameter has. "
            "Sizes do not count at all.",
            action="Go through the parameters and find an owner for each, rather than through the ranks.",
        ),
        Mistake(
            id="all-on-one-rank",
            solution=all_on_one_rank,
            told="One rank gets everything, and the others nothing: either what a rank has so far is never added up, "
            "or the fullest rank is chosen and not the emptiest.",
            action="After each parameter, add its elements to its owner's; then take `min`.",
        ),
        Mistake(
            id="round-robin",
            solution=round_robin,
            told="The parameters go round the ranks in turn, whatever their size. Weights and biases alternate in a "
            "model, so on two ranks one would get all the weights.",
            action="Choose the rank by what it has so far, and not by whose turn it is.",
        ),
        Mistake(
            id="largest-first-round-robin",
            solution=largest_first_round_robin,
            told="Sorted by size, the parameters go round the ranks in turn; or the smallest go first, which comes to "
            "the same. One rank gets the larger parameter in every round.",
            action="The largest first, and each to the rank that has the fewest elements so far.",
        ),
        Mistake(
            id="not-sorted",
            solution=not_sorted,
            told="You deal in the order of the model. A large parameter that comes late lands on top of a rank that "
            "is nearly full.",
            action="Go through the numbers sorted by size, the largest first.",
        ),
        Mistake(
            id="places-when-sorted",
            solution=places_when_sorted,
            told="Your numbers are places in the sorted list. The caller means the parameter that has this number in "
            "the model.",
            action="Sort the numbers by size, `sorted(range(len(numels)), key=...)`, and not the sizes themselves.",
        ),
        Mistake(
            id="sizes-for-numbers",
            solution=sizes_for_numbers,
            told="The lists hold sizes. Asked for are the numbers of the parameters, by which they can be found.",
            action="Append the number, and use its size to choose the rank.",
        ),
        Mistake(
            id="everything-everywhere",
            solution=everything_everywhere,
            told="Every rank owns every parameter: nothing is sharded. (`[[]] * world_size` is one and the same list, "
            "world size times.)",
            action="Make a list for each rank, `[[] for _ in range(world_size)]`, and append a number to one of them.",
        ),
        Mistake(
            id="owners",
            solution=owners,
            told="You return the owner of each parameter. That holds the same facts; asked for is a list for each "
            "rank.",
            action="Turn it round: append each number to the list of its owner.",
        ),
        Mistake(
            id="leaves-ranks-out",
            solution=leaves_ranks_out,
            told="Where a rank owns nothing, its list is missing, so that `parts[rank]` fails there or is another's.",
            action="Return world size lists, some of which may be empty.",
        ),
        Mistake(
            id="sorts-the-argument",
            solution=sorts_the_argument,
            told="You sort `numels` itself. The caller's list is in another order now, and your numbers are places in "
            "that.",
            action="Leave `numels` as it is: `sorted` makes a new list.",
        ),
        Mistake(
            id="cut-by-elements",
            solution=cut_by_elements,
            told="You cut the list where a share of the elements is full, so that neighbours stay together. Parameters "
            "are whole, so a large one near a cut makes its rank overflow.",
            action="Give up the order of the model: the largest first, each to the rank with the fewest elements.",
        ),
    ],
    hints=[
        "You pack boxes of very different sizes into a few cars. Which box do you put in first, and into which car?",
        "What is dealt out late can only even out what came early if it is small. So the largest go first; and the "
        "rank with the fewest elements so far always takes the next.",
        "`sorted(range(len(numels)), key=lambda number: numels[number], reverse=True)`; a list of loads, and "
        "`loads.index(min(loads))`.",
        "```python\nparts = [[] for _ in range(world_size)]\nloads = [0] * world_size\nfor number in sorted(..., "
        "reverse=True):\n    owner = ...\n    parts[owner].append(number)\n    loads[owner] += ...\n```",
    ],
    explanation="This is the sorted-greedy partition, which torch's `ZeroRedundancyOptimizer` uses as well. It is "
    "never more than a third above the best there is (Graham 1969), and every rank computes the same parts by itself: "
    "nothing has to be sent to agree. What it cannot do is to cut a parameter: one that is larger than a fair share "
    "stays on one rank.",
)
