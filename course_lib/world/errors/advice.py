"""Advice on exceptions whose text says too little."""

import re
import sys

_NO_GPU = (
    "this torch finds no GPU here. On simulated ranks and processes, but not in a dry run, pretend GPUs: "
    "World(…, gpus=True). Or run on the CPU: leave out what names CUDA or NCCL "
    '(`device = "cuda" if torch.cuda.is_available() else "cpu"`). Or run it on a machine with GPUs: '
    'World(…, backend="nccl"). If GPUs are pretended already, leave that line out: they lack what '
    "it asks for."
)

_NEEDS_GPU = re.compile(
    r"attribute '_cuda_|compiled with CUDA|CUDA (support|generator|GPUs|driver)|NVIDIA driver|no GPUs found"
    r"|NCCL built in|required CUDA|accelerator device when none|cuda.is_available\(\) is False|dummy base class Event"
)
"""Parts of torch's errors about a GPU that is not there."""

_UNKNOWN_GROUP = (
    "pass a process group as group=: what new_group or mesh.get_group() returns. If it is one, find where the program "
    "keeps it: this rank has destroyed it, or never had it. Simulated ranks share what an imported module keeps in a "
    "variable or a cache, and may find the group of a different rank there. "
    'World(…, backend="processes") gives each rank modules of its own.'
)

_STORE = (
    "compare the keys of the store: this rank waits for one that no rank has set, or the rank that keeps the store has "
    "ended (a barrier before its end prevents this)."
)

_NOT_CALLED = "a function stands there instead of its result: look for missing parentheses, as in `dist.get_rank()`."

_SHAPES = (
    "gloo, the backend of this world, compares shapes, and NCCL only counts elements. Pass a view of the large tensor "
    "with the parts one after the other: whole.view(-1, *part.shape[1:])."
)

_SAME_MODEL = (
    "build the same model on every rank, and freeze the same parameters: let rank 0 choose what its shape depends on, "
    "and send that to the others with dist.broadcast_object_list."
)

