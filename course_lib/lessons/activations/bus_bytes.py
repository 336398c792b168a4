"""What crosses the bus of a GPU in a step, with two kinds of offload."""

import random

from ...exercises import Case, Exercise


def draw(rng: random.Random, number: int) -> Case:
    world_size = (2, 4, 1, 8)[number % 4]
    units = [world_size * rng.randint(5, 60) for _ in range(2 + number % 3)]
    kept = [at == 0 or (number > 3 and rng.random() < 0.5) for at in range(len(units))]
    everything = number % 2 == 0
    what = f"units of {', '.join(map(str, units))} elements on {world_size} rank{'s' * (world_size > 1)}, "
    what += "everything offloaded" if everything else "the optimizer offloaded"
    return Case(world_size=0, args=lambda rank: (list(units), list(kept), world_size, everything), what=what)


exercise = Exercise("activations.bus_bytes", title="What crosses the bus", draw=draw, task="""
    A model in mixed precision is sharded by stage 3. Return the bytes that cross the bus of one GPU in a step, in each
    direction: `"to the GPU"` and `"to the host"`. Unit number `k` has `units[k]` elements, which the ranks divide
    evenly. If only the optimizer is offloaded, each rank's gradients go to the host once, and its updated parameters
    come back once, both in 16 bits. If everything is offloaded, the shards live on the host as masters, in fp32: a
    rank's shard of a unit goes to the GPU before every gather of this unit, and its shard of the gradient goes to the
    host, also in fp32. A unit is gathered for forward and again for backward, except if `kept[k]`: then it stays whole
    in between.""", hints="""
    Which tensors live on the host, and which of them does the GPU need? How often?

    A rank sends only its own shard over the bus: 1/N of the elements. What other ranks have arrives over the network.

    With everything offloaded, count the gathers of each unit: one if it stays whole between forward and backward, two
    if not. Gradients are reduced once, at any number of gathers.

    ```python
    shards = [numel // world_size for numel in units]
    if not everything:
        return {"to the GPU": ..., "to the host": ...}
    gathered = sum(shard * (... if whole else ...) for shard, whole in zip(shards, kept, strict=True))
    return {"to the GPU": 4 * ..., "to the host": 4 * ...}
    ```
    """, explanation="""
    Offloading the optimizer in 16 bits costs 4Ψ/N bytes on the bus in a step. FSDP2's `CPUOffloadPolicy` offloads
    parameters too, so nearly 12Ψ/N cross: up to 8Ψ/N to the GPU, because it casts a shard to 16 bits after the copy and
    gathers most units twice, and 4Ψ/N back. In exchange, the GPU keeps no model states between
    steps. With accumulation, parameters cross again for each micro-batch, and gradients whenever they are reduced.""")


@exercise
def bus_bytes(units: list[int], kept: list[bool], world_size: int, everything: bool) -> dict[str, int]:
    """Return the bytes that cross the bus of one GPU in a step: "to the GPU" and "to the host".

    Unit k has units[k] elements, which the ranks divide evenly; if kept[k], it stays whole from
    forward to backward. `everything`: fp32 shards of parameters and gradients live on the host.
    Without it, only the optimizer does, and gradients and updated parameters cross in 16 bits.
    """
    shards = [numel // world_size for numel in units]
    if not everything:
        return {"to the GPU": 2 * sum(shards), "to the host": 2 * sum(shards)}
    gathered = sum(shard * (1 if whole else 2) for shard, whole in zip(shards, kept, strict=True))
    return {"to the GPU": 4 * gathered, "to the host": 4 * sum(shards)}


GATHERED = '{"to the GPU": 4 * gathered, "to the host": 4 * sum(shards)}'

WHOLE = """
    You count whole units. Only this rank's shard crosses its bus; the rest arrives over the network.
    Next: divide by the number of ranks."""
OPTIMIZER = '{"to the GPU": 2 * sum(shards), "to the host": 2 * sum(shards)}'

exercise.edit("whole-units", {"numel // world_size": "numel"}, WHOLE)

exercise.edit("whole-units-if-everything-is-offloaded", {"in zip(shards, kept": "in zip(units, kept",
    "4 * sum(shards)": "4 * sum(units)"}, WHOLE)

exercise.edit("whole-units-if-the-optimizer-is-offloaded", {OPTIMIZER: OPTIMIZER.replace("shards", "units")}, WHOLE)

exercise.edit("one-gather", {"(1 if whole else 2)": "1"}, """
    You count one gather for each unit. A unit that is freed after forward is gathered again in backward, and its shard
    crosses the bus again. Next: count two gathers, except for units that are kept.""")

exercise.edit("two-gathers", {"(1 if whole else 2)": "2"}, """
    You count two gathers for each unit. A unit that is kept stays whole until backward has used it.
    Next: let the number of gathers depend on `kept`.""")

exercise.edit("kept-inverted", {"1 if whole else 2": "2 if whole else 1"}, """
    You gather the units twice that stay whole, and the others once. Next: swap the two.""")

exercise.edit("shards-in-16-bits", {"4 * gathered": "2 * gathered"}, """
    Your parameters cross in 16 bits. The shards on the host are fp32 masters, and they are cast on the GPU, after the
    copy. Next: count 4 bytes for each element of a parameter.""")

exercise.edit("gradients-in-16-bits", {"4 * sum(shards)": "2 * sum(shards)"}, """
    Your gradients cross in 16 bits. Here they are cast to the dtype of the shards before they leave the GPU.
    Next: count 4 bytes for each element of a gradient.""")

exercise.edit("gradients-twice", {"4 * sum(shards)": "4 * gathered"}, """
    You count the gradients as often as the gathers. A unit's gradient is reduced once in a step.
    Next: count each shard once on the way to the host.""")

exercise.edit("elements", {OPTIMIZER:
    '{"to the GPU": sum(shards), "to the host": sum(shards)}',
    GATHERED: '{"to the GPU": gathered, "to the host": sum(shards)}'}, """
    You count elements, not bytes. An element takes 2 bytes in 16 bits, and 4 in fp32.
    Next: multiply the elements by the bytes of one.""")

exercise.edit("always-the-optimizer", {GATHERED: OPTIMIZER}, """
    You count the same bytes for both kinds of offload. If everything is offloaded, parameters come from the host before
    each gather. Next: count the gathers of each unit.""")

exercise.edit("deepspeed-gradients", {'"to the host": 2 * sum(shards)': '"to the host": 4 * sum(shards)'}, """
    With the optimizer offloaded, your gradients cross in fp32. DeepSpeed casts them before it copies them; in this
    exercise, gradients cross in 16 bits. Next: count 2 bytes for each element.""")

exercise.edit("both-directions", {OPTIMIZER:
    '{"to the GPU": 4 * sum(shards), "to the host": 4 * sum(shards)}'}, """
    With the optimizer offloaded, you count 4 bytes in each direction. Gradients take 2 on their way out, and parameters
    2 on their way back. Next: count 2 in each direction.""")


@exercise.variant
def unit_by_unit(units: list[int], kept: list[bool], world_size: int, everything: bool) -> dict[str, int]:
    total = {"to the GPU": 0, "to the host": 0}
    for numel, whole in zip(units, kept, strict=True):
        width = 4 if everything else 2
        total["to the host"] += width * numel // world_size
        total["to the GPU"] += width * numel // world_size * (2 if everything and not whole else 1)
    return total


exercise.variant_edit("seconds-added", {"4 * gathered": "4 * (sum(shards) + sum(shard for shard, whole in "
    "zip(shards, kept, strict=True) if not whole))"})
