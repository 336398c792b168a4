"""Rank state: random numbers, output, environment variables and a stoppable sleep for each simulated rank.

While ranks run, replacements look up the calling thread: a rank's thread gets its own state, others the process's.
"""

from __future__ import annotations

import io
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, MutableMapping
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import torch

from ..torch_hooks import interposer
from ..torch_hooks.patching import Replacement
from .printing import Printed

TORCH_SEED = 67280421310721  # the seed of torch in a new process (`c10::detail::default_rng_seed_val`)

_sleep = time.sleep


def _own() -> RankState | None:
    return getattr(interposer.current(), "rank_state", None)


class RankState:
    """The random generators, the output and the environment variables of one rank.

    Attributes:
        stopping: the rank must stop.
        printed: its output.

    In new processes, the operating system seeds torch, Python and NumPy. Here torch starts from the same seed on every
    rank, as the first lessons need it, and the rank number seeds Python and NumPy. So every run gives the same numbers.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self.environ = dict(os.environ) | rank_variables(rank, world_size)
        self.torch = torch.Generator()
        self.torch.manual_seed(TORCH_SEED)
        self.python = random.Random(rank)
        self.stopping = False
        self._rank = rank
        self.printed = Printed()
        self._unshown: list[tuple[str, bool]] = []

    @cached_property
    def numpy(self) -> np.random.RandomState:
        """Return NumPy's generator; made when first used, because that takes as long as all the rest."""
        return np.random.RandomState(self._rank)

    def write(self, text: str, *, errors: bool) -> None:
        text = text.encode(errors="replace").decode()  # half an emoji becomes "?", as on a rank that is a process
        self._unshown.append((self.printed.add(text), errors))

    def new_output(self) -> list[tuple[str, bool]]:
        """Return what was written since the last call, and whether it goes to stderr."""
        new = list(self._unshown)
        del self._unshown[: len(new)]  # the rank may have written more meanwhile
        return [("".join(text for text, _ in part), errors) for errors, part in groupby(new, lambda one: one[1])]

    def sleep(self, seconds: float) -> None:
        """Sleep in short naps, between which the thread can be stopped. Return after one if the rank must stop."""
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            _sleep(min(left, 0.02))
            if self.stopping:
                return


def rank_variables(rank: int, world_size: int) -> dict[str, str]:
    """Return the environment variables that torchrun would set if all ranks are on one machine."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    return {name: str(number) for name, number in ranks.items()}


def seed_process(rank: int) -> None:
    """Seed this process's generators by the rank number. So every run gives the same numbers, and ranks that start from
    different weights are noticed, as they are under torchrun."""
    torch.manual_seed(TORCH_SEED + rank)
    random.seed(rank)
    np.random.seed(rank)


class _EnvironOfThread(MutableMapping[str, str]):
    """A replacement for `os.environ`: each rank has a copy, with the variables that torchrun would set."""

    def __init__(self, process_environ: MutableMapping[str, str]) -> None:
        self._process_environ = process_environ

    def _mine(self) -> MutableMapping[str, str]:
        rank_state = _own()
        return self._process_environ if rank_state is None else rank_state.environ

    def __getitem__(self, name: str) -> str:
        return self._mine()[name]

    def __setitem__(self, name: str, value: str) -> None:
        self._mine()[name] = value

    def __delitem__(self, name: str) -> None:
        del self._mine()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._mine())

    def __len__(self) -> int:
        return len(self._mine())

    def copy(self) -> dict[str, str]:
        return dict(self._mine())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process_environ, name)  # encodekey and others, which subprocess uses


class _TextOf:
    """A replacement for `sys.stdout` and `sys.stderr`, which are None if the shell has closed them with `>&-`."""

    def __init__(self, process_stream: Any, *, errors: bool) -> None:
        self._process_stream = io.StringIO() if process_stream is None else process_stream
        self._errors = errors

    def write(self, text: str) -> int:
        rank_state = _own()
        if rank_state is None:
            return int(self._process_stream.write(text))
        rank_state.write(text, errors=self._errors)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process_stream, name)


def _function_of(process_function: Callable[..., Any], stream: str, name: str) -> Callable[..., Any]:
    """Return a replacement for a function of `random`, `numpy.random` or `time` that calls the rank's own method."""

    def call(*args: Any, **kwargs: Any) -> Any:
        rank_state = _own()
        if rank_state is None:
            return process_function(*args, **kwargs)
        return getattr(getattr(rank_state, stream) if stream else rank_state, name)(*args, **kwargs)

    return call


def replacements() -> Iterator[Replacement]:
    yield sys, "stdout", _TextOf(sys.stdout, errors=False)
    yield sys, "stderr", _TextOf(sys.stderr, errors=True)
    yield os, "environ", _EnvironOfThread(os.environ)
    yield time, "sleep", _function_of(time.sleep, "", "sleep")
    for module, a_function, stream in ((random, random.random, "python"), (np.random, np.random.rand, "numpy")):
        shared = getattr(a_function, "__self__")  # noqa: B009 (the hidden generator whose methods these modules export)
        for name, function in vars(module).items():
            if getattr(function, "__self__", None) is shared:
                yield module, name, _function_of(function, stream, name)
    for name, method in {"seed": "seed", "ranf": "random_sample", "sample": "random_sample"}.items():
        yield np.random, name, _function_of(getattr(np.random, name), "numpy", method)  # plain functions in NumPy 2
