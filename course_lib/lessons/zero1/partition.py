"""Give whole parameters to ranks."""

import heapq
import random
from numbers import Integral
from typing import Any

import torch

from ...exercises import Case, Exercise, Solution


def draw(rng: random.Random, number: int) -> Case:
    world_size, count = ((2, 5), (4, 3), (3, 7), (1, 3), (4, 9), (3, 8))[number % 6]
    numels = [rng.randint(20, 90) if place % 2 == 0 else rng.randint(2, 9) for place in range(count)]
    numels[count // 2] = rng.randint(100, 120)  # one that is larger than all before it
    what = f"parameters of {', '.join(map(str, numels))} elements, on {world_size} rank{'s' * (world_size > 1)}"
    return Case(world_size=0, args=lambda rank: (list(numels), world_size), what=what)


LISTS = "lists with numbers of parameters"


def give_out(solution: Solution, numels: list[int], world_size: int) -> Any:
    """Return what does not depend on which of two equal ranks, or parameters, comes first."""
    sizes = list(numels)
    parts = solution(numels, world_size)
    if parts is None:
        return None
    kind = _kind(parts, len(sizes))
    if kind != LISTS:
        return {"what was returned": kind, "all numbers in the lists": None, "elements of a rank, the most first": None}
    return {
        "what was returned": f"{len(parts)} {kind}",
        "all numbers in the lists": sorted(int(number) for part in parts for number in part),
        "elements of a rank, the most first": sorted((sum(sizes[n] for n in part) for part in parts), reverse=True),
    }


def _kind(parts: Any, count: int) -> str:
    """Return in words what a solution returned."""
    if not isinstance(parts, list):
        return f"a {type(parts).__name__}"
    for part in parts:
        if not isinstance(part, list):
            return f"a list of {type(part).__name__}"
        for number in part:
            if not isinstance(number, Integral):  # NumPy's, too
                return f"lists of {type(number).__name__}"
            if number not in range(count):
                return f"lists with the number {number}, and the parameters are 0 to {count - 1}"
    return LISTS


exercise = Exercise("zero1.partition", title="Who owns what", draw=draw, trial=give_out, task="""
    Deal the parameters out to the ranks: the largest first, each to the rank that has the fewest elements so far.
    Return a list for each rank, with the numbers of its parameters. Every parameter has one owner. If there are more
    ranks than parameters, some lists are empty.""", hints="""
    You pack boxes of very different sizes into a few cars. Which box do you put in first, and into which car?

    A small parameter that is dealt out late can even out the ranks; a large one cannot. So the largest go first, and
    the rank with the fewest elements so far always takes the next.

    `sorted(range(len(numels)), key=lambda number: numels[number], reverse=True)`; a list of loads, and
    `loads.index(min(loads))`.

    ```python
    parts = [[] for _ in range(world_size)]
    loads = [0] * world_size
    for number in sorted(..., reverse=True):
        owner = ...
        parts[owner].append(number)
        loads[owner] += ...
    ```
    """, explanation="""
    This is the sorted-greedy partition, which torch's `ZeroRedundancyOptimizer` uses as well. Its fullest rank has at
    most a third more elements than in the best partition (Graham 1969). Every rank computes the same parts by itself,
    so the ranks send nothing to agree on them. The partition cannot cut a parameter: a parameter that is larger than a
    fair share stays on one rank.""")


@exercise
def partition(numels: list[int], world_size: int) -> list[list[int]]:
    """Return, for each rank, the numbers of the parameters that it owns.

    Parameter `number` has `numels[number]` elements. Deal the parameters out,
    the largest first, each to the rank that has the fewest elements so far.
    """
    parts: list[list[int]] = [[] for _ in range(world_size)]
    loads = [0] * world_size
    for number in sorted(range(len(numels)), key=lambda number: numels[number], reverse=True):
        owner = loads.index(min(loads))
        parts[owner].append(number)
        loads[owner] += numels[number]
    return parts


IN_ORDER = "sorted(range(len(numels)), key=lambda number: numels[number], reverse=True)"


@exercise.mistake
def drops_the_remainder(numels: list[int], world_size: int) -> list[list[int]]:
    """Each rank gets `len(numels) // world_size` parameters, and the parameters left over have no owner. Training would
    never update them, and you would get no error: the loss falls all the same.
    Next: go through the parameters, not through the ranks, and find an owner for each."""
    count = len(numels) // world_size
    return [list(range(rank * count, (rank + 1) * count)) for rank in range(world_size)]


@exercise.mistake
def tensors_as_numbers(numels: list[int], world_size: int) -> list[list[torch.Tensor]]:
    """Your lists contain tensors, such as those that you get from `torch.argsort`, where the caller needs numbers. Two
    tensors with the same number are two different keys of a dict, for example.
    Next: call `int` on each of them, or `.tolist()` on the tensor that contains them all."""
    return [[torch.tensor(number) for number in part] for part in partition(numels, world_size)]


exercise.edit("equal-counts", {IN_ORDER: "range(len(numels))",
    "loads.index(min(loads))": "number // -(-len(numels) // world_size)"}, """
    Your ranks get equal numbers of parameters, but not of elements. A bias then counts as much as an embedding.
    Next: compare the ranks by elements: keep a sum for each rank.""")

exercise.edit("round-robin", {IN_ORDER: "range(len(numels))", "loads.index(min(loads))": "number % world_size"}, """
    The ranks take turns, whatever the size of a parameter. Weights and biases alternate in a model, so one of two ranks
    would get all the weights. Next: choose the rank that has the fewest elements so far.""")

exercise.edit("largest-first-round-robin", {"loads.index(min(loads))": "sum(map(len, parts)) % world_size"}, """
    Your ranks own as many elements as if they took turns on the sorted parameters. In every round, the same rank gets
    the larger parameter. Beginning with the smallest does the same.
    Next: begin with the largest, and choose the rank that has the fewest elements so far.""")

exercise.edit("not-sorted", {IN_ORDER: "range(len(numels))"}, """
    You go through the parameters in the order of the model. A large parameter that comes late is added to a rank that
    is nearly full. Next: go through the numbers sorted by size, the largest first.""")

exercise.edit("places-when-sorted", {IN_ORDER: "range(len(numels))",
    "loads = ": "numels = sorted(numels, reverse=True)\nloads = "}, """
    Your numbers are places in the sorted list. The caller needs the parameters' numbers in the model.
    Next: sort the numbers of the parameters by size, not the sizes themselves.""")

exercise.edit("everything-everywhere", {"[[] for _ in range(world_size)]": "[[]] * world_size"}, """
    Every rank owns every parameter, so nothing is sharded. `[[]] * world_size`, for example, contains one and the same
    list world size times.
    Next: make a separate list for each rank, and append each number to one of them.""")

exercise.edit("leaves-ranks-out", {"return parts": "return [part for part in parts if part]"}, """
    If a rank owns nothing, its list is missing. Then `parts[rank]` fails, or belongs to a different rank.
    Next: return world size lists, some of them empty.""")

exercise.edit("one-rank-takes-all", {"loads[owner] += numels[number]": "pass"}, """
    One rank owns everything. Either your sums of elements stay 0, so that the same rank looks emptiest each time, or
    you choose the rank that has the most. Next: print the sums, and the rank that you choose, for each parameter.""")

exercise.edit("number-by-size", {"append(number)": "append(numels.index(numels[number]))"}, """
    You look a parameter up by its size, and `numels.index` returns the first of that size. Of parameters of equal size
    one is dealt out several times, and the others never. Next: sort the numbers of the parameters, not their sizes.""")


@exercise.variant
def with_a_heap(numels: list[int], world_size: int) -> list[list[int]]:
    heap: list[tuple[int, int, list[int]]] = [(0, rank, []) for rank in range(world_size)]
    for numel, number in sorted(((numel, number) for number, numel in enumerate(numels)), reverse=True):
        load, rank, part = heap[0]
        part.append(number)
        heapq.heapreplace(heap, (load + numel, rank, part))
    return [part for _, _, part in sorted(heap, key=lambda entry: entry[1])]


exercise.variant_edit("lowest-load", {"loads.index(min(loads))": "min(range(world_size), key=loads.__getitem__)"})
