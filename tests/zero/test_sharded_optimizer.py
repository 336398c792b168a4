"""`ShardedOptimizer`: as the unsharded optimizer, as torch's own, and with what each rank sends and keeps."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import OneCycleLR

from course_lib import RankError
from course_lib.zero.sharded_optimizer import ShardedOptimizer, owners_by_size
from tests.zero.models import OPTIMIZERS, world


class Model(nn.Module):
    """Sizes that divide nothing, a 0-dim and a zero-size parameter, a tied and a frozen one, one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(5, 7), nn.Linear(7, 7, bias=False), nn.Linear(7, 5)
        self.tied = nn.Linear(7, 7, bias=False)
        self.tied.weight = self.second.weight
        self.scale = nn.Parameter(torch.ones(()))
        self.nothing = nn.Parameter(torch.ones(0, 3))
        self.frozen = nn.Parameter(torch.ones(7), requires_grad=False)
        self.unused = nn.Linear(3, 3)

    def forward(self, x):
        x = self.tied(self.second(self.first(x).relu())) * self.frozen
        return self.third(x) * self.scale + self.nothing.sum()


def model(seed=0):
    torch.manual_seed(seed)
    return Model()


def batch(step, rank, size=4):
    return torch.randn(size, 5, generator=torch.Generator().manual_seed(100 * step + rank))


def average_gradients(model, group=None) -> None:
    for param in model.parameters():
        if param.grad is not None:
            dist.all_reduce(param.grad, group=group)
            param.grad /= dist.get_world_size(group)


def train(model, optimizer, steps, size=4, group=None, first=0) -> None:
    for step in range(first, first + steps):
        optimizer.zero_grad()
        model(batch(step, dist.get_rank(group), size)).square().mean().backward()
        average_gradients(model, group)
        optimizer.step()


def one_process(world_size, optimizer_class, options, steps, parameters=lambda model: model.parameters()):
    """The same model, trained in one process on the batches of all ranks together."""
    reference = model()
    optimizer = optimizer_class(parameters(reference), **options)
    for step in range(steps):
        optimizer.zero_grad()
        reference(torch.cat([batch(step, rank) for rank in range(world_size)])).square().mean().backward()
        optimizer.step()
    return reference, optimizer


def assert_same_state(one, other) -> None:
    assert one["param_groups"] == other["param_groups"]
    torch.testing.assert_close(one["state"], other["state"])


# -- three proofs: results, collectives, memory ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world_size", "name", "bucket_view"),
    [(1, "adam", False), (2, "adam", True), *((4, name, False) for name in OPTIMIZERS)],
)
def test_it_equals_one_process_on_the_whole_batch(world_size, name, bucket_view) -> None:
    optimizer_class, options = OPTIMIZERS[name]

    def rank():
        mine = model()
        optimizer = ShardedOptimizer(
            mine.parameters(), optimizer_class, parameters_as_bucket_view=bucket_view, **options
        )
        train(mine, optimizer, steps=3)
        optimizer.consolidate_state_dict(to=world_size - 1)
        return mine.state_dict(), optimizer.state_dict() if dist.get_rank() == world_size - 1 else None

    run = world(world_size).run(rank)
    reference, unsharded = one_process(world_size, optimizer_class, options, steps=3)
    for weights, _ in run:
        torch.testing.assert_close(weights, reference.state_dict())
    assert_same_state(run[-1][1], unsharded.state_dict())


@pytest.mark.parametrize("world_size", [2, 4])
def test_each_rank_broadcasts_what_it_owns_in_one_message_if_it_is_small(world_size) -> None:
    def rank() -> None:
        mine = model()
        optimizer = ShardedOptimizer(mine.parameters(), Adam)
        mine(batch(0, 0)).sum().backward()
        optimizer.step()

    owned = [0] * world_size
    trainable = list(model().parameters())
    owners = owners_by_size([param.numel() for param in trainable], owned)
    sizes = [0] * world_size
    for param, owner in zip(trainable, owners, strict=True):
        sizes[owner] += param.numel() if param.requires_grad else 0
    for calls in world(world_size).run(rank).calls:
        assert [(call.op, call.root, call.shapes) for call in calls] == [
            ("broadcast", owner, ((sizes[owner],),)) for owner in dict.fromkeys(owners) if sizes[owner]
        ]


