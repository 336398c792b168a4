"""The settings of a DeepSpeed configuration: what each does, what it costs, and its equivalent in FSDP2.

Names are dotted: `zero_optimization.stage`. Defaults are those of DeepSpeed 0.19.8: `deepspeed/runtime/constants.py`,
`zero/config.py`, `zero/offload_config.py` and `precision_config.py`. Settings that do not affect sharding, such as
logging, are only listed by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["bool", "whole number", "number", "text", "section"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting.

    Attributes:
        kind: the kind of its value.
        does: its effect, in a sentence.
        costs: what it costs, or saves.
        fsdp2: the equivalent in FSDP2.
        default: in words; empty if there is none.
        choices: the allowed values; empty if any of the kind is allowed.
    """

    kind: Kind
    does: str
    costs: str
    fsdp2: str
    default: str = ""
    choices: tuple[object, ...] = ()


_ZERO, _OFFLOAD = "zero_optimization", ("offload_optimizer", "offload_param")

SETTINGS: dict[str, Setting] = {
    "train_batch_size": Setting(
        kind="whole number",
        does="Examples in a step, of all ranks and micro-batches together.",
        costs="Nothing by itself; it has to be micro-batch times accumulation steps times ranks.",
        fsdp2="Your data loader and loop decide.",
    ),
    "train_micro_batch_size_per_gpu": Setting(
        kind="whole number",
        does="Examples that one rank takes through forward and backward at once.",
        costs="Activations grow with it.",
        fsdp2="The batch size of your data loader.",
    ),
    "gradient_accumulation_steps": Setting(
        kind="whole number",
        does="Micro-batches whose gradients are added up before a step.",
        costs="From stage 2 on, each of them reduces its gradients: volume grows with the number.",
        fsdp2="A loop; model.set_requires_gradient_sync(False) in all but the last, if whole gradients fit.",
        default="1",
    ),
    "gradient_clipping": Setting(
        kind="number",
        does="Scales all gradients down to this norm where theirs is larger. 0 switches it off.",
        costs="A norm over all ranks: one small all-reduce in a step.",
        fsdp2="torch.nn.utils.clip_grad_norm_(model.parameters(), ...), which clips nothing unless you call it.",
        default="1.0; 0 before DeepSpeed 0.19.3",
    ),
    "optimizer.type": Setting(
        kind="text",
        does="The optimizer that DeepSpeed makes.",
        costs="Adam and AdamW keep 8 bytes for each parameter, in fp32.",
        fsdp2="Make a torch optimizer of model.parameters(), after fully_shard.",
    ),
    "optimizer.params": Setting(
        kind="section",
        does="What the optimizer is made with.",
        costs="torch_adam True takes torch's Adam in place of DeepSpeed's fused one, which has to be compiled.",
        fsdp2="The arguments of the torch optimizer.",
    ),
    "zero_force_ds_cpu_optimizer": Setting(
        kind="bool",
        does="Refuses any optimizer but DeepSpeed's own CPU Adam where optimizer state is offloaded.",
        costs="Nothing.",
        fsdp2="There is no such rule.",
        default="True",
    ),
    "zero_allow_untested_optimizer": Setting(
        kind="bool",
        does="Lets ZeRO shard an optimizer that DeepSpeed does not know.",
        costs="Nothing. It must treat each element by itself, or it computes something else.",
        fsdp2="FSDP2 shards any optimizer, with the same condition.",
        default="False",
    ),
    "bf16.enabled": Setting(
        kind="bool",
        does="Parameters and gradients in bfloat16, fp32 masters in the optimizer.",
        costs="2 + 2 bytes for each parameter in place of 4 + 4, and 4 more for the masters.",
        fsdp2="mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16); the fp32 shards are the masters.",
        default="False",
    ),
    "fp16.enabled": Setting(
        kind="bool",
        does="Parameters and gradients in float16, fp32 masters in the optimizer, and a scaled loss.",
        costs="As bf16; steps whose gradients overflow are left out.",
        fsdp2="MixedPrecisionPolicy(param_dtype=torch.float16), and a gradient scaler.",
        default="False",
    ),
    "fp16.loss_scale": Setting(
        kind="number",
        does="What the loss is multiplied with; 0 finds it out while training.",
        costs="Nothing.",
        fsdp2="The gradient scaler's.",
        default="0",
    ),
    "communication_data_type": Setting(
        kind="text",
        does="The dtype in which gradients are reduced.",
        costs="Half the bytes for 16 bits, and less exact sums.",
        fsdp2="MixedPrecisionPolicy(reduce_dtype=...).",
        choices=("fp32", "fp16", "bf16"),
    ),
    f"{_ZERO}.stage": Setting(
        kind="whole number",
        does="What is sharded: 0 nothing, 1 optimizer state, 2 gradients as well, 3 parameters as well.",
        costs="Sent in a step: 2Ψ at stage 0; 3Ψ at 1 and 2, which all-reduce by default where the paper has 2Ψ; 3Ψ "
        "at 3.",
        fsdp2="3: fully_shard. 2: fully_shard(..., reshard_after_forward=False). 1: ZeroRedundancyOptimizer with DDP.",
        default="0",
        choices=(0, 1, 2, 3),
    ),
    f"{_ZERO}.reduce_scatter": Setting(
        kind="bool",
        does="Stages 1 and 2: lets each rank receive its part of the gradients alone.",
        costs="Less volume in principle; see use_multi_rank_bucket_allreduce, which overrules it.",
        fsdp2="FSDP2 always reduce-scatters.",
        default="True",
    ),
    f"{_ZERO}.use_multi_rank_bucket_allreduce": Setting(
        kind="bool",
        does="Stages 1 and 2: all-reduces a bucket that has parts of several ranks, instead of a reduce for each.",
        costs="Fewer calls, and twice the volume of the gradients.",
        fsdp2="FSDP2 always reduce-scatters.",
        default="True",
    ),
    f"{_ZERO}.reduce_bucket_size": Setting(
        kind="whole number",
        does="Elements of gradients that are reduced together.",
        costs="A buffer of that many elements with contiguous_gradients, however small the model: 2 GB in fp32 by "
        "default. Small buckets mean many calls.",
        fsdp2="The size of a unit: what you call fully_shard on.",
        default="500,000,000",
    ),
    f"{_ZERO}.allgather_bucket_size": Setting(
        kind="whole number",
        does="Stages 1 and 2: elements of updated parameters that are gathered together.",
        costs="A buffer of that many elements.",
        fsdp2="The size of a unit.",
        default="500,000,000",
    ),
    f"{_ZERO}.contiguous_gradients": Setting(
        kind="bool",
        does="Copies gradients into one buffer as they come.",
        costs="The buffer, and a copy; in return no fragments.",
        fsdp2="Always so: a unit's gradients are copied into one tensor to be reduced.",
        default="True",
    ),
    f"{_ZERO}.overlap_comm": Setting(
        kind="bool",
        does="Reduces gradients while backward goes on.",
        costs="Time is saved; a second bucket is held meanwhile at stages 1 and 2.",
        fsdp2="Always so.",
        default="True at stage 3, else False",
    ),
    f"{_ZERO}.sub_group_size": Setting(
        kind="whole number",
        does="Stage 3: elements that the optimizer updates at once.",
        costs="A small one needs less memory in the step, and takes longer.",
        fsdp2="None; torch optimizers work through tensors.",
        default="1,000,000,000",
    ),
    f"{_ZERO}.round_robin_gradients": Setting(
        kind="bool",
        does="Stages 1 and 2 with offload: deals gradients out finely, so that ranks copy to the host side by side.",
        costs="Nothing.",
        fsdp2="None.",
        default="False",
    ),
    f"{_ZERO}.stage3_prefetch_bucket_size": Setting(
        kind="whole number",
        does="Elements of parameters that are gathered ahead of their use.",
        costs="Their memory, for less waiting.",
        fsdp2="One unit ahead by itself; module.set_modules_to_forward_prefetch([...]) for more.",
        default="50,000,000",
    ),
    f"{_ZERO}.stage3_param_persistence_threshold": Setting(
        kind="whole number",
        does="Parameters with fewer elements stay whole on every rank.",
        costs="Their memory, for fewer small all-gathers. Of a toy, all parameters are small: none is freed.",
        fsdp2="None; small parameters travel with their unit.",
        default="100,000",
    ),
    f"{_ZERO}.stage3_max_live_parameters": Setting(
        kind="whole number",
        does="Elements of gathered parameters that may be there before some are freed.",
        costs="Their memory, for fewer all-gathers. Below a billion parameters nothing is freed by default.",
        fsdp2="reshard_after_forward, for each unit.",
        default="1,000,000,000",
    ),
    f"{_ZERO}.stage3_max_reuse_distance": Setting(
        kind="whole number",
        does="A parameter that is used again within that many elements is not freed.",
        costs="Its memory, for fewer all-gathers.",
        fsdp2="reshard_after_forward, for each unit.",
        default="1,000,000,000",
    ),
    f"{_ZERO}.stage3_gather_16bit_weights_on_model_save": Setting(
        kind="bool",
        does="save_16bit_model gathers the whole model first.",
        costs="The whole model in 16 bits, on the rank that saves.",
        fsdp2="get_model_state_dict with StateDictOptions(full_state_dict=True, cpu_offload=True).",
        default="False",
    ),
    f"{_ZERO}.zero_hpz_partition_size": Setting(
        kind="whole number",
        does="Stage 3: keeps a second copy of the parameters, sharded over that many ranks of a node.",
        costs="The copy; in return backward gathers within the node.",
        fsdp2="fully_shard(..., reshard_after_forward=<ranks of a node>).",
        default="1",
    ),
}

