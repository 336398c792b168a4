"""A model on the meta device, which stage 3 fills without ever holding it."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Adam

from course_lib import RankError, TinyGPT, World, mark, zero

WIDTH, DEPTH = 32, 8
LAYER = WIDTH * WIDTH + WIDTH


class Tied(nn.Module):
    """Blocks with a buffer, between an embedding and an output that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.out.weight = self.embed.weight
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)) for _ in range(3))

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = x + block(x)
        return self.out(x)


def on_meta(make):
    with torch.device("meta"):
        return make()


def test_every_rank_has_the_first_ranks_values_and_trains() -> None:
    def rank():
        torch.manual_seed(dist.get_rank())
        model = on_meta(Tied)
        engine = zero.Stage3(model, Adam, param_groups=[{"params": model.parameters(), "lr": 0.1}])
        before = engine.state_dict()
        engine(torch.ones(4, WIDTH)).sum().backward()
        engine.step()
        return before, engine.state_dict()

    run = World(3).run(rank)
    torch.manual_seed(0)
    fresh = Tied().state_dict()
    for before, after in run:
        torch.testing.assert_close((before, after), run[0], rtol=0, atol=0)
        assert {key: value.shape for key, value in before.items()} == {key: value.shape for key, value in fresh.items()}
        assert (before["embed.weight"] != after["embed.weight"]).any()
        weights = before["blocks.1.0.weight"]
        assert 0.9 < weights.abs().max() * WIDTH**0.5 <= 1, "nn.Linear draws from ±1/sqrt(width)"


def test_the_model_is_never_whole() -> None:
    def rank(depth):
        model = on_meta(lambda: nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(depth))))
        engine = zero.Stage3(model, Adam)
        mark("made")
        return engine

    few, many = (World(4).run(rank, depth).memory[0].marks["made"].peak_bytes for depth in (DEPTH, 2 * DEPTH))
    assert many - few == DEPTH * 4 * LAYER // 4  # only shards more


class Scale(nn.Module):
    """A module without `reset_parameters`, with a parameter and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("steps", torch.arange(4))


class Parts(nn.Module):
    """A block that its model's `init_weights` does not fill, but its own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Scale()])
        self.register_buffer("mask", torch.ones(2, 2).tril(), persistent=False)

    def init_weights(self) -> None:
        self.mask = torch.ones(2, 2).tril()  # a different tensor in its place


class FilledScale(Scale):
    """A Scale that fills itself."""

    def init_weights(self) -> None:
        nn.init.constant_(self.weight, 3)
        self.steps.copy_(torch.arange(4))


@pytest.mark.parametrize("make", [Scale, Parts])
def test_a_module_that_nothing_fills_is_refused(make) -> None:
    with pytest.raises(RankError, match=r"a Scale was made .* a tensor of shape \[3\] in it was not"):
        World(2).run(lambda: zero.Stage3(on_meta(make), Adam))


@pytest.mark.parametrize("engine", [zero.DataParallel, zero.Stage1, zero.Stage2])
def test_only_stage_3_takes_a_model_without_values(engine) -> None:
    with pytest.raises(RankError, match=r"Only Stage3 fills such a model\. Give the model memory first"):
        World(2).run(lambda: engine(on_meta(Parts), Adam))


def test_a_buffer_that_nothing_fills_is_refused() -> None:
    class Table(nn.Linear):
        def __init__(self) -> None:
            super().__init__(WIDTH, WIDTH)
            self.register_buffer("table", torch.arange(5))

    with pytest.raises(RankError, match=r"a Table was made .* a tensor of shape \[5\] in it was not"):
        World(2).run(lambda: zero.Stage3(on_meta(Table), Adam))


def test_each_unit_fills_its_parameters_and_buffers() -> None:
    def rank():
        model = on_meta(Parts)
        model.blocks[0] = on_meta(FilledScale)
        engine = zero.Stage3(model, Adam)
        return engine.state_dict()["blocks.0.weight"], model.blocks[0].steps, model.mask

    for weight, steps, mask in World(2).run(rank):
        assert (weight.tolist(), steps.tolist(), mask.tolist()) == ([3, 3, 3], [0, 1, 2, 3], [[1, 0], [1, 1]])


def test_a_model_keeps_its_own_initialisation() -> None:
    def rank():
        state = zero.Stage3(on_meta(lambda: TinyGPT(layers=1)), Adam).state_dict()
        return [state[f"{name}.weight"].std().item() for name in ("embedding", "positions")]

    for stds in World(2).run(rank):
        assert stds == pytest.approx([0.02, 0.02], rel=0.05)
