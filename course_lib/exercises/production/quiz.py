"""The quiz of lesson 09."""

from __future__ import annotations

import random
from fractions import Fraction

from ...planner import plan
from ...quizzes import Choice, Mistake, Numeric, Option, Question, Quiz, register
from .fsdp2_settings import fsdp2_settings


def elements_sent(multiples: int, params: int, world_size: int) -> Fraction:
    """What a rank sends in a step, of `multiples` times all parameters."""
    return multiples * params * Fraction(world_size - 1, world_size)


def volume_of_ddp_and_zero(rng: random.Random) -> Numeric:
    millions, world_size = rng.choice([100, 400, 800]), rng.choice([4, 8])
    params = millions * 10**6
    sent = elements_sent(3, params, world_size)
    return Numeric(
        prompt=f"DistributedDataParallel and ZeroRedundancyOptimizer train {millions} million parameters on "
        f"{world_size} ranks. How many elements does a rank send in a step, counted as a ring sends them?",
        expected=sent,
        right="All-reduce, 2Ψ, then each owner broadcasts what it has updated, Ψ: each times (N − 1)/N.",
        wrong="Add up what DDP does in backward and what the optimizer does in its step.",
        mistakes=(
            Mistake.near(
                float(elements_sent(2, params, world_size)),
                "That is ZeRO-1 as it could be. DDP does not know that only owners need the gradients.",
            ),
            Mistake.near(
                float(elements_sent(1, params, world_size)), "That is one of the two: the broadcast of parameters."
            ),
            Mistake.near(3 * params, "Nearly: of each whole, a rank sends (N − 1)/N."),
            Mistake.near(float(4 * sent), "That is bytes; asked is the number of elements."),
        ),
    )


def micro_batches(rng: random.Random) -> Numeric:
    world_size, micro, steps = rng.choice([4, 8, 16]), rng.choice([2, 3, 6]), rng.choice([3, 5, 10])
    config = {
        "train_batch_size": world_size * micro * steps,
        "train_micro_batch_size_per_gpu": micro,
        "zero_optimization": {"stage": 3},
    }
    return Numeric(
        prompt=f"A DeepSpeed configuration has `train_batch_size` {config['train_batch_size']} and "
        f"`train_micro_batch_size_per_gpu` {micro}, and nothing of accumulation. There are {world_size} ranks. How "
        "many micro-batches does each rank have in a step?",
        expected=fsdp2_settings(config, world_size)["micro_batches"],
        tolerance=0,
        right="The batch is the micro-batch times the accumulation steps times the ranks.",
        wrong="`train_batch_size` is the batch of all ranks in a whole step. Divide by what you know.",
        mistakes=(
            Mistake.near(world_size * steps, "All ranks share in the batch: divide by their number.", tolerance=0),
            Mistake.near(1, "1 is the default only where the batch sizes do not say otherwise.", tolerance=0),
            Mistake.near(micro * steps, "Those are examples for each rank, not micro-batches.", tolerance=0),
        ),
    )


def bucket_buffer(rng: random.Random) -> Numeric:
    elements, bytes_each = rng.choice([2, 5]) * 10**8, rng.choice([2, 4])
    return Numeric(
        prompt=f"`reduce_bucket_size` is {elements:,}, and gradients have {bytes_each} bytes each. With "
        "`contiguous_gradients` a buffer of that size is set aside. How much memory does it take, on a model of any "
        "size?",
        expected=elements * bytes_each,
        unit="GB",
        right="Elements times bytes. It is there even if the model is smaller.",
        wrong="The setting counts elements. Multiply by the bytes of one.",
        mistakes=(
            Mistake.near(elements, "The setting counts elements, not bytes."),
            Mistake.near(elements * (6 - bytes_each), f"Each element has {bytes_each} bytes here."),
        ),
    )


def states_between_steps(rng: random.Random) -> Numeric:
    billions, world_size = rng.choice([3, 8, 14]), rng.choice([8, 16])
    held = sum(plan(params=billions * 10**9, world_size=world_size, stage=3, precision="mixed").bytes.values())
    return Numeric(
        prompt=f"FSDP2 shards {billions} billion parameters over {world_size} ranks, in fp32, and with a "
        "`MixedPrecisionPolicy` whose `param_dtype` is bfloat16. Adam keeps fp32. After backward, how much does a rank "
        "hold of parameters, gradients and optimizer state?",
        expected=held,
        unit="GB",
        right="The shards of parameters and gradients are fp32: 4 + 4 + 8 bytes, all of them shared.",
        wrong="Which dtype do FSDP2's shards have? The policy's is that of what is gathered.",
        mistakes=(
            Mistake.near(
                12 * billions * 10**9 / world_size, "The shards stay fp32; bfloat16 is what is gathered from them."
            ),
            Mistake.near(16 * billions * 10**9, "That is all ranks together."),
            Mistake.near(
                18 * billions * 10**9 / world_size, "There is no bf16 copy between steps: the shards are the masters."
            ),
        ),
    )


