"""The quiz of lesson 01."""

import random
from fractions import Fraction

from ...quizzes import Choice, Numeric, Question, Quiz


def ring_all_reduce_bytes(size_bytes: int, world_size: int) -> Fraction:
    """Return the bytes that each rank sends: reduce-scatter and all-gather, each (N − 1)/N of the tensor."""
    return 2 * Fraction(world_size - 1, world_size) * size_bytes


def ring_all_reduce_messages(world_size: int) -> int:
    """Return the number of messages that each rank sends, one for each step of each phase."""
    return 2 * (world_size - 1)


def padding(numel: int, world_size: int) -> int:
    """Return the number of elements missing to the next multiple of the world size."""
    return -numel % world_size


def sum_on_one_rank(rng: random.Random) -> Numeric:
    world_size = rng.choice([4, 5, 6, 8])
    asked = rng.randrange(1, world_size - 2)
    values = [10 * (rank + 1) for rank in range(world_size)]
    return Numeric(
        prompt=f"```python\nx = torch.tensor(10 * (dist.get_rank() + 1))\ndist.all_reduce(x)\n```\n\n"
        f"What is x on rank {asked} of {world_size} afterwards?",
        expected=sum(values),
        tolerance=0,
        right="The sum of all ranks' values, and the same on every rank.",
        wrong="Write down x on each rank before the call, then add them up.",
        mistakes=(
            (values[asked], f"This is rank {asked}'s value before the call. The call works in place."),
            (sum(range(world_size)) * 10, "Count from rank 0: its x is 10, not 0."),
            (sum(values[: asked + 1]), "This is the sum up to this rank. Add the values of all ranks."),
        ),
    )


def messages_sent(rng: random.Random) -> Numeric:
    world_size = rng.choice([4, 6, 8, 16, 64])
    return Numeric(
        prompt=f"How many messages does one rank send in your ring all-reduce on {world_size} ranks?",
        expected=ring_all_reduce_messages(world_size),
        tolerance=0,
        right="World size − 1 for the reduce-scatter, and as many for the all-gather.",
        wrong="There are two phases. How many messages does a rank send in each?",
        mistakes=(
            (world_size - 1, "This is one phase; an all-reduce has two."),
            (world_size, "There are two phases, and each ends after N − 1 steps."),
            (2 * world_size, "Each phase needs one step less: N − 1."),
            (2 * (world_size - 1) * world_size, "This is the number for all ranks together."),
        ),
    )


def bytes_sent(rng: random.Random) -> Numeric:
    world_size, megabytes = rng.choice([4, 8, 16]), rng.choice([40, 200, 400, 800])
    size_bytes = megabytes * 10**6
    return Numeric(
        prompt=f"{world_size} ranks all-reduce a tensor of {megabytes} MB on a ring. How much does each rank send?",
        expected=ring_all_reduce_bytes(size_bytes, world_size),
        unit="MB",
        right="2(N − 1)/N of the tensor: nearly twice its size, however many ranks there are.",
        wrong="A rank sends N − 1 chunks in each of two phases, and a chunk is 1/N of the tensor.",
        mistakes=(
            (ring_all_reduce_bytes(size_bytes, world_size) / 2, "This is one of the two phases."),
            (2 * size_bytes, "Nearly: a rank sends N − 1 of the N chunks in each phase, not all N."),
            (size_bytes, "There are two phases, and in each N − 1 of the N chunks are sent."),
            (
                (world_size - 1) * size_bytes,
                "A rank would send this much if it passed on whole tensors. On the ring, it passes on chunks of 1/N.",
            ),
        ),
    )


def latency(rng: random.Random) -> Numeric:
    world_size, calls, microseconds = rng.choice([4, 8, 16]), rng.choice([100, 200, 400]), rng.choice([3, 5, 10])
    call = ring_all_reduce_messages(world_size) * microseconds / 1000
    return Numeric(
        prompt=f"{world_size} ranks all-reduce {calls} small gradients on a ring, with one call for each. A message "
        f"costs α = {microseconds} µs. How much time do the α of all calls take together?",
        expected=calls * call,
        unit="ms",
        right="Each call pays 2(N − 1) α. Joined in one bucket, the gradients would pay that once.",
        wrong="How many messages follow one another in one call? Each costs α.",
        mistakes=(
            (calls * call / 2, "This is one phase; an all-reduce has two."),
            (calls * microseconds / 1000, "A call is more than one message: 2(N − 1)."),
            (call, "This is one call, as if the gradients were in one bucket."),
        ),
    )


