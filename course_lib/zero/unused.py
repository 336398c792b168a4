"""Parameters that a rank did not use. The optimizer must leave a parameter alone if no rank used it.

A rank knows only its own. Either all ranks use all parameters, which is checked; or, with
`find_unused_parameters=True`, ranks exchange which ones they used: one small all-reduce, as in DistributedDataParallel.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from .buckets import FlatBucket
from .ranks import Ranks


class Unused:
    """Finds the parameters without a gradient, and shows the averages of the others to the optimizer."""

    def __init__(self, model: nn.Module, ranks: Ranks, find: bool) -> None:
        self._names = {param: name for name, param in model.named_parameters()}
        self._ranks, self._find = ranks, find

    def show_grads(self, buckets: Sequence[FlatBucket]) -> None:
        """Set each shard's `.grad`: its average, or None if no rank used the parameter. Call this on every rank.

        Raises:
            ValueError: this rank did not use a parameter, and does not know whether other ranks did.
        """
        params = [(bucket, param) for bucket in buckets for param in bucket.places]
        if self._find:
            used = torch.tensor([param in bucket.used for bucket, param in params], dtype=torch.uint8)
            used = used.to(buckets[0].device)
            for group in (self._ranks.process_group, self._ranks.replicate_group):
                if group is not None:
                    dist.all_reduce(used, dist.ReduceOp.MAX, group=group)
            for (bucket, param), flag in zip(params, used.tolist(), strict=True):
                bucket.used |= {param} if flag else set()
        elif missing := [self._names[p] for bucket, p in params if p.requires_grad and p not in bucket.used]:
            raise ValueError(
                f"rank {dist.get_rank()}: backward gave no gradient to {', '.join(missing[:3])}"
                f"{f' and {len(missing) - 3} more' if missing[3:] else ''}. Other ranks may have used what this rank "
                "did not. Make the engine with find_unused_parameters=True: then ranks exchange which parameters they "
                "used. If no rank ever uses them, freeze them before: param.requires_grad = False."
            )
        for bucket in buckets:
            bucket.show_grads()
