"""The settings of a DeepSpeed configuration: what each does, what it costs, and its equivalent in FSDP2.

Names are dotted: `zero_optimization.stage`. Defaults are those of DeepSpeed 0.19.8: `deepspeed/runtime/constants.py`,
`zero/config.py`, `zero/offload_config.py` and `precision_config.py`. Settings that do not affect sharding, such as
logging, are only listed by name.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting.

    Attributes:
        default: in words; empty if there is none.
        does: its effect, in a sentence.
        costs: what it costs, or saves.
        fsdp2: the equivalent in FSDP2.
    """

    default: str
    does: str
    costs: str
    fsdp2: str


_TABLE = """
train_batch_size
    does   Examples in a step, of all ranks and micro-batches together.
    costs  Nothing by itself; it has to be micro-batch times accumulation steps times ranks.
    FSDP2  Your data loader and loop decide.
train_micro_batch_size_per_gpu
    does   Examples that one rank takes through forward and backward at once.
    costs  Activations grow with it.
    FSDP2  The batch size of your data loader.
gradient_accumulation_steps = 1
    does   Micro-batches whose gradients are added up before a step.
    costs  From stage 2 on, each of them reduces its gradients: volume grows with the number.
    FSDP2  A loop; model.set_requires_gradient_sync(False) in all but the last, if whole gradients fit.
gradient_clipping = 1.0; 0 before DeepSpeed 0.19.3
    does   Scales all gradients down to this norm where theirs is larger. 0 switches it off.
    costs  A norm over all ranks: one small all-reduce in a step.
    FSDP2  torch.nn.utils.clip_grad_norm_(model.parameters(), ...), which clips nothing unless you call it.
optimizer.type
    does   The optimizer that DeepSpeed makes.
    costs  Adam and AdamW keep 8 bytes for each parameter, in fp32.
    FSDP2  Make a torch optimizer of model.parameters(), after fully_shard.
optimizer.params
    does   What the optimizer is made with.
    costs  torch_adam True takes torch's Adam in place of DeepSpeed's fused one, which has to be compiled.
    FSDP2  The arguments of the torch optimizer.
zero_force_ds_cpu_optimizer = True
    does   Refuses any optimizer but DeepSpeed's own CPU Adam where optimizer state is offloaded.
    costs  Nothing.
    FSDP2  There is no such rule.
bf16.enabled = False
    does   Parameters and gradients in bfloat16, fp32 masters in the optimizer.
    costs  2 + 2 bytes for each parameter in place of 4 + 4, and 4 more for the masters.
    FSDP2  mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16); the fp32 shards are the masters.
fp16.enabled = False
    does   Parameters and gradients in float16, fp32 masters in the optimizer, and a scaled loss.
    costs  As bf16; steps whose gradients overflow are left out.
    FSDP2  MixedPrecisionPolicy(param_dtype=torch.float16), and a gradient scaler.
communication_data_type
    does   The dtype in which gradients are reduced.
    costs  Half the bytes for 16 bits, and less exact sums.
    FSDP2  MixedPrecisionPolicy(reduce_dtype=...).
zero_optimization.stage = 0
    does   What is sharded: 0 nothing, 1 optimizer state, 2 gradients as well, 3 parameters as well.
    costs  Sent in a step: 2Ψ at stage 0; 3Ψ at 1 and 2, which all-reduce by default where the paper has 2Ψ; 3Ψ at 3.
    FSDP2  3: fully_shard. 2: fully_shard(..., reshard_after_forward=False). 1: ZeroRedundancyOptimizer with DDP.
zero_optimization.reduce_scatter = True
    does   Stages 1 and 2: lets each rank receive its part of the gradients alone.
    costs  Less volume in principle; see use_multi_rank_bucket_allreduce, which overrules it.
    FSDP2  FSDP2 always reduce-scatters.
zero_optimization.use_multi_rank_bucket_allreduce = True
    does   Stages 1 and 2: all-reduces a bucket that has parts of several ranks, instead of a reduce for each.
    costs  Fewer calls, and twice the volume of the gradients.
    FSDP2  FSDP2 always reduce-scatters.
zero_optimization.reduce_bucket_size = 500,000,000
    does   Elements of gradients that are reduced together.
    costs  A buffer of that many elements with contiguous_gradients, however small the model: 2 GB in fp32 by \
default. Small buckets mean many calls.
    FSDP2  The size of a unit: what you call fully_shard on.
zero_optimization.allgather_bucket_size = 500,000,000
    does   Stages 1 and 2: elements of updated parameters that are gathered together.
    costs  Nothing with torch 2: each parameter group is gathered in one call, in place, whatever the value.
    FSDP2  The size of a unit.
zero_optimization.contiguous_gradients = True
    does   Copies gradients into one buffer as they come.
    costs  The buffer, and a copy; in return no fragments.
    FSDP2  Always so: a unit's gradients are copied into one tensor to be reduced.
zero_optimization.overlap_comm = True at stage 3, else False
    does   Reduces gradients while backward goes on.
    costs  Time is saved; a second bucket is held meanwhile at stages 1 and 2.
    FSDP2  Always so.
zero_optimization.stage3_prefetch_bucket_size = 50,000,000
    does   Elements of parameters that are gathered ahead of their use.
    costs  Their memory, for less waiting.
    FSDP2  One unit ahead by itself; module.set_modules_to_forward_prefetch([...]) for more.
zero_optimization.stage3_param_persistence_threshold = 100,000
    does   Parameters of at most that many elements stay whole on every rank.
    costs  Their memory, for fewer small all-gathers. Of a toy, all parameters are small: none is freed.
    FSDP2  None; small parameters travel with their unit.
zero_optimization.stage3_max_live_parameters = 1,000,000,000
    does   Elements of gathered parameters that may be there before some are freed.
    costs  Their memory, for fewer all-gathers.
    FSDP2  reshard_after_forward, for each unit.
zero_optimization.stage3_max_reuse_distance = 1,000,000,000
    does   A parameter that is used again within that many elements is not freed.
    costs  Its memory, for fewer all-gathers.
    FSDP2  reshard_after_forward, for each unit.
zero_optimization.stage3_gather_16bit_weights_on_model_save = False
    does   save_16bit_model gathers the whole model first.
    costs  The whole model in 16 bits, on the rank that saves.
    FSDP2  get_model_state_dict with StateDictOptions(full_state_dict=True, cpu_offload=True).
zero_optimization.zero_hpz_partition_size = 1
    does   Stage 3: keeps a second copy of the parameters, sharded over that many ranks of a node.
    costs  The copy; in return backward gathers within the node.
    FSDP2  fully_shard(..., reshard_after_forward=<ranks of a node>).
zero_optimization.offload_optimizer.device = none
    does   Where optimizer state, and its computation, live between uses.
    costs  Memory of the host or the disk for memory of the GPU, a way over PCIe in each step, and a slower Adam.
    FSDP2  fully_shard(..., offload_policy=CPUOffloadPolicy()): parameters, gradients and optimizer, together.
zero_optimization.offload_param.device = none
    does   Where parameters live between uses.
    costs  Memory of the host or the disk for memory of the GPU, and a way over PCIe before each gather.
    FSDP2  fully_shard(..., offload_policy=CPUOffloadPolicy()): parameters, gradients and optimizer, together.
"""
"""Each setting: its name and default, then `does`, `costs` and `FSDP2`."""


