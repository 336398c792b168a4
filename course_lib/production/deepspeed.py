"""DeepSpeed, where it is installed: a training loop of its kind, to be run on ranks that are processes.

Its state is the process's: groups, and a communicator that it makes once. A rank's process lives on from run to run and
gets a new group each time, so what DeepSpeed remembers is put back at the end.
"""

from __future__ import annotations

import importlib.metadata
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn


def deepspeed_version() -> str | None:
    """The version that is installed; None where none is. DeepSpeed is not imported."""
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
) -> list[float]:
    """This rank's losses, trained by DeepSpeed as `config` says. For `World(n, backend="processes").run`.

    Args:
        make_model: makes the same model on every rank.
        batch: gives this rank's inputs and targets of a step.
        loss_of: the mean loss of outputs and targets.
        config: with an optimizer.
        steps: how many.
    """
    with _deepspeed() as deepspeed:
        model = make_model()
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=dict(config))
        losses = []
        for step in range(steps):
            inputs, targets = batch(step)
            loss = loss_of(engine(inputs), targets)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        engine.destroy()
    return losses


@contextmanager
def _deepspeed() -> Iterator[Any]:
    """DeepSpeed on this rank's group; afterwards it remembers nothing of it."""
    import torch
    import torch.distributed as dist

    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"
    rank, world_size = dist.get_rank(), dist.get_world_size()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it calls collectives by names that torch has replaced
        import deepspeed
        from deepspeed.comm import comm
        from deepspeed.ops import __compatible_ops__
        from deepspeed.utils import groups, logger

        logger.setLevel("ERROR")
        __compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled, for most of a minute
        with _put_back(comm), _put_back(groups):
            deepspeed.init_distributed(dist_backend=dist.get_backend())
            yield deepspeed


@contextmanager
def _put_back(module: ModuleType) -> Iterator[None]:
    before = dict(vars(module))
    try:
        yield
    finally:
        vars(module).update(before)
