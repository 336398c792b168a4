"""Every engine equals one process on the whole batch: weights, optimizer state and gradient norms."""

import pytest
import torch
import torch.distributed as dist
from torch.optim import SGD, Adam, AdamW

from course_lib import zero
from tests.zero.models import OPTIMIZERS, make, one_process, train, unused_in, world

ENGINES = ["DataParallel", "Stage1", "Stage2", "Stage3"]


def build(engine, model, optimizer_class, **options):
    """An engine of small buckets, or with more of its units ahead, so that there are several of each."""
    small = {"prefetch": 2} if engine == "Stage3" else {"bucket_bytes": 100}
    return getattr(zero, engine)(model, optimizer_class, **small, **unused_in(model), **options)


def assert_equals(run, reference, unsharded) -> None:
    for weights, state in run:
        torch.testing.assert_close(weights, dict(reference.state_dict()), rtol=1e-4, atol=1e-6)
        assert state["param_groups"] == unsharded.state_dict()["param_groups"]
        torch.testing.assert_close(state["state"], unsharded.state_dict()["state"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("model", "world_size", "optimizer"),
    [
        ("corners", 1, "adamw"),
        *(("corners", 4, name) for name in OPTIMIZERS),
        ("single", 4, "adamw"),
        ("branches", 3, "adamw"),
        ("stack", 2, "adamw"),
    ],
)
def test_it_equals_one_process_on_the_whole_batch(engine, model, world_size, optimizer) -> None:
    optimizer_class, options = OPTIMIZERS[optimizer]

    def rank():
        made = build(engine, make(model, seed=dist.get_rank()), optimizer_class, **options)
        train(made, dist.get_rank(), range(3))
        return made.state_dict(), made.optimizer_state_dict()

    run = world(world_size).run(rank)
    reference = make(model, seed=0)
    unsharded, _ = one_process(reference, optimizer_class, options, world_size, range(3))
    assert_equals(run, reference, unsharded)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["branches", "stack"])
def test_micro_batches_and_clipping_too(engine, model) -> None:
    options = {"lr": 0.1, "momentum": 0.9}

    def rank():
        made = build(engine, make(model), SGD, **options)
        norms = train(made, dist.get_rank(), range(3), micro_batches=3, max_norm=0.5)
        return norms, made.state_dict(), made.optimizer_state_dict()

    run = world(3).run(rank)
    reference = make(model)
    unsharded, norms = one_process(reference, SGD, options, 3, range(3), micro_batches=3, max_norm=0.5)
    assert max(norms) > 0.5, "nothing would have been clipped"
    for ours, _, _ in run:
        assert ours == pytest.approx(norms, rel=1e-4)
    assert_equals([(weights, state) for _, weights, state in run], reference, unsharded)


@pytest.mark.parametrize("engine", ENGINES)
def test_each_group_has_options_of_its_own(engine) -> None:
    def groups(model):
        """Decay for matrices, another lr for what comes first, and nothing at all for one bias."""
        named = dict(model.named_parameters())
        matrices = [p for n, p in named.items() if p.dim() == 2 and "first" not in n]
        return [
            {"params": matrices, "weight_decay": 0.5},
            {"params": [p for n, p in named.items() if p.dim() < 2 and n != "third.bias"], "betas": (0.5, 0.9)},
            {"params": [named["first.weight"]], "lr": 0.1, "weight_decay": 0.0},
        ]

    def rank():
        model = make("corners")
        named = [group | {"params": [("name", param) for param in group["params"]]} for group in groups(model)]
        made = build(engine, model, AdamW, param_groups=named, lr=0.01)
        train(made, dist.get_rank(), range(3))
        return made.state_dict(), made.optimizer_state_dict()

    run = world(3).run(rank)
    reference = make("corners")
    unsharded, _ = one_process(reference, AdamW, {"lr": 0.01}, 3, range(3), groups=groups)
    assert_equals(run, reference, unsharded)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_group_of_some_ranks(engine) -> None:
    def rank():
        group = dist.new_group([1, 3])
        if dist.get_rank() % 2 == 0:
            return None
        made = build(engine, make("corners", seed=dist.get_rank()), Adam, process_group=group, lr=0.01)
        norms = train(made, dist.get_rank(group), range(2), max_norm=1.0)
        assert norms
        return made.state_dict(), made.optimizer_state_dict()

    run = world(4).run(rank)
    reference = make("corners", seed=1)
    unsharded, _ = one_process(reference, Adam, {"lr": 0.01}, 2, range(2), max_norm=1.0)
    assert_equals([run[1], run[3]], reference, unsharded)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_whole_state_goes_to_a_plain_optimizer_and_back(engine) -> None:
    def rank():
        model = make("corners")
        made = build(engine, model, AdamW, param_groups=list(model.parameters()), lr=0.01)
        train(made, dist.get_rank(), range(2))
        weights, state = made.state_dict(), made.optimizer_state_dict()
        other = build(engine, make("corners", seed=5), AdamW, lr=0.5)
        other.load_state_dict(weights)
        other.load_optimizer_state_dict(state)
        train(other, dist.get_rank(), range(2, 4))
        return weights, state, other.state_dict(), other.optimizer_state_dict()

    run = world(3).run(rank)
    reference = make("corners")
    reference.load_state_dict(run[0][0])
    unsharded = AdamW(reference.parameters(), lr=0.5)
    unsharded.load_state_dict(run[0][1])
    whole = make("corners")
    expected, _ = one_process(whole, AdamW, {"lr": 0.01}, 3, range(4))
    assert_equals([(weights, state) for _, _, weights, state in run], whole, expected)
    assert_equals([(run[1][0], run[1][1])], reference, unsharded)
