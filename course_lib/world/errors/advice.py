"""Advice on exceptions whose text says too little."""

import re

_NO_GPU = (
    "this torch finds no GPU here. On simulated ranks and processes, pretend GPUs: World(…, gpus=True). Or run on the "
    'CPU: leave out what names CUDA or NCCL (`device = "cuda" if torch.cuda.is_available() else "cpu"`). Or run it on '
    'a machine with GPUs: World(…, backend="nccl"). If GPUs are pretended already, leave that line out: they lack what '
    "it asks for."
)

_NEEDS_GPU = re.compile(
    r"attribute '_cuda_|compiled with CUDA|CUDA (support|generator|GPUs|driver)|NVIDIA driver|no GPUs found"
    r"|NCCL built in|accelerator device when none|cuda.is_available\(\) is False|dummy base class Event"
)
"""Parts of torch's errors about a GPU that is not there."""

_UNKNOWN_GROUP = (
    "pass a process group as group=: what new_group or mesh.get_group() returns. If it is one, find where the program "
    "keeps it: this rank has destroyed it, or never had it. Simulated ranks share what an imported module keeps in a "
    "variable or a cache, and may find the group of a different rank there. "
    'World(…, backend="processes") gives each rank modules of its own.'
)

_ADVICE = {
    "device_ids and output_device arguments only work with": (
        'leave out device_ids: this model is on the CPU. With GPUs, pretended or in World(…, backend="nccl"), move '
        "the model to the GPU first."
    ),
    "is not initialized in the world group map": _UNKNOWN_GROUP,
    "is not registered, please create group": _UNKNOWN_GROUP,
    "Could not resolve the process group registered under": _UNKNOWN_GROUP,
    "Default process group has not been initialized": (
        "a program calls init_process_group first. World.run makes the default group for you, for the thread that your "
        "function runs on, and destroy_process_group ends it. Call collectives there, not from a thread of your own."
    ),
    "a leaf Variable that requires grad is being used in an in-place operation": (
        "write into a parameter inside `with torch.no_grad():`, or into its `.data`. For any other tensor, make a new "
        "one: `x = x - y` instead of `x -= y`."
    ),
    "Expected to have finished reduction in the prior iteration": (
        "Some parameters got no gradient on this rank. If the loss should use them, look for a detach() or a "
        "dist.all_gather, through which no gradient flows. If not, pass find_unused_parameters=True. "
        "To read their names here, call dist.set_debug_level(dist.DebugLevel.INFO) before you make the DDP: torch "
        "reads TORCH_DISTRIBUTED_DEBUG only when it is imported."
    ),
    "' is not defined": (
        "correct the name, or define it before that line. In a notebook, run the cell that defines it (after a restart "
        "of the kernel, all cells above). A cell with %%ranks, and a program, see only names of their own."
    ),
    "a dry run has no numbers": (
        "decide by what is known without computing, such as shapes, ranks and Python's own numbers, or leave that line "
        "out of the dry run. Where the number matters, run the function in a small world: World(4)."
    ),
    "<torch.distributed.distributed_c10d.ProcessGroup object": _UNKNOWN_GROUP,  # a KeyError; last: others name one, too
}
"""The advice on an error, by a part of its text. The first that fits counts."""


def advice_for(message: str) -> str:
    """Return what to do next about an error; empty if nothing is known."""
    if _NEEDS_GPU.search(message):
        return _NO_GPU
    return next((advice for part, advice in _ADVICE.items() if part in message), "")
