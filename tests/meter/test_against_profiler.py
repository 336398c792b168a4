"""The measured peak of a training step is the one that torch's own profiler counts where nothing is measured."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from course_lib import World


class Residual(nn.Module):
    """Layers whose input is used twice, so that backward adds up two gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).relu()
        return x


class Enlarging(nn.Module):
    """The smooth activation functions of large models, and the upsampling of a U-Net."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.layers, self.activation = nn.ModuleList(nn.Linear(128, 128) for _ in range(4)), activation

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.activation(layer(x))
        return nn.functional.interpolate(x, scale_factor=4)


def mlp() -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.Linear(128, 128), nn.ReLU()) for _ in range(8)])


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(128, nhead=4, dim_feedforward=512, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, num_layers=4, enable_nested_tensor=False)


def step_of(model: nn.Module) -> tuple[Callable[[], None], Callable[[], Iterator[Tensor]]]:
    """A training step, and what is there between two of them."""
    optimizer, x = torch.optim.AdamW(model.parameters()), torch.randn(12, 64, 128)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def lasting() -> Iterator[Tensor]:
        yield x
        yield from model.parameters()
        for state in optimizer.state.values():
            yield from state.values()

    return step, lasting


def allocations(event: Any) -> Iterator[tuple[int, int]]:
    """When memory came (above 0) or went (below 0), and how much, in an event of the profiler's and in those below."""
    if event.tag == torch._C._profiler._EventType.Allocation:
        yield event.start_time_ns, event.extra_fields.alloc_size
    for child in event.children:
        yield from allocations(child)


def silu() -> nn.Module:
    return Enlarging(nn.SiLU())


def mish() -> nn.Module:
    return Enlarging(nn.Mish())


@pytest.mark.parametrize("make", [mlp, Residual, transformer, silu, mish])
def test_the_peak_is_the_profilers(make) -> None:
    def program() -> None:
        step, _ = step_of(make())
        step()
        step()

    step, lasting = step_of(make())
    step()
    current = peak = sum(tensor.untyped_storage().nbytes() for tensor in lasting())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    events = [e for root in profiled.profiler.kineto_results.experimental_event_tree() for e in allocations(root)]
    for _, nbytes in sorted(events):
        current += nbytes
        peak = max(peak, current)

    assert World(1).run(program).memory[0].peak_bytes == peak
