"""What a process has of its own and a thread has not: random numbers, output, an environment, a sleep that can end.

While ranks run, stand-ins look up the calling thread: a rank gets its own, every other thread what it always had.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ..torch_hooks.patching import Replacement, SharedContext, replaced

TORCH_SEED = 67280421310721
"""The seed that every fresh process's torch starts from (`c10::detail::default_rng_seed_val`)."""

OUTPUT_LIMIT = 1_000_000
"""Characters kept of what one rank prints; what comes after is counted and dropped."""


class _Local(threading.local):
    rank_state: RankState | None = None


_thread = _Local()
_sleep = time.sleep


class Printed:
    """What one rank printed, up to `OUTPUT_LIMIT` characters."""

    def __init__(self) -> None:
        self._written: list[str] = []
        self._size = 0
        self._dropped = 0

    def add(self, text: str) -> str:
        """Keep `text`, or what of it there is room for: which is returned."""
        kept = text[: max(0, OUTPUT_LIMIT - self._size)]
        self._written.append(kept)
        self._size += len(kept)
        self._dropped += len(text) - len(kept)
        return kept

    @property
    def text(self) -> str:
        """All of it."""
        note = f"\n[{self._dropped} more characters were not kept]\n" if self._dropped else ""
        return "".join(self._written) + note


class RankState:
    """The random streams, the output and the environment variables of one rank.

    As in fresh processes, torch starts from the same seed on every rank. Python's and NumPy's streams, which real
    processes seed from the operating system, start from the rank: they differ, and every run gives the same numbers.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self.environ = dict(os.environ) | rank_variables(rank, world_size)
        self.torch = torch.Generator()
        self.torch.manual_seed(TORCH_SEED)
        self.python = random.Random(rank)
        self.stopping = False
        self.text: dict[str, Any] = {"stdout": self, "stderr": self}  # where the rank's `sys.stdout` leads, and stderr
        self._rank = rank
        self._printed = Printed()

    @cached_property
    def numpy(self) -> np.random.RandomState:
        """NumPy's stream: made when it is first asked for, which takes as long as all else here together."""
        return np.random.RandomState(self._rank)

    def write(self, text: str) -> int:
        """Keep what the rank prints."""
        self._printed.add(text)
        return len(text)

    @property
    def output(self) -> str:
        """All that the rank printed."""
        return self._printed.text

    def sleep(self, seconds: float) -> None:
        """`time.sleep` in short naps: a thread can be stopped only between them. None once the rank is to stop."""
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        end = time.monotonic() + seconds
        while not self.stopping and (left := end - time.monotonic()) > 0:
            _sleep(min(left, 0.02))

    @contextmanager
    def own(self) -> Iterator[None]:
        """Make these the streams of the calling thread."""
        before = _thread.rank_state
        _thread.rank_state = self
        try:
            yield
        finally:
            _thread.rank_state = before


def rank_variables(rank: int, world_size: int) -> dict[str, str]:
    """The environment variables that torchrun would set, where all ranks are on one machine."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    return {name: str(number) for name, number in ranks.items()}


def seed_process(rank: int) -> None:
    """Let this process's own streams start as those of `Streams` do."""
    torch.manual_seed(TORCH_SEED)
    random.seed(rank)
    np.random.seed(rank)


class _EnvironOfThread(MutableMapping[str, str]):
    """Stands in for `os.environ`: each rank has a copy, with the variables that torchrun would set."""

    def __init__(self, process_environ: MutableMapping[str, str]) -> None:
        self._process_environ = process_environ

    def _mine(self) -> MutableMapping[str, str]:
        rank_state = _thread.rank_state
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
        return getattr(self._process_environ, name)  # encodekey and its kin, which subprocess asks for


class _TextOf:
    """Stands in for `sys.stdout` and `sys.stderr`."""

    def __init__(self, name: str, process_stream: Any) -> None:
        self._name, self._process_stream = name, process_stream

    def write(self, text: str) -> int:
        rank_state = _thread.rank_state
        return int((self._process_stream if rank_state is None else rank_state.text[self._name]).write(text))

    def close(self) -> None:
        rank_state = _thread.rank_state
        if rank_state is None:
            self._process_stream.close()
        else:
            rank_state.text[self._name] = closed = io.StringIO()
            closed.close()

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process_stream, name)


def _function_of(process_function: Callable[..., Any], stream: str, name: str) -> Callable[..., Any]:
    """Stands in for a function of `random`, `numpy.random` or `time`: the same method of the rank's own stream."""

    def call(*args: Any, **kwargs: Any) -> Any:
        rank_state = _thread.rank_state
        if rank_state is None:
            return process_function(*args, **kwargs)
        return getattr(getattr(rank_state, stream) if stream else rank_state, name)(*args, **kwargs)

    return call


def _redirected(process_enter: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Stands in for `__enter__` of `redirect_stdout` and `redirect_stderr`, which would redirect all ranks."""

    def enter(redirect: Any) -> Any:
        rank_state = _thread.rank_state
        if rank_state is None:
            return process_enter(redirect)
        redirect._old_targets.append(rank_state.text[redirect._stream])
        rank_state.text[redirect._stream] = redirect._new_target
        return redirect._new_target

    return enter


def _redirected_back(process_exit: Callable[..., Any]) -> Callable[..., Any]:
    """Stands in for their `__exit__`."""

    def leave(redirect: Any, *error: Any) -> None:
        rank_state = _thread.rank_state
        if rank_state is None:
            process_exit(redirect, *error)
        else:
            rank_state.text[redirect._stream] = redirect._old_targets.pop()

    return leave


def _stand_ins() -> Iterator[Replacement]:
    yield sys, "stdout", _TextOf("stdout", sys.stdout)
    yield sys, "stderr", _TextOf("stderr", sys.stderr)
    redirect = contextlib._RedirectStream  # of stdout and of stderr
    yield redirect, "__enter__", _redirected(redirect.__enter__)
    yield redirect, "__exit__", _redirected_back(redirect.__exit__)
    yield os, "environ", _EnvironOfThread(os.environ)
    yield time, "sleep", _function_of(time.sleep, "", "sleep")
    for module, a_function, stream in ((random, random.random, "python"), (np.random, np.random.rand, "numpy")):
        shared = getattr(a_function, "__self__")  # noqa: B009 (the hidden generator whose methods these modules export)
        for name, function in vars(module).items():
            if getattr(function, "__self__", None) is shared:
                yield module, name, _function_of(function, stream, name)
    for name, method in {"seed": "seed", "ranf": "random_sample", "sample": "random_sample"}.items():
        yield np.random, name, _function_of(getattr(np.random, name), "numpy", method)  # plain functions in NumPy 2


streams_by_thread = SharedContext(lambda: replaced(_stand_ins()))
"""While it is in use, threads may have streams of their own."""
