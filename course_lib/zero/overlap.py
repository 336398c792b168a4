"""All-gathers that are under way while the next forward begins, as in Megatron-Core.

With `gather="next forward"`, `step` only starts the all-gathers. Each unit of forward (see units.py) waits for the
buckets that its parameters are in, just before it begins; so communication overlaps with computation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from .buckets import FlatBucket
from .units import blocks, parameters_by_unit


class Gathers:
    """The all-gathers of updated parameters.

    Args:
        model: whose parameters these are; each must be used only in its own unit's forward.
        when: "step", to wait at once, or "next forward".

    Raises:
        ValueError: `when` is neither.
    """

    def __init__(self, model: nn.Module, buckets: Sequence[FlatBucket], when: str) -> None:
        if when not in ("step", "next forward"):
            raise ValueError(f'gather={when!r}: choose "step", or "next forward" to gather while it computes.')
        self._later = when == "next forward"
        self._works: dict[FlatBucket, Any] = {}
        if self._later:
            bucket_of = {param: bucket for bucket in buckets for param in bucket.places}
            for unit, params in parameters_by_unit(model, blocks(model)).items():
                needed = {bucket_of[param]: None for param in params if param in bucket_of}
                unit.register_forward_pre_hook(partial(self._wait_for, needed))
            model.register_forward_hook(partial(self._wait_for, dict.fromkeys(buckets)))
            model.register_state_dict_pre_hook(partial(self._wait_for, dict.fromkeys(buckets)))
            model.register_load_state_dict_pre_hook(partial(self._wait_for, dict.fromkeys(buckets)))

    def start(self, buckets: Sequence[FlatBucket], all_gather: Callable[[Any], Any]) -> None:
        """Call `all_gather`, which returns a handle, for each bucket, and wait for it when it is needed."""
        self._wait_for(dict(self._works))
        self._works = {bucket: all_gather(bucket) for bucket in reversed(buckets)}
        if not self._later:
            self._wait_for(dict(self._works))

    def _wait_for(self, buckets: Mapping[FlatBucket, Any], *_: Any) -> None:
        for bucket in buckets:
            if bucket in self._works:
                self._works.pop(bucket).wait()