for _section in _OFFLOAD:
    _what = "optimizer state, and its computation," if _section == "offload_optimizer" else "parameters"
    SETTINGS |= {
        f"{_ZERO}.{_section}.device": Setting(
            kind="text",
            does=f"Where {_what} live between uses.",
            costs="Memory of the host or the disk for memory of the GPU, and a way over PCIe in each step.",
            fsdp2="fully_shard(..., offload_policy=CPUOffloadPolicy()): parameters, gradients and optimizer, together.",
            default="none",
            choices=("none", "cpu", "nvme"),
        ),
        f"{_ZERO}.{_section}.pin_memory": Setting(
            kind="bool",
            does="Host memory that cannot be paged out, which a GPU can copy from by itself.",
            costs="Faster copies; the host has that memory no longer for anything else.",
            fsdp2="CPUOffloadPolicy(pin_memory=...).",
            default="True",
        ),
        f"{_ZERO}.{_section}.nvme_path": Setting(
            kind="text", does="The folder for device nvme.", costs="Disk.", fsdp2="None: FSDP2 offloads to the host."
        ),
    }

SECTIONS = frozenset(name.rpartition(".")[0] for name in SETTINGS if "." in name) | {_ZERO}
"""Names whose value is a section with names of its own."""

UNEXPLAINED = frozenset(
    [
        *("steps_per_print", "dump_state", "wall_clock_breakdown", "memory_breakdown", "log_level", "scheduler"),
        *("flops_profiler", "tensorboard", "wandb", "csv_monitor", "comet", "comms_logger", "timers", "autotuning"),
        *("activation_checkpointing", "checkpoint", "data_types", "data_efficiency", "aio", "pipeline", "compile"),
        *("torch_autocast", "tensor_parallel", "sequence_parallel_size", "gradient_allreduce_op", "hybrid_engine"),
        *("prescale_gradients", "gradient_predivide_factor", "dataloader_drop_last", "disable_allgather", "inference"),
        *("managed_gradient_accumulation", "seq_parallel_communication_data_type", "expert_parallel"),
        *("weight_quantization", "use_data_before_expert_parallelism", "vocabulary_size", "disable_python_gc"),
        *("optimizer.legacy_fusion", "fp16.initial_scale_power", "fp16.loss_scale_window", "fp16.hysteresis"),
        *("fp16.min_loss_scale", "fp16.auto_cast", "fp16.consecutive_hysteresis"),
        *("fp16.fp16_master_weights_and_grads", "bf16.immediate_grad_update", "bf16.check_grad_overflow"),
        *("bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states"),
        *(
            f"{_ZERO}.{name}"
            for name in (
                *("allgather_partitions", "load_from_fp32_weights", "elastic_checkpoint", "legacy_stage1"),
                *("ignore_unused_parameters", "parameter_alignment", "compute_grad_norm", "memory_efficient_linear"),
                *("zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients"),
                *("pipeline_loading_checkpoint", "override_module_apply", "log_trace_cache_warnings", "leaf_module"),
                *("enable_sanity_checks", "zenflow", "stage3_model_persistence_threshold"),
                *("stage3_module_granularity_threshold", "stage3_use_all_reduce_for_fetch_params"),
                *("stage3_allgather_sequential", "save_muon_momentum_buffer_in_memory"),
            )
        ),
        *(f"{_ZERO}.{section}.buffer_count" for section in _OFFLOAD),
        *(f"{_ZERO}.offload_param.{name}" for name in ("buffer_size", "max_in_cpu")),
        *(
            f"{_ZERO}.offload_optimizer.{name}"
            for name in ("pipeline_read", "pipeline_write", "fast_init", "ratio", "super_offload", "cpuadam_cores_perc")
        ),
    ]
)
"""Names that DeepSpeed knows and that are not explained: they do not affect sharding, or are rare."""

GONE: dict[str, str] = {
    **dict.fromkeys(
        ("nebula", "compression_training", "quantize_training", "sparse_gradients", "eigenvalue", "sparse_attention"),
        "DeepSpeed has removed it, and refuses the configuration. Take it out.",
    ),
    "amp": "DeepSpeed has removed it. Use bf16 or fp16.",
    "elasticity": "DeepSpeed has removed it. Set the sizes of batches yourself.",
    "curriculum_learning": "DeepSpeed has removed it. Use data_efficiency.",
    f"{_ZERO}.cpu_offload": "It is out of date. Use offload_optimizer with device cpu.",
    f"{_ZERO}.cpu_offload_param": "It is out of date. Use offload_param with device cpu.",
    f"{_ZERO}.cpu_offload_use_pin_memory": "It is out of date. Use pin_memory in offload_optimizer or offload_param.",
    f"{_ZERO}.stage3_gather_fp16_weights_on_model_save": "It is out of date. Use "
    "stage3_gather_16bit_weights_on_model_save.",
}
"""Names that DeepSpeed has removed or replaced, with the message about each."""
