"""fully_shard is planned as the meter measures it: states exactly, peaks within 2 % where activations count.

With a batch of one sequence the peak depends on what overlaps for less than a layer, which a formula does not say.
The plan is then an upper bound, at most 15 % above for transformers and 45 % for the other small models.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.fsdp import fully_shard as shard

from course_lib import Run, World, mark
from course_lib.planner import Plan, plan
from course_lib.zero.units import blocks
from tests.planner.test_against_meter import GPT, TINY
from tests.planner.test_other_models import MODELS, Known, described, of_ids

STATES, BF16 = ("parameters", "gradients", "optimizer"), torch.bfloat16
POLICIES = {
    "fp32": MixedPrecisionPolicy(),
    "mixed": MixedPrecisionPolicy(param_dtype=BF16),
    "mixed_fp32_accumulation": MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=torch.float32),
}


class Untied(nn.Module):
    """A GPT whose head is a matrix of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(701, 96), nn.Linear(96, 701)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(96, 4, 384, dropout=0.0, batch_first=True, norm_first=True) for _ in range(4)
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x[0])  # not a view, which fully_shard warns of


KNOWN = MODELS | {"untied": Known(Untied, of_ids)}
TRANSFORMERS = ("encoder", "gpt", "untied")


class Adapted(nn.Module):
    """A frozen matrix, with two thin ones next to it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.down = base, nn.Linear(base.in_features, 4, bias=False)
        self.up = nn.Linear(4, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def adapted() -> nn.Module:
    model = GPT().requires_grad_(False)
    for layer in model.layers:
        for name, module in [*layer.named_children()]:
            if isinstance(module, nn.Linear):
                setattr(layer, name, Adapted(module))
    return model


@dataclass(frozen=True, kw_only=True)
class Trained:
    """How a model is sharded and trained."""

    in_layers: bool = True
    sharding: dict[str, Any] = field(default_factory=dict)
    shard_size: int | None = None
    prefetch: int = 1
    micro_batches: int = 1
    no_sync: bool = False
    optimizer: type[torch.optim.Optimizer] = torch.optim.Adam
    options: dict[str, Any] = field(default_factory=lambda: {"foreach": False})


def train(known: Known, how: Trained) -> None:
    torch.manual_seed(0)
    model, ranks = known.make(), torch.distributed.get_world_size()
    sizes = (ranks // how.shard_size, how.shard_size) if how.shard_size else (ranks,)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicas", "shards")[-len(sizes) :])
    layers = [layer for layer in blocks(model) if [*layer.parameters()]] if how.in_layers else []
    for module in (*layers, model):
        shard(module, mesh=mesh, **how.sharding)
    gather_ahead([*layers, model], how.prefetch)
    optimizer = how.optimizer([param for param in model.parameters() if param.requires_grad], **how.options)
    mark("sharded")
    for _ in range(2):
        for earlier in reversed(range(how.micro_batches)):
            model.set_requires_gradient_sync(not (how.no_sync and earlier))
            known.loss(model).backward()
        optimizer.step()
        optimizer.zero_grad()
    mark("between steps")


def gather_ahead(modules: list[FSDPModule], count: int) -> None:
    if count > 1:  # 1 is what it does by itself
        for at, module in enumerate(modules):
            module.set_modules_to_backward_prefetch(modules[max(0, at - count) : at][::-1])


def check(known: Known, planned: Plan, how: Trained, above: float = 0.45) -> Run:
    run = World(planned.settings.world_size).run(train, known, how)
    memory, between = run.memory[0], planned.moments["between steps"]
    held, sharded = memory.marks["between steps"].by_category, memory.marks["sharded"].seconds
    peak = max(highest for seconds, _, highest, *_ in memory.timeline if seconds >= sharded)  # not of making the model

    assert [held[name] for name in STATES] == [between[name] for name in STATES]
    assert 0.97 <= planned.peak_bytes / peak <= 1 + above
    return run


def planned(name: str, ranks: int = 3, in_layers: bool = True, **given: Any) -> Plan:
    shapes = described(KNOWN[name], stage=3 if in_layers else 1)
    return plan(params=shapes, **{"precision": "fp32"} | given, world_size=ranks, stage=3, engine="torch")


@pytest.mark.parametrize(
    ("name", "ranks"),
    [("odd", 5), *((name, 3) for name in ("encoder", "gpt", "untied", "convolutions", "unet", "embeddings"))],
)
def test_models(name: str, ranks: int) -> None:
    check(KNOWN[name], planned(name, ranks), Trained(), above=0.15 if name in TRANSFORMERS else 0.45)


@pytest.mark.parametrize("precision", ["mixed", "mixed_fp32_accumulation"])
@pytest.mark.parametrize("name", ["odd", "gpt"])
def test_mixed_precision(name: str, precision: str) -> None:
    policy = {"mp_policy": POLICIES[precision]}

    check(KNOWN[name], planned(name, precision=precision), Trained(sharding=policy))


@pytest.mark.parametrize("name", ["odd", "gpt"])
def test_one_unit(name: str) -> None:
    check(KNOWN[name], planned(name, in_layers=False), Trained(in_layers=False))


@pytest.mark.parametrize(
    ("name", "given"),
    [("encoder", {}), ("odd", {"micro_batches": 3}), ("encoder", {"micro_batches": 3, "no_sync": True})],
)
def test_parameters_that_are_kept_from_forward(name: str, given: dict[str, Any]) -> None:
    """They are freed after each backward: every micro-batch gathers."""
    plan, how = planned(name, reshard=False, **given), Trained(sharding={"reshard_after_forward": False}, **given)
    run = check(KNOWN[name], plan, how, above=0.15 if name in TRANSFORMERS else 0.45)
    gathers, *_ = plan.collectives
    sent = sum(call.sent for call in run.comm[0].calls if call.op == "all_gather")

    assert (gathers.op, 2 * gathers.sent) == ("all_gather", sent)  # in two steps


@pytest.mark.parametrize("name", ["odd", "untied"])
def test_more_units_gathered_ahead(name: str) -> None:
    check(KNOWN[name], planned(name, prefetch=2), Trained(prefetch=2))


def test_hybrid_sharding() -> None:
    precision = "mixed_fp32_accumulation"
    how = Trained(shard_size=2, sharding={"mp_policy": POLICIES[precision]})

    check(KNOWN["untied"], planned("untied", 4, precision=precision, shard_size=2), how)


def test_one_rank_gathers_nothing() -> None:
    check(KNOWN["odd"], planned("odd", 1), Trained())


@pytest.mark.parametrize(
    ("optimizer", "given"),
    [
        ("adamw", {"optimizer": torch.optim.AdamW, "options": {"foreach": True}}),
        ("sgd", {"optimizer": torch.optim.SGD, "options": {}}),
        ("momentum", {"optimizer": torch.optim.SGD, "options": {"momentum": 0.9}}),
    ],
)
def test_optimizers(optimizer: str, given: dict[str, Any]) -> None:
    implementation = "foreach" if given["options"].get("foreach") else "for-loop"

    check(KNOWN["odd"], planned("odd", optimizer=optimizer, implementation=implementation), Trained(**given))


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("precision", ["fp32", "mixed", "autocast"])
def test_activations_of_a_transformer(precision: str, batch: int) -> None:
    tokens = torch.arange(batch * TINY.positions).view(batch, -1) % TINY.vocab

    def loss(model: nn.Module) -> Tensor:
        with torch.autocast("cpu", enabled=precision == "autocast"):
            return F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())

    planned = plan(
        model=TINY, world_size=2, stage=3, precision=precision, engine="torch", batch=batch, sequence=TINY.positions,
        attention="flash",
    )  # fmt: skip

    policy = POLICIES.get(precision, MixedPrecisionPolicy())
    check(Known(GPT, loss), planned, Trained(sharding={"mp_policy": policy}), above=0.02 if batch == 8 else 0.07)


@pytest.mark.parametrize("ranks", [3, 5])
def test_adapters(ranks: int) -> None:
    """Frozen tensors are cut into rows, too. What is outside the layers is gathered once: see docs/limits.md."""
    tokens = torch.arange(TINY.positions).view(1, -1)
    given = {"precision": "fp32", "frozen": "fp32", "lora_rank": 4, "attention": "flash", "sequence": TINY.positions}
    planned = plan(model=TINY, world_size=ranks, stage=3, engine="torch", **given)
    known = Known(adapted, lambda model: F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()))

    run = check(known, planned, Trained())
    outside = sum(-(-rows // ranks) * ranks * each for rows, each in ((TINY.vocab, 32), (32, 32), (32, 1), (32, 1)))
    gathered, again, reduced = (call.sent for call in planned.collectives)
    sent = sum(call.sent for call in run.comm[0].calls)

    assert sent == 2 * (gathered + again + reduced - Fraction(4 * outside * (ranks - 1), ranks))
