"""The quiz of lesson 10."""

import random
from fractions import Fraction

from ...planner import plan
from ...quizzes import Choice, Numeric, Question, Quiz


def elements_sent(multiples: int, params: int, world_size: int) -> Fraction:
    """Return how many elements a rank sends in a step, for `multiples` times all parameters."""
    return multiples * params * Fraction(world_size - 1, world_size)


def volume_of_ddp_and_zero(rng: random.Random) -> Numeric:
    millions, world_size = rng.choice([100, 400, 800]), rng.choice([4, 8])
    params = millions * 10**6
    sent = elements_sent(3, params, world_size)
    return Numeric(
        prompt=f"DistributedDataParallel and ZeroRedundancyOptimizer train {millions} million parameters on "
        f"{world_size} ranks. How many elements does a rank send in a step, counted as a ring sends them?",
        expected=sent,
        right="DDP's all-reduce sends 2Ψ. Then each owner broadcasts the parameters that it has updated, Ψ. Both are "
        "multiplied by (N − 1)/N.",
        wrong="Add what DDP sends in backward and what the optimizer sends in its step.",
        mistakes=(
            (
                elements_sent(2, params, world_size),
                "A ZeRO-1 that reduce-scatters sends this. DDP does not know that only owners need the gradients.",
            ),
            (elements_sent(1, params, world_size), "This is only the broadcast of the parameters."),
            (3 * params, "Nearly: multiply by (N − 1)/N, because a rank does not send its own part."),
            (4 * sent, "These are bytes. The question asks for the number of elements."),
        ),
    )


def micro_batches(rng: random.Random) -> Numeric:
    world_size, micro, steps = rng.choice([4, 8, 16]), rng.choice([2, 3, 6]), rng.choice([3, 5, 10])
    return Numeric(
        prompt=f"A DeepSpeed configuration has `train_batch_size` {world_size * micro * steps} and "
        f"`train_micro_batch_size_per_gpu` {micro}, and no accumulation steps. There are {world_size} ranks. How "
        "many micro-batches does each rank have in a step?",
        expected=steps,
        tolerance=0,
        right="The batch is the micro-batch times the accumulation steps times the ranks.",
        wrong="`train_batch_size` is the batch of all ranks in a whole step. Divide it by micro-batch and ranks.",
        mistakes=(
            (world_size * steps, "All ranks share the batch: divide by their number."),
            (1, "1 is the default only if it does not follow from the batch sizes."),
            (micro * steps, "These are examples of each rank, not micro-batches."),
        ),
    )


def bucket_buffer(rng: random.Random) -> Numeric:
    elements, bytes_each = rng.choice([2, 5]) * 10**8, rng.choice([2, 4])
    return Numeric(
        prompt=f"`reduce_bucket_size` is {elements:,}, and gradients have {bytes_each} bytes each. With "
        "`contiguous_gradients`, DeepSpeed allocates a buffer of that size. How much memory does it take, whatever the "
        "size of the model?",
        expected=elements * bytes_each,
        unit="GB",
        right="Multiply elements by bytes. DeepSpeed allocates the buffer even if the model is smaller.",
        wrong="The setting counts elements. Multiply by the bytes of one element.",
        mistakes=(
            (elements, "The setting counts elements, not bytes."),
            (elements * (6 - bytes_each), f"Each element has {bytes_each} bytes here."),
        ),
    )


def states_between_steps(rng: random.Random) -> Numeric:
    billions, world_size = rng.choice([3, 8, 14]), rng.choice([8, 16])
    held = sum(plan(params=billions * 10**9, world_size=world_size, stage=3, precision="mixed").bytes.values())
    return Numeric(
        prompt=f"FSDP2 shards {billions} billion parameters in fp32 over {world_size} ranks, with a "
        "`MixedPrecisionPolicy` whose `param_dtype` is bfloat16. Adam's state is fp32. After backward, how much memory "
        "do parameters, gradients and optimizer state take on a rank?",
        expected=held,
        unit="GB",
        right="Parameters, gradients and Adam's state are fp32 shards: 4 + 4 + 8 bytes for each parameter.",
        wrong="Which dtype do FSDP2's shards have? The policy sets the dtype of the gathered parameters.",
        mistakes=(
            (12 * billions * 10**9 / world_size, "The shards stay fp32. Only the gathered parameters are bfloat16."),
            (16 * billions * 10**9, "This is the sum over all ranks."),
            (18 * billions * 10**9 / world_size, "There is no bf16 copy between steps: the shards are the masters."),
        ),
    )