QUIZ = register(
    Quiz(
        name="production",
        title="Production: ZeroRedundancyOptimizer, FSDP2, DeepSpeed",
        questions=(
            Question(id="ddp-and-zero", ask=volume_of_ddp_and_zero),
            Question(
                id="clipping",
                ask=Choice(
                    prompt="A training moves from DeepSpeed 0.19.8 to FSDP2. Its configuration says nothing of "
                    "clipping. The losses agree for some steps, then part. What is the likely reason?",
                    options=(
                        Option(
                            text="DeepSpeed clips gradients to a norm of 1.0 unless the configuration says otherwise.",
                            right=True,
                            feedback="It does so since release 0.19.3. With FSDP2, call torch.nn.utils.clip_grad_norm_ "
                            "yourself.",
                        ),
                        Option(
                            text="FSDP2 sums gradients where DeepSpeed averages them.",
                            feedback="Both average; a sum would part the losses at the second step.",
                        ),
                        Option(
                            text="Sharding changes what Adam computes.",
                            feedback="Adam treats each element by itself, wherever it is kept.",
                        ),
                        Option(
                            text="FSDP2 computes in bfloat16 by default.",
                            feedback="It computes in the dtype of the parameters unless a policy says otherwise.",
                        ),
                    ),
                ),
            ),
            Question(
                id="optimizer-first",
                ask=Choice(
                    prompt="`optimizer = Adam(model.parameters())`, and then `fully_shard(model)`. What happens?",
                    options=(
                        Option(
                            text="No error; the loss does not change from step to step.",
                            right=True,
                            feedback="fully_shard makes new parameters. The optimizer has the old ones, which get no "
                            "gradients.",
                        ),
                        Option(
                            text="It trains, and the optimizer state is whole.",
                            feedback="The old parameters never get a gradient, so there is no state at all.",
                        ),
                        Option(
                            text="fully_shard raises an error.",
                            feedback="It does not know of the optimizer, so it cannot.",
                        ),
                        Option(
                            text="It trains as it should; the order does not matter.",
                            feedback="Parameters are replaced by sharded ones, so it does.",
                        ),
                    ),
                ),
            ),
            Question(id="micro-batches", ask=micro_batches),
            Question(id="bucket", ask=bucket_buffer),
            Question(
                id="persistence",
                ask=Choice(
                    prompt="DeepSpeed stage 3 trains a toy of 30,000 parameters with default settings, and forward "
                    "gathers nothing. Which are possible reasons?",
                    several=True,
                    options=(
                        Option(
                            text="Every parameter is smaller than `stage3_param_persistence_threshold`.",
                            right=True,
                            feedback="100,000 by default: they stay whole on each rank from step to step.",
                        ),
                        Option(
                            text="`stage3_max_live_parameters` is so large that nothing needs to be freed.",
                            right=True,
                            feedback="10⁹ by default, so what backward will use again is not freed after forward.",
                        ),
                        Option(
                            text="Stage 3 gathers in backward only.",
                            feedback="It gathers what is not there, in forward and in backward.",
                        ),
                        Option(
                            text="`overlap_comm` hides the gathers from the meter.",
                            feedback="Overlap moves them in time; they are made, and counted.",
                        ),
                    ),
                ),
            ),
            Question(id="mixed-precision", ask=states_between_steps),
            Question(
                id="checkpoint",
                ask=Choice(
                    prompt="A job on 64 ranks saves, and goes on with 48. What can it load?",
                    several=True,
                    options=(
                        Option(
                            text="Whole state dicts, cut anew by set_model_state_dict and set_optimizer_state_dict.",
                            right=True,
                            feedback="They know nothing of ranks.",
                        ),
                        Option(
                            text="Shards that torch.distributed.checkpoint has saved.",
                            right=True,
                            feedback="It knows where each shard lies in the whole, and cuts them anew when it loads.",
                        ),
                        Option(
                            text="What DeepSpeed's save_checkpoint wrote, as it is.",
                            feedback="That is made for 64 ranks; ds_to_universal has to convert it first.",
                        ),
                        Option(
                            text="The state dict that each rank's optimizer gave, saved rank by rank with torch.save.",
                            feedback="Those are 64 parts, and nothing in them says of what.",
                        ),
                    ),
                ),
            ),
        ),
    )
)
