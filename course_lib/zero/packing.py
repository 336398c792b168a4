"""Parameters on their way from their owners to everyone: in few messages, however many parameters there are.

    owner       the rank that updates a parameter: see sharded_optimizer.py
    message     a tensor that its owner broadcasts: a large parameter itself, or a buffer with several small ones

The messages are all under way at once: they have different roots, which on a ring begin at different places.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

SMALL_BYTES = 2**20
"""Parameters below this size share a message: their broadcast would cost more than two copies."""


@torch.no_grad()
def broadcast(params: Sequence[Tensor], owner: Mapping[Tensor, int], group: dist.ProcessGroup | None) -> None:
    """Give every rank the values that each of `params` has on its owner. To be called on every rank of `group`.

    Args:
        params: the same on every rank, in the same order.
        owner: of each, by its rank in the group.
        group: the ranks that share them.
    """
    messages = [(owner[param], param) for param in params if _travels_alone(param)]
    packed = []
    for rank, small in by_owner((param for param in params if not _travels_alone(param)), owner):
        message = torch.cat([param.flatten() for param in small])
        messages.append((rank, message))
        packed.append((small, message))
    send(messages, group)
    for small, message in packed:
        for param, values in zip(small, message.split([param.numel() for param in small]), strict=True):
            param.copy_(values.view_as(param))


def _travels_alone(param: Tensor) -> bool:
    return param.nbytes >= SMALL_BYTES and param.is_contiguous()


def send(messages: Iterable[tuple[int, Tensor]], group: dist.ProcessGroup | None) -> None:
    """Broadcast each message from its owner, all at once, and wait until they have arrived."""
    works = [dist.broadcast(message, group_src=rank, group=group, async_op=True) for rank, message in messages]
    for work in works:
        work.wait()


def by_owner(params: Iterable[Tensor], owner: Mapping[Tensor, int]) -> list[tuple[int, list[Tensor]]]:
    """Each owner's `params`; one entry for each device that they are on."""
    shares: dict[tuple[int, torch.device], list[Tensor]] = defaultdict(list)
    for param in params:
        shares[owner[param], param.device].append(param)
    return [(rank, share) for (rank, _), share in shares.items()]


def into_one_buffer(params: Sequence[Tensor]) -> Tensor:
    """Move the values of `params` into one new buffer, of which they become views."""
    buffer = torch.cat([param.detach().flatten() for param in params])
    for param, values in zip(params, buffer.split([param.numel() for param in params]), strict=True):
        param.data = values.view_as(param)
    return buffer
