"""A training loop with DeepSpeed, if it is installed, for ranks that are processes.

DeepSpeed's state belongs to the process: groups, a communicator that it creates once, counters, and its own `linear`,
which stage 3 leaves in torch. A rank's process survives from run to run and gets a new group each time, so all of that
state is restored.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import CourseError

if TYPE_CHECKING:
    from torch import Tensor, nn


def deepspeed_version() -> str | None:
    """Return the installed version, or None. DeepSpeed is not imported."""
    try:
        return importlib.metadata.version("deepspeed")
    except importlib.metadata.PackageNotFoundError:
        return None


def train(
    make_model: Callable[[], nn.Module],
    batch: Callable[[int], tuple[Tensor, Tensor]],
    loss_of: Callable[[Tensor, Tensor], Tensor],
    config: Mapping[str, Any],
    steps: int,
    *,
    resume: str | None = None,
    save: str | None = None,
) -> list[float]:
    """Train with DeepSpeed as `config` says, and return this rank's losses. For `World(n, backend="processes").run`.

    Args:
        make_model: makes the same model on every rank.
        batch: returns this rank's inputs and targets of a step.
        loss_of: the mean loss of outputs and targets.
        config: with an optimizer.
        steps: the number of steps.
        resume: the folder of a checkpoint, from whose step training goes on. If a different number of ranks saved it,
            make it `universal`, and add `"checkpoint": {"load_universal": True}` to the config.
        save: the folder to which all ranks save a checkpoint at the end.

    Raises:
        CourseError: there is no checkpoint to resume.
    """
    with _deepspeed() as deepspeed:
        model = make_model()
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=dict(config))
        if resume and engine.load_checkpoint(resume)[0] is None:
            raise _no_checkpoint(resume)
        begin = engine.global_steps * engine.gradient_accumulation_steps()
        losses = [_step(engine, loss_of, *batch(step)) for step in range(begin, begin + steps)]
        if save:
            engine.save_checkpoint(save)
        engine.destroy()
    return losses


def _step(engine: Any, loss_of: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, targets: Tensor) -> float:
    loss = loss_of(engine(inputs), targets)
    engine.backward(loss)
    engine.step()
    return loss.item()


def universal(folder: str) -> None:
    """Convert the checkpoint that was last saved to `folder`, so that any number of ranks can resume it from there.

    Runs DeepSpeed's own program, which writes each parameter whole next to the shards. For stages 1, 2 and 3; without
    ZeRO there are no shards.

    Raises:
        CourseError: there is no checkpoint, or DeepSpeed cannot convert it.
    """
    latest = Path(folder, "latest")
    if not latest.is_file():
        raise _no_checkpoint(folder)
    saved = latest.with_name(latest.read_text("utf-8"))
    converted = subprocess.run(
        [
            *(sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal"),
            *("--input_folder", saved, "--output_folder", f"{saved}_universal"),
            "--inject_missing_state",  # stages 1 and 2 need state that Megatron writes; empty state is enough
        ],
        env=os.environ | _accelerator(),
        capture_output=True,
        text=True,
    )
    if converted.returncode != 0:
        why = (converted.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise CourseError(f"DeepSpeed could not convert {saved}: {why}. Only stages 1, 2 and 3 have what it needs.")


def _no_checkpoint(folder: str) -> CourseError:
    return CourseError(f"{folder} has no checkpoint of DeepSpeed's. Name the folder that one was saved to.")


@contextmanager
def _deepspeed() -> Iterator[Any]:
    """Initialize DeepSpeed on this rank's group, and restore its state afterwards."""
    import torch.distributed as dist
    from torch.nn import functional

    rank, world_size = dist.get_rank(), dist.get_world_size()
    os.environ |= _accelerator() | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it uses names of collectives that torch has replaced
        import deepspeed
        from deepspeed.comm import comm
        from deepspeed.ops import __compatible_ops__
        from deepspeed.runtime.zero.parameter_offload import DeepSpeedZeRoOffload
        from deepspeed.runtime.zero.partition_parameters import Init
        from deepspeed.utils import groups, logger

        logger.setLevel("ERROR")
        __compatible_ops__["deepspeed_shm_comm"] = False  # compiling it would take most of a minute
        # Stage 3 continues its numbering of parameters and modules from model to model, and compares the numbers over
        # ranks. They would differ if some of these ranks have run more models before.
        Init.param_id = 0
        DeepSpeedZeRoOffload._register_deepspeed_module.__defaults__[0][0] = 0
        with _put_back(comm), _put_back(groups), _put_back(functional):
            deepspeed.init_distributed(dist_backend=dist.get_backend())
            yield deepspeed


def _accelerator() -> dict[str, str]:
    """Return the setting that stops DeepSpeed from searching for a GPU, if there is none."""
    import torch

    return {} if torch.cuda.is_available() else {"DS_ACCELERATOR": "cpu"}


@contextmanager
def _put_back(module: ModuleType) -> Iterator[None]:
    before = dict(vars(module))
    try:
        yield
    finally:
        vars(module).update(before)
