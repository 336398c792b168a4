"""What is planned is what torch and this course's engines hold, to the byte; activations within half a percent."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

from course_lib import World, zero
from course_lib.planner import Settings, Transformer, plan
from course_lib.planner.memory import activations
from course_lib.planner.memory.layout import greedy

RANKS = 3
LAYERS = ((5, 7), (7, 7), (7, 3))
UNITS = [[], *([(out, into), (out,)] for into, out in LAYERS)]
ENGINES = ("DataParallel", "Stage1", "Stage2", "Stage3")


def model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(into, out) for into, out in LAYERS)).to(dtype)


def storage_bytes(tensors: list[Tensor]) -> int:
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def held_by_engine(name: str, dtype: torch.dtype, bucket_bytes: int) -> tuple[int, int, int]:
    """Bytes of parameters and masters, of gradients when they are averaged, and of the optimizer's state."""
    given = {} if name == "Stage3" else {"bucket_bytes": bucket_bytes}
    engine = getattr(zero, name)(model(dtype), torch.optim.Adam, lr=0.1, **given)
    engine(torch.ones(2, 5, dtype=dtype)).sum().backward()
    engine.average_gradients()
    mine = [shard.values for shard in engine.shards()]
    gradients = [param.grad for param in [*engine.module.parameters(), *mine] if param.grad is not None]
    gradient_bytes = storage_bytes(gradients)
    engine.step()
    states = [value for state in engine.optimizer.state.values() for value in state.values()]
    return storage_bytes([*engine.module.parameters(), *mine]), gradient_bytes, storage_bytes(states)


@pytest.mark.parametrize("bucket_bytes", [100, 10**6])
@pytest.mark.parametrize(("dtype", "precision"), [(torch.float32, "fp32"), (torch.bfloat16, "mixed")])
@pytest.mark.parametrize("stage", range(4))
def test_this_courses_engines(stage: int, dtype: torch.dtype, precision: str, bucket_bytes: int) -> None:
    held = World(RANKS).run(held_by_engine, ENGINES[stage], dtype, bucket_bytes)[0]
    planned = plan(
        params=UNITS, world_size=RANKS, stage=stage, precision=precision, engine="zero", bucket_bytes=bucket_bytes
    )
    between, in_step = planned.moments["between steps"], planned.moments["optimizer step"]

    masters = sum(part.nbytes for part in planned.parts if part.name == "fp32 master parameters")
    assert held == (between["parameters"] + masters, in_step["gradients"], between["optimizer"] - masters)


def held_by_fully_shard() -> tuple[int, int, int]:
    whole = model()
    for layer in whole:
        fully_shard(layer)
    fully_shard(whole)
    optimizer = torch.optim.Adam(whole.parameters())
    whole(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    shards = [param.to_local() for param in whole.parameters()]
    gradients = [param.grad.to_local() for param in whole.parameters()]
    states = [
        value if key == "step" else value.to_local()
        for state in optimizer.state.values()
        for key, value in state.items()
    ]
    return storage_bytes(shards), storage_bytes(gradients), storage_bytes(states)


def test_fully_shard() -> None:
    planned = plan(params=UNITS, world_size=RANKS, stage=3, precision="fp32", engine="torch").moments["optimizer step"]

    assert World(RANKS).run(held_by_fully_shard)[0] == (
        planned["parameters"], planned["gradients"], planned["optimizer"],
    )  # fmt: skip


def partitioned() -> list[int]:
    optimizer = ZeroRedundancyOptimizer(model().parameters(), torch.optim.Adam, lr=0.1)
    return [
        sum(param.numel() for group in groups for param in group["params"])
        for groups in optimizer._partition_parameters()
    ]


def test_zero_redundancy_optimizers_partition() -> None:
    shapes = [shape for unit in UNITS for shape in unit]

    assert World(RANKS).run(partitioned)[0] == [sum(owned) for owned in greedy([shapes], RANKS)]


# Activations, of a GPT without dropout, whose masks torch keeps as wide as the data on CPUs

TINY = Transformer(
    name="tiny", layers=2, hidden=32, heads=4, kv_heads=4, ffn=128, vocab=100, positions=64, context=64, gated=False,
    dropout=False, tied=True, source="this test",
)  # fmt: skip


class Layer(nn.Module):
    def __init__(self, attention: str) -> None:
        super().__init__()
        h = TINY.hidden
        self.attention = attention
        self.norm, self.qkv, self.projection = nn.LayerNorm(h), nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.feed_forward = nn.Sequential(nn.LayerNorm(h), nn.Linear(h, 4 * h), nn.GELU(), nn.Linear(4 * h, h))

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, h = x.shape
        split = (batch, tokens, TINY.heads, h // TINY.heads)
        q, k, v = (part.view(split).transpose(1, 2) for part in self.qkv(self.norm(x)).split(h, dim=-1))
        if self.attention == "flash":
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(h // TINY.heads)
            mixed = scores.masked_fill(FUTURE, -math.inf).softmax(-1) @ v
        x = x + self.projection(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.feed_forward(x)


FUTURE = torch.ones(TINY.positions, TINY.positions, dtype=torch.bool).triu(1)


@pytest.mark.parametrize("attention", ["math", "flash"])
def test_activations(attention: str) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(*(Layer(attention) for _ in range(TINY.layers)), nn.LayerNorm(TINY.hidden))
    embedding = nn.Embedding(TINY.vocab, TINY.hidden)
    known = {tensor.data_ptr() for tensor in [FUTURE, *layers.parameters(), *embedding.parameters()]}
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in known and tensor.is_floating_point():
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    batch = torch.randint(TINY.vocab, (2, TINY.positions))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = F.linear(layers(embedding(batch)), embedding.weight)
        F.cross_entropy(logits.flatten(0, 1), batch.flatten())
    planned = plan(model=TINY, batch=2, sequence=TINY.positions, precision="fp32", attention=attention)

    norms = 2 * 4 * batch.numel() * (2 * TINY.layers + 1)  # a mean and a deviation for each token, which are left out
    assert storage_bytes(list(saved.values())) - norms == pytest.approx(planned.bytes["activations"], rel=0.005)


@pytest.mark.parametrize("lora_rank", [0, 8])
def test_what_a_plain_rms_norm_keeps(lora_rank: int) -> None:
    """As transformers writes it: with frozen weights, no normalized elements."""
    x = torch.randn(5, TINY.hidden, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.ones(TINY.hidden, dtype=torch.bfloat16, requires_grad=not lora_rank)
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        wide = x.float()
        weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
    settings = Settings(engine="torch", stage=3, lora_rank=lora_rank)

    both = activations.layer(replace(TINY, gated=True), settings)["inputs of the two norms"]
    assert storage_bytes([tensor for tensor in saved if tensor.numel() == x.numel()]) == 5 * both / 2