def test_a_large_parameter_is_broadcast_where_it_is() -> None:
    def rank():
        params = [
            nn.Parameter(torch.ones(2**19)),
            nn.Parameter(torch.ones(4)),
            nn.Parameter(torch.ones(2**18).view(2, -1)),
            nn.Parameter(torch.ones(3, dtype=torch.float64)),
        ]
        optimizer = ShardedOptimizer(params, SGD, lr=1.0)
        for param in params:
            param.grad = torch.full_like(param, dist.get_rank())
        optimizer.step()
        return [param.detach().unique().tolist() for param in params]

    run = world(2).run(rank)
    sent = [(call.root, call.shapes) for call in run.calls[1]]
    assert sent == [(0, ((2**19,),)), (1, ((2, 2**17),)), (1, ((4,),)), (1, ((3,),))]
    assert list(run) == [[[1.0], [0.0], [0.0], [0.0]]] * 2  # the gradient of each owner: 0 on rank 0, 1 on rank 1


@pytest.mark.parametrize("world_size", [1, 4])
def test_each_rank_keeps_only_the_state_of_what_it_owns(world_size) -> None:
    def rank():
        mine = model()
        optimizer = ShardedOptimizer(mine.parameters(), Adam)
        train(mine, optimizer, steps=1)
        state_bytes = sum(value.nbytes for state in optimizer.optim.state.values() for value in state.values())
        used = {p for p in optimizer.optim.param_groups[0]["params"] if p.grad is not None}
        return state_bytes, sum(8 * p.numel() + 4 for p in used), sum(p.numel() for p in used)

    run = world(world_size).run(rank)
    assert all(state_bytes == formula for state_bytes, formula, _ in run)  # exp_avg, exp_avg_sq and a 4-byte step
    used = sum(p.numel() for n, p in model().named_parameters() if n != "frozen" and not n.startswith("unused"))
    assert sum(numel for _, _, numel in run) == used


# -- beside torch's own --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "maximize"), [("sgd with momentum", False), ("adam", True), ("adamw", False)])
def test_it_equals_zero_redundancy_optimizer_under_ddp_bit_for_bit(name, maximize) -> None:
    optimizer_class, options = OPTIMIZERS[name]

    def rank():
        weights = []
        for sharded in (ShardedOptimizer, ZeroRedundancyOptimizer):
            mine = model()
            optimizer = sharded(mine.parameters(), optimizer_class, maximize=maximize, **options)
            wrapped = DistributedDataParallel(mine, find_unused_parameters=True)
            for step in range(12):
                if step > 5:  # trainable or not, step by step
                    next(mine.parameters()).requires_grad = bool(step % 2)

                def closure(wrapped=wrapped, optimizer=optimizer, step=step):
                    optimizer.zero_grad()
                    loss = wrapped(batch(step, dist.get_rank())).square().mean()
                    loss.backward()
                    return loss

                loss = optimizer.step(closure)
            weights.append((loss.detach(), mine.state_dict()))
        return weights

    for ours, theirs in world(3).run(rank):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_parameters_are_dealt_out_as_torch_deals_them() -> None:
    def rank():
        torch.manual_seed(0)
        params = [nn.Parameter(torch.rand(size, 1)) for size in [9, 7, 5, 3] * 4]
        late = [nn.Parameter(torch.rand(size)) for size in (3, 8)]
        owned = []
        for sharded in (ShardedOptimizer, ZeroRedundancyOptimizer):
            optimizer = sharded(params, SGD, lr=0.1)
            optimizer.add_param_group({"params": late})
            owned.append([{id(p) for p in group["params"]} for group in optimizer.optim.param_groups])
        return owned, sum(p.numel() for p in params if id(p) in owned[0][0])

    for (ours, theirs), numel in world(4).run(rank):
        assert ours == theirs and numel == 9 + 7 + 5 + 3


# -- corners -----------------------------------------------------------------------------------------------------------


