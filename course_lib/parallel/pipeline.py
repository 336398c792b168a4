"""Pipeline parallel: each rank has some consecutive blocks of the model; micro-batches travel through the ranks.

part         the blocks that this rank has, see schedules.py; with interleaving a rank has several
activation   [batch, length, width], sent to the next part in forward; its gradient comes back in backward
tag          tells the messages between two ranks apart: by direction, part and micro-batch
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..data import TinyGPT
from .collectives import Group
from .schedules import Action


class PipelinePart(nn.Module):
    """Part `number` of `count` of a TinyGPT, with the parameter names of the whole model.

    The first part also has the embeddings, the last the norm and the head. Blocks that do not divide evenly go to the
    first parts, one more each.

    Raises:
        ValueError: the weights are tied, and there is more than one part.
    """

    no_rows: Tensor

    def __init__(self, model: TinyGPT, number: int, count: int) -> None:
        super().__init__()
        if count > 1 and model.head.weight is model.embedding.weight:
            raise ValueError(
                "embedding and head are one weight, and a pipeline would train two. Make TinyGPT with tied=False."
            )
        self.is_first, self.is_last = number == 0, number == count - 1
        # Activations have the length, dtype and device of its rows, also after `.to(...)`.
        self.register_buffer("no_rows", model.embedding.weight.detach()[:0].clone(), persistent=False)
        if self.is_first:
            self.embedding, self.positions = model.embedding, model.positions
        if self.is_last:
            self.norm, self.head = model.norm, model.head
        blocks = dict(model.blocks.named_children())
        each, more = divmod(len(blocks), count)
        begin = number * each + min(number, more)
        names = [str(place) for place in range(begin, begin + each + (number < more))]
        self.blocks = nn.ModuleDict({name: blocks[name] for name in names})

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens [batch, length] or activations to activations [batch, length, width] or scores."""
        if self.is_first:
            x = self.embedding(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks.values():
            x = block(x)
        if self.is_last:
            x = self.head(self.norm(x))
        return x


class Pipeline:
    """Runs this rank's parts through a schedule.

    Args:
        parts: this rank's parts by their numbers among all, {rank: part} without interleaving, which needs at least two
            ranks: a rank sends nothing to itself.
        schedule: this rank's actions, from schedules.py.
        loss_fn: the mean loss of scores and targets, on the rank that has the last part. A micro-batch counts by all
            its targets, also those of -100, which `cross_entropy` leaves out of its mean.
        group: the ranks of the pipeline; all of them by default.
        backward_group: the same ranks, for gradients. With NCCL, pass one: in a single group, the two directions
            between two ranks would wait for each other, because they are not in one `batch_isend_irecv`.
    """

    def __init__(
        self,
        parts: dict[int, PipelinePart],
        schedule: Sequence[Action],
        loss_fn: Callable[[Tensor, Tensor], Tensor],
        group: Group = None,
        backward_group: Group = None,
    ) -> None:
        self.parts, self.schedule, self.loss_fn = parts, schedule, loss_fn
        self.groups = {"forward": group, "backward": backward_group or group}
        self.world_size = dist.get_world_size(group)

    def step(self, inputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor | None:
        """Accumulate the gradients of the mean loss over all tokens of all micro-batches.

        Args:
            inputs, targets: tokens [batch, length] of each micro-batch, on every rank: whole sequences. They may differ
                in size.

        Returns:
            The mean loss, on the rank that has the last part; None on the others.

        Raises:
            ValueError: the schedule is for a different number of micro-batches.
        """
        scheduled = len({action.micro_batch for action in self.schedule})
        if not len(inputs) == len(targets) == scheduled:
            raise ValueError(
                f"rank {dist.get_rank()}: {len(inputs)} micro-batches of inputs and {len(targets)} of targets, and a "
                f"schedule for {scheduled}. Cut the batch into as many micro-batches as the schedule has."
            )
        tokens = sum(target.numel() for target in targets)
        arrived: dict[Action, Tensor] = {}  # what a part was given, while its backward has not come
        computed: dict[Action, Tensor] = {}  # what it made of it
        sends: list[tuple[Any, Tensor]] = []  # a tensor must not go before it has been sent
        losses = []
        for action in self.schedule:
            part, micro_batch = self.parts[action.part], inputs[action.micro_batch]
            forward = action._replace(kind="forward")
            if action.kind == "forward":
                x = micro_batch if part.is_first else self._receive(action, action.part - 1, micro_batch, part)
                arrived[forward] = x if part.is_first else x.requires_grad_()
                y = part(arrived[forward])
                if part.is_last:
                    y = self.loss_fn(y, targets[action.micro_batch]) * (micro_batch.numel() / tokens)
                    losses.append(y.detach())
                else:
                    sends.append(self._send(y.detach(), action, action.part + 1))
                computed[forward] = y
            else:
                x, y = arrived.pop(forward), computed.pop(forward)
                grad = None if part.is_last else self._receive(action, action.part + 1, micro_batch, part)
                if y.requires_grad:  # unless all of the first part is frozen
                    y.backward(grad)
                if not part.is_first:
                    assert x.grad is not None
                    sends.append(self._send(x.grad, action, action.part - 1))
        for work, _ in sends:
            work.wait()
        return torch.stack(losses).sum() if losses else None

    def _send(self, x: Tensor, action: Action, to: int) -> tuple[Any, Tensor]:
        x = x.contiguous()
        work = dist.isend(x, group_dst=to % self.world_size, group=self.groups[action.kind], tag=_tag(action, to))
        return work, x

    def _receive(self, action: Action, source: int, tokens: Tensor, part: PipelinePart) -> Tensor:
        x = part.no_rows.new_empty(*tokens.shape, part.no_rows.shape[1])
        tag = _tag(action, action.part)
        dist.recv(x, group_src=source % self.world_size, group=self.groups[action.kind], tag=tag)
        return x


def _tag(action: Action, destination: int) -> int:
    """Return a number for the message of this micro-batch to this part."""
    return 2 * (1000 * action.micro_batch + destination) + (action.kind == "backward")