def padded_elements(rng: random.Random) -> Numeric:
    # With these, the missing elements are never as many as the left over ones, and never 0.
    world_size, numel = rng.choice([(4, 13), (4, 27), (8, 21), (8, 35), (8, 101), (16, 50), (16, 1001)])
    return Numeric(
        prompt=f"{world_size} ranks reduce-scatter a tensor of {numel} elements. How many elements of padding does "
        "it need?",
        expected=padding(numel, world_size),
        tolerance=0,
        right="`-numel % world_size`: the number missing to the next multiple.",
        wrong="Find the next multiple of the world size, and see how many elements are missing.",
        mistakes=(
            (
                numel % world_size,
                "This many are left over, `numel % world_size`. The padding is what is missing: `-numel % world_size`.",
            ),
        ),
    )


QUIZ = Quiz(name="ranks", title="Ranks and collectives", questions=(
    Question(id="all-reduce-value", ask=sum_on_one_rank),
    Question(id="own-variables", ask=Choice.read("""
        ```python
        seen = []

        def visit():
            seen.append(dist.get_rank())

        World(4).run(visit)
        ```

        What is `seen` in the notebook afterwards?

        - [x] Empty
          > Each rank appended to its own copy, and the copies are gone. Return what you want to keep.
        - [ ] The four ranks, in order
          > This would need one list for all ranks. Each rank works on its own copy, as separate processes do.
        - [ ] The four ranks, in an order that changes
          > Threads that share a list would do this. Ranks share nothing.
        - [ ] Only rank 0
          > Rank 0 is a rank like the others, and works on its own copy. The notebook is not a rank.""")),
    Question(id="everyone-sends-first", ask=Choice.read("""
        On a ring, with gloo, every rank calls `dist.send` to its right neighbour and then `dist.recv` from its left.
        What happens?

        - [x] Every rank waits forever
          > Each send waits for a recv that no rank reaches.
        - [ ] It works, since each send has its recv
          > Each send has a recv, but a rank reaches its recv only after its send has ended.
        - [ ] It works if the number of ranks is even
          > All ranks wait in their send, for any number of ranks. It would work if even ranks sent first and odd ranks
            received first.
        - [ ] Rank 0 fails, and the others go on
          > No rank fails: each waits for the next rank.""")),
    Question(id="which-hang", ask=Choice.read("""
        Each of these runs on every rank of a world of 4. Which of them can leave ranks waiting for calls that other
        ranks never make?

        - [x] `if dist.get_rank() == 0: dist.all_reduce(x)`
          > Rank 0 waits for three ranks that never call.
        - [ ] `x = x if dist.get_rank() == 0 else 0 * x; dist.all_reduce(x)`
          > Every rank calls. The condition decides what a rank contributes, not whether it calls.
        - [x] `if x.sum() > 0: dist.all_reduce(x)`
          > The sum may be positive on one rank and not on a different one. Then only some ranks call.
        - [ ] `for _ in range(dist.get_world_size()): dist.all_reduce(x)`
          > All ranks have the same world size, so they make the same number of calls.
        - [x] `for _ in range(dist.get_rank()): dist.all_reduce(x)`
          > Rank 0 makes no call and rank 3 makes three.""", several=True)),
    Question(id="after-reduce-scatter", ask=Choice.read("""
        Four ranks reduce-scatter a tensor of 8 elements each. What does rank 2 have afterwards?

        - [x] 2 elements: its chunk, summed over all ranks
          > Elements 4 and 5 of the sum. An all-gather would bring the other elements.
        - [ ] 8 elements: the sum over all ranks
          > This is the result of an all-reduce: a reduce-scatter followed by an all-gather.
        - [ ] 2 elements: its chunk of its own tensor
          > This would be a scatter. The reduce sums the chunk over ranks.
        - [ ] 32 elements: all tensors, one after the other
          > This is the result of an all-gather.""")),
    Question(id="partial-to-replicate", ask=Choice.read("""
        Each rank has a gradient from examples of its own. Afterwards the gradient of all examples, their sum, is to be
        Replicate. Which of these lead there?

        - [x] An all-reduce
          > It turns Partial into Replicate.
        - [x] A reduce-scatter, and then an all-gather
          > The first turns Partial into Shard, the second turns Shard into Replicate.
        - [ ] A reduce-scatter
          > Each rank then has its chunk of the sum. That is Shard.
        - [ ] An all-gather, and then a reduce-scatter
          > The all-gather joins the gradients and sums nothing. The reduce-scatter then adds N equal tensors, so each
            rank gets N times its own gradient.
        - [ ] A broadcast from rank 0
          > All ranks then have the same, but it is the gradient of rank 0's examples only.""", several=True)),
    Question(id="ring-messages", ask=messages_sent),
    Question(id="ring-bytes", ask=bytes_sent),
    Question(id="latency", ask=latency),
    Question(id="padding", ask=padded_elements),
))