def test_more_ranks_than_parameters() -> None:
    def rank():
        weight = nn.Parameter(torch.ones(3))
        optimizer = ShardedOptimizer([weight], Adam, lr=0.5)
        weight.grad = torch.ones(3)
        optimizer.step()
        return weight.tolist(), len(optimizer.optim.state)

    run = world(4).run(rank)
    assert [len_state for _, len_state in run] == [1, 0, 0, 0]
    assert all(values == pytest.approx([0.5] * 3) for values, _ in run)


def test_groups_given_at_once_or_added_later_with_names_or_without() -> None:
    def weights_and_biases(model):
        named = dict(model.named_parameters())
        return (
            {"params": [p for n, p in named.items() if "weight" in n], "weight_decay": 0.0},
            {"params": [(n, p) for n, p in named.items() if "weight" not in n], "lr": 0.02},
        )

    def rank():
        at_once, later = model(), model()
        weights, others = weights_and_biases(at_once)
        others["params"] = [p for _, p in others["params"]]
        optimizer = ShardedOptimizer([weights, others], AdamW, lr=0.01)
        train(at_once, optimizer, steps=3)
        weights, others = weights_and_biases(later)
        others["params"] = [p for _, p in others["params"]]
        optimizer = ShardedOptimizer(weights["params"], AdamW, lr=0.01, weight_decay=0.0)
        optimizer.add_param_group({"weight_decay": 0.01} | others)
        assert len(optimizer.optim.param_groups) == 2
        train(later, optimizer, steps=3)
        return at_once.state_dict(), later.state_dict()

    def groups(model):
        weights, others = weights_and_biases(model)
        return [weights, others | {"params": [p for _, p in others["params"]]}]

    reference, _ = one_process(3, AdamW, {"lr": 0.01}, 3, groups)
    for at_once, later in world(3).run(rank):
        torch.testing.assert_close(at_once, reference.state_dict())
        torch.testing.assert_close(later, reference.state_dict())


def test_named_parameters_are_taken_as_by_any_optimizer() -> None:
    def rank():
        mine = model()
        optimizer = ShardedOptimizer(mine.named_parameters(), AdamW, lr=0.01)
        train(mine, optimizer, steps=2)
        optimizer.consolidate_state_dict()
        return optimizer.state_dict() if dist.get_rank() == 0 else None

    _, unsharded = one_process(2, AdamW, {"lr": 0.01}, 2, lambda model: model.named_parameters())
    assert_same_state(world(2).run(rank)[0], unsharded.state_dict())


def test_a_schedule_is_followed() -> None:
    def rank():
        x, y = (torch.tensor([1.0], requires_grad=True) for _ in range(2))
        ours, plain = ShardedOptimizer([x], SGD, lr=0.01), SGD([y], lr=0.01)
        schedules = [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5) for optimizer in (ours, plain)]
        for _ in range(5):
            x.grad, y.grad = torch.ones(1), torch.ones(1)
            ours.step(), plain.step()
            for schedule in schedules:
                schedule.step()
        return x.item(), y.item(), ours.param_groups[0]["lr"]

    for ours, plain, lr in world(2).run(rank):
        assert ours == plain and lr == 0.01 / 32


def test_a_group_added_later_leaves_the_others_where_the_schedule_is() -> None:
    """Gradual unfreezing: a layer more in each epoch, while ExponentialLR halves the learning rates."""

    def rank():
        outcome = []
        for make in (lambda params: ShardedOptimizer(params, SGD, lr=1.0), lambda params: SGD(params, lr=1.0)):
            layers = [nn.Parameter(torch.tensor([8.0, 9.0])) for _ in range(3)]
            optimizer, history = make(layers[:1]), []
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            for layer in (*layers[1:], None):
                for param in layers:
                    param.grad = torch.ones(2)
                optimizer.step()
                schedule.step()
                if layer is not None:
                    optimizer.add_param_group({"params": [layer], "lr": 0.25})
                history.append([group["lr"] for group in optimizer.param_groups])
            outcome.append((history, [layer.tolist() for layer in layers]))
        return outcome

    for ours, plain in world(2).run(rank):
        assert ours == plain and ours[0] == [[0.5, 0.25], [0.25, 0.125, 0.25], [0.125, 0.0625, 0.125]]


