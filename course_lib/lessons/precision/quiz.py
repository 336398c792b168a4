"""The quiz of lesson 07."""

import random

import torch

from ...planner import plan
from ...quizzes import Choice, Numeric, Question, Quiz


def states_bytes(params: int, world_size: int, stage: int, precision: str = "mixed") -> int:
    """Return the bytes of model states on a rank, with Adam."""
    return sum(plan(params=params, world_size=world_size, stage=stage, precision=precision).bytes.values())


def smallest_update_seen(weight: float, dtype: torch.dtype) -> float:
    """Return half of the distance from `weight`, a power of two, to the next larger number of `dtype`."""
    return weight * torch.finfo(dtype).eps / 2


def stage_1(rng: random.Random) -> Numeric:
    billions, world_size = rng.choice([7, 13, 30]), rng.choice([8, 16, 32])
    params = billions * 10**9
    return Numeric(
        prompt=f"{billions} billion parameters are trained in bf16 with fp32 masters and Adam, with stage 1 on "
        f"{world_size} ranks. How large are the model states on each rank?",
        expected=states_bytes(params, world_size, 1),
        unit="GB",
        right="Each rank holds 2 + 2 + 12/N bytes for each parameter.",
        wrong="Each rank holds all parameters and gradients, 2 bytes each. Masters and both moments are sharded.",
        mistakes=(
            (8 * params + 8 * params / world_size, "That is fp32, or you shard only the moments."),
            (16 * params, "That is data parallel, where nothing is sharded."),
            (states_bytes(params, world_size, 2), "That is stage 2, which shards gradients as well."),
            (12 * params / world_size, "Add the parameters and gradients: each rank holds all of them."),
        ),
    )


def accumulation(rng: random.Random) -> Numeric:
    billions = rng.choice([1, 3, 7, 13])
    params = billions * 10**9
    expected = states_bytes(params, 1, 0, "mixed_fp32_accumulation")
    return Numeric(
        prompt=f"{billions} billion parameters in bf16 are trained with masters and Adam on one GPU. The gradients of "
        "micro-batches are summed in fp32. Backward also makes gradients of 2 bytes. How large are the model states?",
        expected=expected,
        unit="GB",
        right="2 + 2 + 4 + 12 = 20 bytes for each parameter.",
        wrong="Add up the parameters, the gradients, their sums, the masters and two moments.",
        mistakes=(
            (16 * params, "The sums are missing: 4 bytes more."),
            (18 * params, "The gradients of 2 bytes exist in addition to the sums of 4 bytes."),
        ),
    )


def lost_update(rng: random.Random) -> Numeric:
    weight = rng.choice([1, 2, 4, 8])
    expected = smallest_update_seen(weight, torch.bfloat16)
    return Numeric(
        prompt=f"A weight in bf16 is {weight}. The same small positive number is added to it again and again. If this "
        "number is below a limit, the weight never changes. How large is the limit? In bf16, the next number after 1 "
        "is 1 + 1/128.",
        expected=expected,
        right="That is half of the distance to the next number. A smaller sum is rounded back.",
        wrong="How far away is the next number of bf16? Which sums are rounded up to it?",
        mistakes=(
            (2 * expected, "That is the distance to the next number. Sums beyond half of it are rounded up."),
            *(
                [(1 / 256, "That is right for weights from 1 to 2. Larger numbers are farther apart.")]
                if weight > 1
                else []
            ),
        ),
    )


QUIZ = Quiz(name="precision", title="Mixed precision", questions=(
    Question(id="stage-1", ask=stage_1),
    Question(id="lost-update", ask=lost_update),
    Question(id="why-masters", ask=Choice.read("""
        What are fp32 masters for?

        - [x] Small updates add up in the masters. In bf16 each update would be rounded away
          > So values are copied in one direction only, from master to parameter.
        - [ ] Forward computes with them where bf16 would overflow
          > Forward uses only the rounded copies, and bf16 has the range of fp32.
        - [ ] They save memory
          > They cost 4 bytes for each parameter, as much as parameters and gradients save.
        - [ ] They are a backup for checkpoints on disk
          > Checkpoints contain them, but every step needs them too.""")),
    Question(id="accumulation", ask=accumulation),
    Question(id="overflow", ask=Choice.read("""
        Stage 2 runs in fp16 on 8 ranks. A gradient in the shard of rank 5 is infinite. What has to happen?

        - [x] All ranks skip the step and halve the scale
          > All ranks learn of the overflow by an all-reduce of one flag.
        - [ ] Rank 5 skips the step; the others make it
          > Then the shards of one model stay a step apart.
        - [ ] Rank 5 sets that element to zero, and all ranks make the step
          > More elements may be wrong and still finite, and the scale stays too large.
        - [ ] Nothing: the average over 8 ranks is finite
          > An average that contains an infinity is infinite or NaN.""")),
    Question(id="order", ask=Choice.read("""
        Gradients are clipped to norm 1 *before* they are divided by the loss scale. What happens with SGD?

        - [x] Nearly all are clipped, then divided by the scale: the model learns almost nothing
          > The limit is meant for gradients without the scale.
        - [ ] Nothing: scaling and clipping both multiply by a factor
          > The factor of clipping depends on the norm, and the scale changed the norm.
        - [ ] The step is skipped
          > A step is skipped only if a gradient is not finite. Large gradients are finite.
        - [ ] Gradients explode
          > They shrink: they are clipped to norm 1, and then divided by the scale.""")),
    Question(id="bf16-scale", ask=Choice.read("""
        Why does training in bf16 need no loss scaling?

        - [x] bf16 has the exponents of fp32, so small gradients do not become zero
          > It has fewer digits instead, and masters make up for them.
        - [ ] bf16 has more digits than fp16
          > It has fewer binary digits, 8 instead of 11, and a larger range.
        - [ ] With masters, gradients are made in fp32
          > Backward makes gradients in the dtype of the parameters. A gradient that became zero there stays zero.
        - [ ] It needs loss scaling, but nobody uses it
          > The smallest numbers of bf16 are nearly as small as those of fp32.""")),
    Question(id="autocast", ask=Choice.read("""
        A model in fp32 trains under `torch.autocast` to bf16, with Adam and without sharding. Which of these take 2
        bytes for each parameter?

        - [x] The copies of weights that forward computes with
          > Forward makes these copies, and backward uses them.
        - [ ] The parameters
          > They stay in fp32, and serve as the masters.
        - [ ] The gradients
          > They have the dtype of the parameters: fp32.
        - [ ] Adam's two moments
          > They have the dtype of the parameters: fp32.""", several=True)),
))
