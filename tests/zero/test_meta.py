"""A model on the meta device, which stage 3 fills without ever holding it."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Adam

from benchmarks.dryrun import TOKENS, Transformer
from course_lib import RankError, World, mark, zero

WIDTH, DEPTH = 32, 8
LAYER = WIDTH * WIDTH + WIDTH


class Tied(nn.Module):
    """Blocks with a buffer, between an embedding and an output that share a weight."""

    def __init__(self):
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


def test_every_rank_has_the_first_ranks_values_and_trains():
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


def test_the_model_is_never_whole():
    def rank(depth):
        model = on_meta(lambda: nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(depth))))
        engine = zero.Stage3(model, Adam)
        mark("made")
        return engine

    few, many = (World(4).run(rank, depth).memory[0].marks["made"].peak_bytes for depth in (DEPTH, 2 * DEPTH))
    assert many - few == DEPTH * 4 * LAYER // 4  # only shards more


def test_a_module_that_cannot_fill_itself_is_refused():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

    with pytest.raises(RankError, match=r"a Scale has parameters on the meta device and no reset_parameters\(\)"):
        World(2).run(lambda: zero.Stage3(on_meta(Scale), Adam))


def large_step():
    engine = zero.Stage3(on_meta(Transformer).bfloat16(), Adam)
    x = torch.randint(TOKENS, (1, 129))
    nn.functional.cross_entropy(engine(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).backward()
    engine.step()


@pytest.mark.slow
def test_a_step_of_7_5_billion_parameters_on_64_ranks_takes_less_than_4_gb():
    memory = World(64, backend="dryrun", rank=63, timeout=300).run(large_step).memory[63]
    assert memory.peak_bytes < 4e9