def test_a_parameter_that_is_frozen_after_backward_is_updated_on_every_rank() -> None:
    """Its owner still has a gradient, as any optimizer has."""

    def rank():
        params = [nn.Parameter(torch.ones(2)) for _ in range(2)]
        optimizer = ShardedOptimizer(params, SGD, lr=0.1)
        sum(param.sum() for param in params).backward()
        for param in params:
            param.requires_grad = False
        optimizer.step()
        return [param.tolist() for param in params]

    assert all(params == [pytest.approx([0.9, 0.9])] * 2 for params in world(2).run(rank))


def test_a_frozen_parameter_is_neither_decayed_nor_sent() -> None:
    def rank():
        frozen, weight = nn.Parameter(torch.ones(6), requires_grad=False), nn.Parameter(torch.ones(2))
        optimizer = ShardedOptimizer([frozen, weight], AdamW, lr=0.1, weight_decay=0.5)
        weight.grad = torch.ones(2)
        optimizer.step()
        weight.requires_grad, frozen.requires_grad = False, True
        weight.grad, frozen.grad = None, torch.ones(6)
        optimizer.step()
        return frozen.tolist(), weight.tolist()

    run = world(2).run(rank)
    assert [call.shapes for call in run.calls[0]] == [((2,),), ((6,),)]
    assert all(frozen == pytest.approx([0.85] * 6) and weight == pytest.approx([0.85] * 2) for frozen, weight in run)


@pytest.mark.parametrize("world_size", [1, 4])
def test_the_options_that_a_step_adds_are_seen(world_size) -> None:
    class Counting(SGD):
        def step(self, closure=None, note=None) -> None:
            super().step()
            self.param_groups[0]["note"] = note

    class WithoutClosure(SGD):
        def step(self):
            return super().step()

    def rank():
        x, y = (torch.tensor([1.0], requires_grad=True) for _ in range(2))
        counting, without = ShardedOptimizer([x], Counting, lr=0.1), ShardedOptimizer([y], WithoutClosure, lr=0.1)
        x.grad = y.grad = torch.ones(1)
        counting.step(note=5)
        without.step()
        return counting.param_groups[0]["note"], x.item(), y.item()

    assert list(world(world_size).run(rank)) == [(5, pytest.approx(0.9), pytest.approx(0.9))] * world_size


def test_zero_grad_clears_every_gradient_not_only_what_is_owned() -> None:
    def rank():
        mine = nn.Linear(2, 2)
        optimizer = ShardedOptimizer(mine.parameters(), SGD)
        mine(torch.ones(2)).sum().backward()
        optimizer.zero_grad()
        return [param.grad for param in mine.parameters()]

    assert list(world(2).run(rank)) == [[None, None]] * 2


def test_a_group_of_some_ranks() -> None:
    def rank():
        group = dist.new_group([1, 3])
        if dist.get_rank() % 2 == 0:
            return None
        mine = model()
        optimizer = ShardedOptimizer(mine.parameters(), Adam, process_group=group, lr=0.01)
        train(mine, optimizer, steps=2, group=group)
        optimizer.consolidate_state_dict(to=1)
        return mine.state_dict(), optimizer.state_dict() if dist.get_rank() == 3 else None

    run = world(4).run(rank)
    reference, unsharded = one_process(2, Adam, {"lr": 0.01}, steps=2)
    torch.testing.assert_close(run[1][0], reference.state_dict())
    assert_same_state(run[3][1], unsharded.state_dict())