def leaves_a_node(rng: random.Random) -> Numeric:
    billions, nodes = rng.choice([7, 13, 70]), rng.choice([2, 4, 8])
    passes = 2 * billions * 10**9 * Fraction(8 * nodes - 1, 8 * nodes)
    return Numeric(
        prompt=f"FSDP2 shards {billions} billion parameters over {nodes} nodes of 8 GPUs. Everything travels in 16 "
        "bits, and a ring around all GPUs leaves each node once. How many bytes leave a node in a step with "
        "`reshard_after_forward=8` on all units?",
        expected=2 * passes,
        unit="GB",
        right="The gather of forward and the reduce-scatter leave the node. The gather of backward stays inside.",
        wrong="Which of the three movements of a step needs ranks of a different node?",
        mistakes=(
            (3 * passes, "With 8, each node keeps a copy after forward, so the gather of backward stays inside."),
            (passes, "Gradients leave the node too: the reduce-scatter goes around all ranks."),
            (4 * billions * 10**9, "Nearly: multiply by (N − 1)/N, because a rank does not send its own part."),
            (2 * passes * 8, "Only one of the 8 GPUs is the end of the ring in a node."),
        ),
    )


QUIZ = Quiz(name="production", title="Production: ZeroRedundancyOptimizer, FSDP2, DeepSpeed", questions=(
    Question(id="ddp-and-zero", ask=volume_of_ddp_and_zero),
    Question(id="clipping", ask=Choice.read("""
        A training moves from DeepSpeed 0.19.8 to FSDP2. The DeepSpeed configuration has no setting for clipping. The
        losses agree for some steps, then differ. What is the likely reason?

        - [x] DeepSpeed clips gradients to a norm of 1.0 by default.
          > It has done so since release 0.19.3. With FSDP2, you call torch.nn.utils.clip_grad_norm_ yourself.
        - [ ] FSDP2 sums gradients where DeepSpeed averages them.
          > Both average. A sum would change the second loss with SGD, and hardly any loss with Adam.
        - [ ] Sharding changes what Adam computes.
          > Adam updates each element separately, so it does not matter which rank holds it.
        - [ ] FSDP2 computes in bfloat16 by default.
          > Without a policy, it computes in the dtype of the parameters.""")),
    Question(id="optimizer-first", ask=Choice.read("""
        `optimizer = Adam(model.parameters())`, and then `fully_shard(model)`. What happens?

        - [x] No error; the parameters never change.
          > fully_shard replaces the parameters. The optimizer has the old ones, which get no gradients.
        - [ ] It trains, and the optimizer state is whole.
          > The old parameters never get a gradient, so there is no state at all.
        - [ ] fully_shard raises an error.
          > fully_shard does not know the optimizer, so it cannot notice the mistake.
        - [ ] It trains correctly, because the order does not matter.
          > The order matters: fully_shard replaces the parameters by sharded ones.""")),
    Question(id="micro-batches", ask=micro_batches),
    Question(id="bucket", ask=bucket_buffer),
    Question(id="persistence", ask=Choice.read("""
        DeepSpeed stage 3 trains a small model of 30,000 parameters with default settings, and backward gathers nothing.
        Which reasons are possible?

        - [x] Every parameter is smaller than `stage3_param_persistence_threshold`.
          > It is 100,000 by default. Smaller parameters stay whole on each rank.
        - [x] `stage3_max_reuse_distance` is larger than the model.
          > It is 10⁹ by default, so what forward gathers stays whole until backward has used it.
        - [ ] Stage 3 gathers in forward only.
          > It gathers missing parameters in forward and in backward.
        - [ ] `overlap_comm` hides the gathers from the meter.
          > Overlap only changes when they run. The meter counts them in any case.""", several=True)),
    Question(id="mixed-precision", ask=states_between_steps),
    Question(id="leaves-a-node", ask=leaves_a_node),
    Question(id="muon", ask=Choice.read("""
        Your own stage 2 shards flat tensors. You want to replace Adam by Muon. What do you have to change?

        - [x] Each matrix needs an owner that collects its whole gradient, or a gather of it on every rank.
          > Muon makes a whole matrix orthogonal. A part of it does not contain enough.
        - [ ] Nothing: an optimizer of shards is an optimizer.
          > That holds for optimizers that update each element separately, such as Adam and SGD.
        - [ ] Only the cuts: shards must be rows instead of flat parts.
          > Then torch's Muon raises no error, but each rank makes only its own rows orthogonal.
        - [ ] The momentum has to be whole on every rank.
          > Momentum works on each element separately, so it can stay in shards.""")),
    Question(id="checkpoint", ask=Choice.read("""
        A job saves a checkpoint on 64 ranks, and resumes on 48. What can it load?

        - [x] Whole state dicts, which set_model_state_dict and set_optimizer_state_dict cut.
          > Whole states do not depend on the number of ranks.
        - [x] Shards that torch.distributed.checkpoint has saved.
          > It records each shard's place in the whole, and cuts them again when it loads.
        - [ ] The files of DeepSpeed's save_checkpoint, unchanged.
          > These files fit only 64 ranks. ds_to_universal has to convert them first.
        - [ ] The state dict that each rank's optimizer gave, saved rank by rank with torch.save.
          > These are 64 parts for 64 ranks, and no function of torch cuts them into 48.""", several=True)),
))