_ADVICE = {
    "'UserDefinedDictVariable' object has no attribute 'len'": (
        "torch 2.11 and 2.12 cannot compile a module on simulated ranks, which have hooks of their own. Give each "
        'rank a process: World(…, backend="processes"); or take torch 2.13 or newer.'
    ),
    "has no attribute 'set_reduce_scatter_unused_params'": (
        "FSDP2 has this method since torch 2.13. Take that, or let every rank use the module: a rank that does not "
        "need it passes it zeros."
    ),
    "device_ids and output_device arguments only work with": (
        'leave out device_ids: this model is on the CPU. With GPUs, pretended or in World(…, backend="nccl"), move '
        "the model to the GPU first."
    ),
    "no accelerator device is detected": (
        'without GPUs, pass FullyShardedDataParallel device_id=torch.device("cpu"), which trains on the CPU. On '
        "simulated ranks and processes, you can also pretend GPUs: World(…, gpus=True)."
    ),
    "SyncBatchNorm ": (
        "move the model and its input to the GPU first: SyncBatchNorm does not work on the CPU. Without GPUs, pretend "
        "them: World(…, gpus=True). Or leave out `convert_sync_batchnorm` on the CPU."
    ),
    "is not initialized in the world group map": _UNKNOWN_GROUP,
    "is not registered, please create group": _UNKNOWN_GROUP,
    "Could not resolve the process group registered under": _UNKNOWN_GROUP,
    "trying to initialize the default process group twice": (
        "the group is there. Leave out the second init_process_group, or call destroy_process_group before it."
    ),
    "does not implement startCoalescing": (
        "leave out device=. gloo, the backend of this world, merges calls only without it. NCCL also merges them with "
        "it."
    ),
    "Gloo backend using Overlapping DDP with ZeRO": (
        "leave out this hook. gloo, the backend of this world, cannot overlap DDP with ZeroRedundancyOptimizer. NCCL "
        "can."
    ),
    "::alltoall: invalid tensor size": (
        "gloo, the backend of this world, needs parts of one size in the lists of all_to_all, and NCCL does not. Join "
        "the parts, and call all_to_all_single(output, input, output_split_sizes, input_split_sizes)."
    ),
    "put_split_sizes=[": (
        "all_to_all_single takes the split sizes of the output before those of the input: look whether they are "
        "swapped. If not, compare each list with the first dimension of its tensor."
    ),
    "invalid tensor size at index": _SHAPES,
    "Check failed: outputShape[0] * worldSize": _SHAPES,
    "Default process group has not been initialized": (
        "a program calls init_process_group first. World.run makes the default group for you, for the thread that your "
        "function runs on, and destroy_process_group ends it. Call collectives there, not from a thread of your own."
    ),
    "a leaf Variable that requires grad is being used in an in-place operation": (
        "write into a parameter inside `with torch.no_grad():`, or into its `.data`. For any other tensor, make a new "
        "one: `x = x - y` instead of `x -= y`."
    ),
    "CUDA out of memory. Tried to allocate": (
        "look at the largest part of what the GPU holds. Shard parameters, gradients or optimizer state over more "
        "ranks, recompute activations, or take a smaller batch. Activations that stay belong to a kept graph: "
        "keep loss.item(), not the loss, and evaluate under torch.no_grad(). Communication that grows is often "
        "gathered results that the program keeps: reduce before you gather, or move them to the CPU. `other` that "
        "grows is often a list of results: keep numbers, or `y.detach().cpu()`."
    ),
    "Failed to recv, got 0 bytes": _STORE,
    "wait timeout after": _STORE,
    "Wait timeout": _STORE,  # a HashStore's
    "is not part of group": "src and dst are global ranks, and must belong to the group that you pass.",
    "Invalid process group specified": (
        "this rank is not in that group. Make the call on its members only, with members' global ranks as src or dst."
    ),
    "signal only works in main thread": (
        "Python sets signal handlers only in a main thread, and simulated ranks are threads. Give each rank a process: "
        'World(…, backend="processes"). If you started this thread, set the handler outside of it.'
    ),
    "not compatible with static_graph": (
        "leave out static_graph=True, or use the same parameters in every step. find_unused_parameters=True allows "
        "parameters without a gradient."
    ),
    "DDP expects same model across all ranks": _SAME_MODEL,
    "appears not to match sizes of the same param in process": _SAME_MODEL,
    "DataLoader worker (pid": (
        "a process that loads data has ended, and this rank learns it at any line. If it was killed, memory probably "
        "ran out: take fewer workers (num_workers=). Read its output, or pass num_workers=0, which shows its errors."
    ),
    "Expected to have finished reduction in the prior iteration": (
        "Some parameters got no gradient on this rank. If the loss should use them, look for a detach() or a "
        "dist.all_gather, through which no gradient flows. If not, pass find_unused_parameters=True. "
        "To read their names here, call dist.set_debug_level(dist.DebugLevel.INFO) before you make the DDP: torch "
        "reads TORCH_DISTRIBUTED_DEBUG only when it is imported."
    ),
    "marked as ready twice": (
        "if you use checkpoint, pass it use_reentrant=False. If not, call backward once for each forward, on the sum "
        "of the losses, and use the model's parameters only in the forward of DDP."
    ),
    "' is not defined": (
        "correct the name, or define it before that line. In a notebook, run the cell that defines it (after a restart "
        "of the kernel, all cells above). A cell with %%ranks, and a program, see only names of their own."
    ),
    "cannot access local variable": (
        "a line of the function assigns to this name, so it is a variable of the function: assign to it before that "
        "line (a loop without rounds assigns nothing). If you mean a variable outside, declare it `nonlocal` (`global` "
        "if it is outside all functions), write into it (`x[...] = `, `x.copy_()`), or choose a different name."
    ),
    "No module named": (
        "correct the name, or install the package for the Python that runs this, which may not be the one of your "
        f"program: {sys.executable} -m pip install …"
    ),
    "[Errno 2] No such file or directory: ": (
        "correct the name, or make the file first. If one rank makes it, call dist.barrier() on every rank after that, "
        "and before they read it. If the name holds a time or a random number, let rank 0 choose it, and send it to "
        "the others with dist.broadcast_object_list."
    ),
    "PytorchStreamReader failed": (
        "this file is not complete, or torch.save did not write it. If one rank writes it, call dist.barrier() on "
        "every rank after that, and before they read it."
    ),
    "EOF when reading a line": (
        "a rank that is a process has no standard input, and simulated ranks share that of `course run`, which has "
        "ended. Read a file that an argument names."
    ),
    "An attempt has been made to start a new process": (
        'begin the lines that start processes with `if __name__ == "__main__":`, because each spawned process executes '
        "the file, too."
    ),
    "NoneType": (
        "find where this None comes from: an attribute that was cleared, a gradient that no backward has made, a "
        "function without `return`, a place of a list that nothing has filled."
    ),
    "'function'": _NOT_CALLED,
    "'method'": _NOT_CALLED,
    "'builtin_function_or_method'": _NOT_CALLED,
    "a dry run has no numbers": (
        "decide by what is known without computing, such as shapes, ranks and Python's own numbers, or leave that line "
        "out of the dry run. Where the number matters, run the function in a small world: World(4)."
    ),
    "<torch.distributed.distributed_c10d.ProcessGroup object": _UNKNOWN_GROUP,  # a KeyError; last: others name one, too
}
"""The advice on an error, by a part of its text. The first that fits counts, unless it is in quotes and all of the
text: that is a `KeyError`, such as of a sample's "function"."""


def advice_for(message: str) -> str:
    """Return what to do next about an error; empty if nothing is known."""
    if _NEEDS_GPU.search(message):
        return _NO_GPU
    of_a_key = message if message.startswith("'") else ""
    return next((advice for part, advice in _ADVICE.items() if part in message and part != of_a_key), "")