def _settings(table: str) -> Iterator[tuple[str, Setting]]:
    for entry in re.split(r"\n(?=\w)", table.strip()):
        heading, *texts = entry.splitlines()
        name, _, default = heading.partition(" = ")
        does, costs, fsdp2 = (text.split(maxsplit=1)[1] for text in texts)
        yield name, Setting(default=default, does=does, costs=costs, fsdp2=fsdp2)


SETTINGS = dict(_settings(_TABLE))

SECTIONS = frozenset(name.rpartition(".")[0] for name in SETTINGS if "." in name) | {"zero_optimization"}
"""Names whose value is a section with names of its own."""

_UNEXPLAINED = {
    "": """
        activation_checkpointing aio autotuning checkpoint comet comms_logger compile csv_monitor
        data_efficiency data_types dataloader_drop_last disable_allgather disable_python_gc dump_state
        expert_parallel flops_profiler gradient_allreduce_op gradient_predivide_factor hybrid_engine inference
        log_level managed_gradient_accumulation memory_breakdown pipeline prescale_gradients scheduler
        seq_parallel_communication_data_type sequence_parallel_size steps_per_print tensor_parallel tensorboard
        timers torch_autocast use_data_before_expert_parallelism vocabulary_size wall_clock_breakdown wandb
        weight_quantization zero_allow_untested_optimizer
    """,
    "bf16.": "bf16_master_weights_and_grads bf16_optimizer_states check_grad_overflow immediate_grad_update",
    "fp16.": """
        auto_cast consecutive_hysteresis fp16_master_weights_and_grads hysteresis initial_scale_power
        loss_scale loss_scale_window min_loss_scale
    """,
    "optimizer.": "legacy_fusion",
    "zero_optimization.": """
        allgather_partitions compute_grad_norm elastic_checkpoint enable_sanity_checks ignore_unused_parameters
        leaf_module legacy_stage1 load_from_fp32_weights log_trace_cache_warnings memory_efficient_linear
        override_module_apply parameter_alignment pipeline_loading_checkpoint round_robin_gradients
        save_muon_momentum_buffer_in_memory stage3_allgather_sequential stage3_model_persistence_threshold
        stage3_module_granularity_threshold stage3_use_all_reduce_for_fetch_params sub_group_size zenflow
        zero_quantized_gradients zero_quantized_nontrainable_weights zero_quantized_weights
    """,
    "zero_optimization.offload_optimizer.": """
        buffer_count cpuadam_cores_perc fast_init nvme_path pin_memory pipeline_read pipeline_write ratio super_offload
    """,
    "zero_optimization.offload_param.": "buffer_count buffer_size max_in_cpu nvme_path pin_memory",
}
UNEXPLAINED = frozenset(section + name for section, names in _UNEXPLAINED.items() for name in names.split())
"""Names that DeepSpeed knows and that are not explained: they do not affect sharding, or are rare."""

_REMOVED = """
    amp compression_training curriculum_learning eigenvalue elasticity graph_harvesting nebula progressive_layer_drop
    quantize_training sparse_attention sparse_gradients zero_optimization.mics_hierarchical_params_gather
    zero_optimization.mics_shard_size zero_optimization.zeropp_loco_param
"""
GONE = dict.fromkeys(_REMOVED.split(), "DeepSpeed has removed it. Take it out.") | {
    "bfloat16": "It is out of date. Use bf16.",
    "zero_optimization.cpu_offload": "It is out of date. Use offload_optimizer with device cpu.",
    "zero_optimization.cpu_offload_param": "It is out of date. Use offload_param with device cpu.",
    "zero_optimization.cpu_offload_use_pin_memory": "It is out of date. Use pin_memory in offload_optimizer.",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": "It is out of date. Write 16bit instead of fp16.",
}
"""Names that DeepSpeed has removed or replaced, with the message about each."""