# -- saving and loading ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 3])
def test_state_goes_to_a_plain_optimizer_and_back(world_size) -> None:
    def rank():
        mine, plain = model(), model()
        sharded, unsharded = ShardedOptimizer(mine.parameters(), Adam, lr=0.01), Adam(plain.parameters(), lr=0.01)
        train(mine, sharded, steps=2)
        train(plain, unsharded, steps=2)
        sharded.consolidate_state_dict()
        whole = [sharded.state_dict() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(whole)
        theirs = unsharded.state_dict()
        unsharded.load_state_dict(whole[0])
        sharded.load_state_dict(theirs)
        train(mine, sharded, steps=2, first=2)
        train(plain, unsharded, steps=2, first=2)
        return mine.state_dict(), plain.state_dict()

    for mine, plain in world(world_size).run(rank):
        torch.testing.assert_close(mine, plain, rtol=0, atol=0)


def test_a_schedule_that_moves_momentum_finds_it() -> None:
    """OneCycleLR looks for `betas` or `momentum` in the optimizer's `defaults`, where only what was passed stood."""

    def rank():
        reached = []
        for make in (lambda params: ShardedOptimizer(params, Adam, lr=0.1), lambda params: Adam(params, lr=0.1)):
            layer = nn.Linear(2, 2)
            nn.init.ones_(layer.weight)
            optimizer = make(layer.parameters())
            schedule = OneCycleLR(optimizer, 0.2, total_steps=9)
            for _ in range(4):
                layer.weight.grad = layer.weight.detach().clone()
                optimizer.step()
                schedule.step()
            reached.append((layer.weight.detach(), optimizer.param_groups[0]["betas"], optimizer.defaults))
        return reached

    for ours, theirs in world(2).run(rank):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_loading_brings_the_options_too() -> None:
    def rank():
        x = torch.tensor([1.0], requires_grad=True)
        optimizer = ShardedOptimizer([x], SGD, lr=0.1, momentum=0.9)
        x.grad = torch.ones(1)
        optimizer.step()
        optimizer.consolidate_state_dict(to=dist.get_world_size() - 1)
        whole = [optimizer.state_dict() if dist.get_rank() == 1 else None]
        dist.broadcast_object_list(whole, src=1)
        fresh = ShardedOptimizer([x], SGD, lr=0.01)
        fresh.load_state_dict(whole[0])
        momentum = [state["momentum_buffer"].item() for state in fresh.state.values()]
        fresh.step()
        return x.item(), momentum, fresh.param_groups[0]["lr"]

    run = world(2).run(rank)
    assert [momentum for _, momentum, _ in run] == [[1.0], []]
    assert all(x == pytest.approx(0.71) and lr == 0.1 for x, _, lr in run)


def test_the_state_is_refused_until_it_is_consolidated_on_this_rank() -> None:
    def ask(rank, to) -> None:
        optimizer = ShardedOptimizer([nn.Parameter(torch.ones(2))], SGD)
        if to is not None:
            optimizer.consolidate_state_dict(to=to)
        if dist.get_rank() == rank:
            optimizer.state_dict()

    told = r"rank 1 of 2: the optimizer's state has not been consolidated .* Call consolidate_state_dict\(to=1\)"
    for to in (None, 0):
        with pytest.raises(RankError, match=told):
            world(2).run(ask, 1, to)
    world(2).run(ask, 0, 0)


def test_a_state_of_other_groups_is_refused() -> None:
    def rank() -> None:
        params = [nn.Parameter(torch.ones(2)) for _ in range(3)]
        ShardedOptimizer(params, SGD).load_state_dict(SGD(params[:2]).state_dict())

    with pytest.raises(RankError, match=r"groups of \[2\] parameters, and this optimizer has groups of \[3\]"):
        world(2).run(rank)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: [], "ValueError"),
        (lambda: torch.randn(1), "TypeError"),
        (lambda: 1.2, "TypeError"),
        (lambda: [nn.Parameter(torch.ones(1)), 42], "TypeError"),
        (lambda: [{"lr": 0.1}], "KeyError"),
    ],
)
def test_bad_parameters_are_refused(make, error) -> None:
    with pytest.raises(RankError, match=error):
        world(2).run(lambda: ShardedOptimizer(make(), SGD))


def test_lbfgs_is_refused_on_several_ranks() -> None:
    def rank():
        weight = nn.Parameter(torch.ones(2))
        optimizer = ShardedOptimizer([weight], torch.optim.LBFGS, lr=0.1, max_iter=1)

        def closure():
            weight.grad = torch.ones(2)
            return weight.sum()

        optimizer.step(closure)
        return weight.tolist()

    assert world(1).run(rank)[0] != [1.0, 1.0]
    with pytest.raises(RankError, match=r"LBFGS computes one step for all parameters together.* Use LBFGS itself on"):
        world(2).run(rank)
