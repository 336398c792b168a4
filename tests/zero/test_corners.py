"""The engines where it gets awkward: precision, freezing, checkpointing, buffers, odd models, bad arguments."""

import copy
import pickle
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.utils.checkpoint import checkpoint

from course_lib import RankError, zero
from tests.zero.models import batch, loss_of, make, one_process, train, unused_in, world

ENGINES = ["DataParallel", "Stage1", "Stage2", "Stage3"]


def made(engine, model, optimizer_class=SGD, **options):
    return getattr(zero, engine)(model, optimizer_class, **{"lr": 0.1, **unused_in(model), **options})


def close(one, other, **tolerance) -> None:
    torch.testing.assert_close(one, other, **{"rtol": 1e-4, "atol": 1e-6, **tolerance})


# -- precision ---------------------------------------------------------------------------------------------------------


def mixed_precision(model, optimizer_class, options, world_size, steps):
    """One process with a bf16 model: the average of fp32 gradients, and fp32 values behind the parameters."""
    params = [param for param in model.parameters() if param.requires_grad]
    masters = [param.detach().float().requires_grad_() for param in params]
    optimizer = optimizer_class(masters, **options)
    for step in steps:
        total = [torch.zeros_like(master) for master in masters]
        used = set()
        for rank in range(world_size):
            model.zero_grad()
            loss_of(model, batch(step, rank).to(torch.bfloat16)).backward()
            for index, param in enumerate(params):
                if param.grad is not None:
                    total[index] += param.grad.float() / world_size
                    used.add(index)
        for index, master in enumerate(masters):
            master.grad = total[index] if index in used else None
        optimizer.step()
        for param, master in zip(params, masters, strict=True):
            param.data.copy_(master)
    return masters


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["corners", "stack"])
def test_bf16_has_fp32_masters_and_fp32_averages(engine, model) -> None:
    options = {"lr": 0.01, "weight_decay": 0.1}

    def rank():
        ours = made(engine, make(model).to(torch.bfloat16), AdamW, **options)
        for step in range(3):
            ours.zero_grad()
            loss_of(ours, batch(step, dist.get_rank()).to(torch.bfloat16)).backward()
            ours.step()
        return ours.state_dict(), ours.optimizer_state_dict()["state"]

    reference = make(model).to(torch.bfloat16)
    masters = mixed_precision(reference, AdamW, options, 3, range(3))
    numbers = [number for number, param in enumerate(reference.parameters()) if param.requires_grad]
    for weights, state in world(3).run(rank):
        close(weights, dict(reference.state_dict()))
        for number, master in zip(numbers, masters, strict=True):
            close(state[number]["master_param"], master.detach())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bf16_engine_resumes_with_all_32_bits(engine) -> None:
    def rank():
        def data(step):
            return batch(step, dist.get_rank()).to(torch.bfloat16)

        def steps(ours, which) -> None:
            for step in which:
                ours.zero_grad()
                loss_of(ours, data(step)).backward()
                ours.step()

        first, second = (made(engine, make("stack", seed).to(torch.bfloat16), Adam, lr=1e-4) for seed in (0, 1))
        steps(first, range(2))
        second.load_state_dict(first.state_dict())
        second.load_optimizer_state_dict(first.optimizer_state_dict())
        steps(first, range(2, 4))
        steps(second, range(2, 4))
        return first.optimizer_state_dict()["state"], second.optimizer_state_dict()["state"]

    for first, second in world(2).run(rank):
        close(second, first, rtol=0, atol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_bf16_averages_of_two_backwards_add_up(engine) -> None:
    def rank():
        ours = made(engine, nn.Linear(4, 4, bias=False).to(torch.bfloat16))
        for _ in range(2):  # without no_sync
            ours(torch.full((1, 4), 1.0 + dist.get_rank(), dtype=torch.bfloat16)).sum().backward()
        return ours.clip_grad_norm_(100.0).item()

    assert [*world(2).run(rank)] == pytest.approx([12.0, 12.0])  # 16 elements of 2 · 1.5 each


@pytest.mark.parametrize("engine", ENGINES)
def test_float64_stays_float64(engine) -> None:
    def rank():
        ours = made(engine, make("stack").double(), Adam)
        loss_of(ours, batch(0, dist.get_rank()).double()).backward()
        ours.step()
        return ours.state_dict(), ours.optimizer_state_dict()["state"][0]["exp_avg"].dtype

    for weights, moment in world(2).run(rank):
        assert {value.dtype for value in weights.values()} == {moment} == {torch.float64}


@pytest.mark.parametrize("engine", ENGINES)
def test_parameters_of_several_dtypes(engine) -> None:
    def mixed():
        model = make("stack")
        model.blocks.to(torch.float64)
        for block in model.blocks:
            block.register_forward_pre_hook(lambda module, args: (args[0].double(),))
            block.register_forward_hook(lambda module, args, output: output.float())
        return model

    def rank():
        ours = made(engine, mixed(), AdamW)
        norms = train(ours, dist.get_rank(), range(2), max_norm=0.1)
        return norms, ours.state_dict(), ours.optimizer_state_dict()["state"]

    reference = mixed()
    unsharded, norms = one_process(reference, AdamW, {"lr": 0.1}, 3, range(2), max_norm=0.1)
    for ours, weights, state in world(3).run(rank):
        assert ours == pytest.approx(norms, rel=1e-4)
        close(weights, dict(reference.state_dict()))
        close(state, unsharded.state_dict()["state"])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtypes", [(torch.float64,), (torch.float32, torch.float64), (torch.complex64, torch.float32)])
def test_a_norm_on_ranks_that_own_nothing_or_a_single_dtype(engine, dtypes) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.numbers = nn.ParameterList(nn.Parameter(torch.full((), 2.0, dtype=dtype)) for dtype in dtypes)

        def forward(self):
            return sum(number.abs().square().double() for number in self.numbers)

    def rank(scaled):
        ours = made(engine, Model())
        scaler = zero.LossScaler(ours, scale=2.0)
        scaler.scale(ours()).backward() if scaled else ours().backward()
        scaler.unscale_() if scaled else None
        return ours.clip_grad_norm_(1e9)

    reference = Model()
    reference().backward()
    norm = nn.utils.get_total_norm([param.grad for param in reference.parameters()])
    for scaled in (False, True):
        for ours in world(4).run(rank, scaled):
            torch.testing.assert_close(ours, norm)


@pytest.mark.parametrize("engine", ENGINES)
def test_fp16_skips_the_steps_that_overflow_on_any_rank(engine) -> None:
    def rank():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5)).half()
        ours = made(engine, model)
        scaler = zero.LossScaler(ours, scale=2.0**24, growth_interval=2)
        history = []
        for step in range(10):
            ours.zero_grad()
            x = batch(step, 0).half()
            # fp16 ends at 65504: on rank 1 alone, the loss times 2^24 has gradients beyond.
            loss = ours(x).float().square().mean() * (1.0 if dist.get_rank() == 1 else 1e-4)
            scaler.scale(loss).backward()
            scaler.unscale_()
            finite_norm = ours.clip_grad_norm_(1e9).isfinite().item()
            history.append((scaler.step(), scaler.current_scale))
            assert finite_norm == history[-1][0]
        return history, {name: value.isfinite().all().item() for name, value in ours.state_dict().items()}

    # Halved by each overflow, doubled after two good steps in a row: those before and after an overflow do not count.
    made_steps = [False] * 5 + [True, False, True, True, False]
    exponents = [23, 22, 21, 20, 19, 19, 18, 18, 19, 18]
    for history, finite in world(2).run(rank):
        assert history == [(step, 2.0**exponent) for step, exponent in zip(made_steps, exponents, strict=True)]
        assert all(finite.values())


def test_loss_scaling_leaves_the_result_as_it_is() -> None:
    def rank(scaled):
        ours = made("Stage2", make("stack"), Adam, lr=0.01)
        scaler = zero.LossScaler(ours, scale=1024.0, growth_interval=1)
        for step in range(3):
            ours.zero_grad()
            loss = loss_of(ours, batch(step, dist.get_rank()))
            if scaled:
                scaler.scale(loss).backward()
                assert scaler.step()
            else:
                loss.backward()
                ours.step()
        return ours.state_dict(), (scaler.current_scale, scaler.good_steps)

    (scaled, state), (plain, _) = world(2).run(rank, True)[0], world(2).run(rank, False)[0]
    close(scaled, plain)
    assert state == (8 * 1024.0, 0)


# -- frozen parameters -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_frozen_midway_is_left_alone_until_it_is_trained_again(engine) -> None:
    def frozen(model, step) -> None:
        for name, param in model.named_parameters():
            if "blocks.1" in name:
                param.requires_grad = step != 1

    def rank():
        model = make("stack")
        ours = made(engine, model, AdamW, weight_decay=0.5)
        for step in range(3):
            frozen(model, step)
            train(ours, dist.get_rank(), [step])
        return ours.state_dict(), ours.optimizer_state_dict()["state"]

    reference = make("stack")
    unsharded = AdamW(reference.parameters(), lr=0.1, weight_decay=0.5)
    for step in range(3):
        frozen(reference, step)
        unsharded.zero_grad()
        loss_of(reference, torch.cat([batch(step, rank) for rank in range(2)])).backward()
        unsharded.step()
    for weights, state in world(2).run(rank):
        close(weights, dict(reference.state_dict()))
        close(state, unsharded.state_dict()["state"])


def test_stage_3_shards_frozen_parameters_too_and_never_reduces_them() -> None:
    def rank():
        model = make("stack")
        model.blocks.requires_grad_(False)
        ours = made("Stage3", model, Adam)
        held = sum(param.numel() for param in model.parameters())
        train(ours, dist.get_rank(), range(2))
        frozen = [bucket.param_shard.numel() for bucket in ours._units.buckets if not bucket.trained]
        return held, frozen, ours.state_dict()

    run = world(4).run(rank)
    reference = make("stack")
    reference.blocks.requires_grad_(False)
    one_process(reference, Adam, {"lr": 0.1}, 4, range(2))
    for held, shards, weights in run:
        assert held == 0 and shards == [-(-149 // 4)] * 3
        close(weights, dict(reference.state_dict()))
    reduced = {call.total_bytes // 4 for call in run.comm[0].calls if call.op == "reduce_scatter"}
    assert reduced == {-(-sum(p.numel() for p in reference.parameters() if p.requires_grad) // 4) * 4}


# -- models and the ways they run --------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("engine", ["Stage2", "Stage3"])
@pytest.mark.parametrize("span", ["block", "inside a block", "two blocks"])
def test_activation_checkpointing_changes_nothing(engine, use_reentrant, span) -> None:
    class Checkpointed(type(make("stack"))):
        def forward(self, x):
            def run(fn, x):
                return checkpoint(fn, x, use_reentrant=use_reentrant)

            x = self.embed(x)
            if span == "block":
                for block in self.blocks:
                    x = x + run(block, x)
            elif span == "inside a block":
                for block in self.blocks:
                    x = x + block(x)
            else:
                x = run(lambda x: self.blocks[1](self.blocks[0](x)), x)
                x = x + self.blocks[2](x)
            return self.out(self.norm(x))

    class Inside(nn.Module):
        def __init__(self, block) -> None:
            super().__init__()
            self.first, self.rest = block[0], block[1:]

        def forward(self, x):
            return checkpoint(self.rest, self.first(x), use_reentrant=use_reentrant)

    def build():
        torch.manual_seed(0)
        model = Checkpointed()
        if span == "inside a block":
            model.blocks = nn.ModuleList(Inside(block) for block in model.blocks)
        return model

    def rank():
        ours = made(engine, build(), Adam, lr=0.01)
        train(ours, dist.get_rank(), range(2))
        return ours.state_dict()

    reference = build()
    one_process(reference, Adam, {"lr": 0.01}, 2, range(2))
    for weights in world(2).run(rank):
        close(weights, dict(reference.state_dict()))


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("order", [(0, 1, 2, 1), (1, 0, 1, 2)])
def test_a_layer_used_twice_under_checkpointing(engine, use_reentrant, order) -> None:
    """The reentrant kind gives the layer's gradient in two parts. The second may come after the first was reduced."""

    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))

        def forward(self, x):
            x = x.clone().requires_grad_()
            for number in order:
                x = checkpoint(lambda x, layer=self.layers[number]: layer(x).tanh(), x, use_reentrant=use_reentrant)
            return x

    def rank():
        ours = made(engine, Again(), **({} if engine == "Stage3" else {"bucket_bytes": 1}))
        train(ours, dist.get_rank(), range(2))
        for step in (2, 3):  # gradients of two backwards, without no_sync
            loss_of(ours, batch(step, dist.get_rank())).backward()
        ours.step()
        return ours.state_dict()

    reference = Again()
    optimizer, _ = one_process(reference, SGD, {"lr": 0.1}, 2, range(2))
    for step in (2, 3):
        loss_of(reference, torch.cat([batch(step, rank) for rank in range(2)])).backward()
    optimizer.step()
    for weights in world(2).run(rank):
        close(weights, dict(reference.state_dict()))


class Twice(nn.Module):
    """Runs its blocks in an order of its own, and one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(5, 5) for _ in range(4))

    def forward(self, x):
        for number in (0, 2, 1, 2, 3):
            x = self.blocks[number](x).tanh()
        return x


class Aside(nn.Module):
    """Keeps a loss of its blocks aside, which is not in what it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5)) for _ in range(3))
        self.norm = nn.LayerNorm(5)

    def forward(self, x):
        self.aside = 0.0
        for block in self.blocks:
            x = x + block(x)
            self.aside = self.aside + block(x.detach()).square().mean()
        return {"out": (self.norm(x), [x])}


@pytest.mark.parametrize(
    ("engine", "options"),
    [("DataParallel", {}), ("Stage1", {}), ("Stage2", {}), *(("Stage3", {"prefetch": ahead}) for ahead in (0, 1, 3))],
)
@pytest.mark.parametrize("model", [Twice, Aside])
def test_units_used_twice_out_of_order_or_by_a_loss_aside(engine, options, model) -> None:
    def loss(model, inner, x):
        out = model(x)
        return (out if isinstance(out, torch.Tensor) else out["out"][0] + inner.aside).square().mean()

    def build():
        torch.manual_seed(0)
        return model()

    def rank():
        inner = build()
        ours = made(engine, inner, Adam, lr=0.01, **options)
        for step in range(2):
            ours.zero_grad()
            loss(ours, inner, batch(step, 0)).backward()
            ours.step()
        return ours.state_dict()

    reference = build()
    optimizer = Adam(reference.parameters(), lr=0.01)
    for step in range(2):
        optimizer.zero_grad()
        loss(reference, reference, batch(step, 0)).backward()
        optimizer.step()
    for weights in world(2).run(rank):
        close(weights, dict(reference.state_dict()))


def over_the_norm(layer) -> None:
    layer.register_forward_pre_hook(lambda layer, args: (args[0] / layer.weight.square().sum().sqrt(),))


def times_the_norm(layer) -> None:
    layer.register_forward_hook(lambda layer, args, output: output * layer.weight.square().sum().sqrt())


def over_the_norm_in_backward(layer) -> None:
    layer.register_full_backward_hook(lambda layer, grads, _: (grads[0] / layer.weight.square().sum().sqrt(),))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "hook",
    [over_the_norm, times_the_norm, over_the_norm_in_backward, nn.utils.spectral_norm, nn.utils.weight_norm],
    ids=lambda hook: hook.__name__,
)
@pytest.mark.filterwarnings("ignore::FutureWarning")  # weight_norm is deprecated
def test_hooks_that_the_model_had_before_see_a_units_parameters(engine, hook) -> None:
    def build():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 5))
        hook(model[2])
        return model

    def rank():
        ours = made(engine, build())
        for step in range(3):
            ours.zero_grad()
            loss_of(ours, batch(step, 0)).backward()
            ours.step()
        return ours.state_dict()

    reference = build()
    optimizer = SGD(reference.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(reference, batch(step, 0)).backward()
        optimizer.step()
    for weights in world(2).run(rank):
        close(weights, dict(reference.state_dict()))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("together", [True, False])
def test_two_forwards_and_one_or_two_backwards(engine, together) -> None:
    def losses(model):
        return [loss_of(model, batch(0, 7)), loss_of(model, batch(1, 7)) * 3]

    def rank():
        ours = made(engine, make("stack"), Adam, lr=0.01)
        parts = losses(ours)
        for loss in [sum(parts)] if together else parts:
            loss.backward()
        norm = ours.clip_grad_norm_(100.0)
        ours.step()
        return norm.item(), ours.state_dict()

    reference = make("stack")
    optimizer = Adam(reference.parameters(), lr=0.01)
    sum(losses(reference)).backward()
    norm = nn.utils.clip_grad_norm_(reference.parameters(), 100.0).item()
    optimizer.step()
    for ours, weights in world(2).run(rank):
        assert ours == pytest.approx(norm, rel=1e-4)
        close(weights, dict(reference.state_dict()))


@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_add_up_until_zero_grad_whether_averaged_already_or_not(engine) -> None:
    def rank():
        ours = made(engine, make("corners"), lr=0.1)
        for step in range(3):  # without no_sync, and with a step in between
            loss_of(ours, batch(step, dist.get_rank())).backward()
            if step == 1:
                ours.step()
        norm = ours.clip_grad_norm_(100.0)
        ours.step()
        ours.optimizer.zero_grad()  # of a loop that was written for torch
        loss_of(ours, batch(3, dist.get_rank())).backward()
        ours.step()
        return norm.item(), ours.state_dict()

    reference = make("corners")
    optimizer = SGD(reference.parameters(), lr=0.1)
    for step in range(3):
        loss_of(reference, torch.cat([batch(step, rank) for rank in range(2)])).backward()
        if step == 1:
            optimizer.step()
    norm = nn.utils.clip_grad_norm_(reference.parameters(), 100.0).item()
    optimizer.step()
    optimizer.zero_grad()
    loss_of(reference, torch.cat([batch(3, rank) for rank in range(2)])).backward()
    optimizer.step()
    for ours, weights in world(2).run(rank):
        assert ours == pytest.approx(norm, rel=1e-4)
        close(weights, dict(reference.state_dict()))


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_buffers_are_the_first_ranks_at_the_start_in_evaluation_and_when_saved(engine, saved) -> None:
    def rank():
        torch.manual_seed(dist.get_rank())
        model = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5))
        model[1].running_mean.fill_(dist.get_rank())
        ours = made(engine, model)
        train(ours, dist.get_rank(), range(2))
        mine = model[1].running_mean.clone()
        if saved:
            return mine, None, ours.state_dict()  # right after training
        ours.eval()
        with torch.no_grad():
            output = ours(batch(0, 0))
        return mine, output, ours.state_dict()

    run = world(3).run(rank)
    assert not torch.equal(run[0][0], run[1][0])
    for _, output, state in run:
        close(output, run[0][1], rtol=0, atol=0)
        close(state, run[0][2], rtol=0, atol=0)
        close(state["1.running_mean"], run[0][0], rtol=0, atol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_schedule_of_the_engines_optimizer(engine) -> None:
    def rank():
        ours = made(engine, make("stack"), lr=1.0)
        schedule = torch.optim.lr_scheduler.StepLR(ours.optimizer, 1, gamma=0.5)
        for step in range(3):
            train(ours, dist.get_rank(), [step])
            schedule.step()
        return ours.state_dict(), ours.optimizer_state_dict()["param_groups"][0]["lr"]

    reference = make("stack")
    for step in range(3):
        one_process(reference, SGD, {"lr": 0.5**step}, 2, [step])
    for weights, lr in world(2).run(rank):
        close(weights, dict(reference.state_dict()))
        assert lr == 0.125


def test_data_parallel_shows_averaged_gradients_to_any_optimizer() -> None:
    def rank():
        model = make("stack")
        ours, theirs = made("DataParallel", model), SGD(model.parameters(), lr=0.1)
        for step in range(3):
            theirs.zero_grad()
            loss_of(ours, batch(step, dist.get_rank())).backward()
            theirs.step()
        return ours.state_dict()

    reference = make("stack")
    one_process(reference, SGD, {"lr": 0.1}, 2, range(3))
    for weights in world(2).run(rank):
        close(weights, dict(reference.state_dict()))


@pytest.mark.parametrize("engine", ["DataParallel", "Stage1", "Stage2"])
def test_a_model_goes_from_one_engine_to_the_next(engine) -> None:
    def rank():
        model = make("stack")
        for step in range(3):
            ours = made(engine, model)
            train(ours, dist.get_rank(), [step])
            del ours
        return model.state_dict()

    reference = make("stack")
    one_process(reference, SGD, {"lr": 0.1}, 2, range(3))
    for weights in world(2).run(rank):
        close(dict(weights), dict(reference.state_dict()))


def test_a_tensor_changed_in_place_is_found_although_stage_3_packs_it() -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 5)

        def forward(self, x):
            y = self.layer(x).exp()
            out = y * 2
            y += 1  # exp's backward needs y as it was
            return out

    def rank() -> None:
        made("Stage3", Wrong())(batch(0, 0)).sum().backward()

    with pytest.raises(RankError, match=r"a \[3, 5\] tensor that backward needs was modified in place"):
        world(2).run(rank)


class Sharing(nn.Module):
    """Blocks that share a module, as a transformer's blocks share their rotary positions, and one after them."""

    def __init__(self, shared) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.ModuleDict({"shared": shared, "own": nn.Linear(5, 5)}) for _ in range(3))
        self.head = nn.Linear(5, 2)
        for block in self.blocks:
            block.forward = lambda x, block=block: x + block["own"](block["shared"](x)).tanh()

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("shared", [nn.GELU, lambda: nn.BatchNorm1d(5, affine=False), lambda: nn.Linear(5, 5)])
def test_blocks_may_share_a_module(engine, shared) -> None:
    def build():
        torch.manual_seed(0)
        return Sharing(shared())

    def rank():
        ours = made(engine, build())
        for step in range(3):
            ours.zero_grad()
            loss_of(ours, batch(step, 0)).backward()
            ours.step()
        return ours.state_dict()

    reference = build()
    one_process(reference, SGD, {"lr": 0.1}, 1, range(3))
    for weights in world(2).run(rank):
        close(weights, dict(reference.state_dict()))


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_what_cannot_be_trained_is_refused() -> None:
    def of(model, **options):
        return lambda: made("Stage1", model(), **options)

    frozen = lambda: make("stack").requires_grad_(False)  # noqa: E731
    stray = {"param_groups": [{"params": [nn.Parameter(torch.ones(2))]}]}
    with pytest.raises(RankError, match="no parameter of the model requires a gradient"):
        world(2).run(of(frozen))
    with pytest.raises(RankError, match="no parameter of the model requires a gradient"):
        world(2).run(of(lambda: make("stack"), param_groups=[]))
    with pytest.raises(RankError, match=r"param_groups\[0\] holds a tensor of shape \[2\] that is no parameter"):
        world(2).run(of(lambda: make("stack"), **stray))

    def twice() -> None:
        model = make("stack")
        made("Stage1", model, param_groups=[{"params": model.parameters()}, {"params": [model.embed.weight]}])

    with pytest.raises(RankError, match=r"param_groups\[1\] holds a tensor of shape \[6, 5\] that .* the groups twice"):
        world(2).run(twice)
    with pytest.raises(RankError, match=r"zero_grad\(set_to_none=False\): an engine frees its gradients"):
        world(2).run(lambda: made("Stage1", make("stack")).zero_grad(set_to_none=False))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_parameter_that_a_rank_did_not_use_is_refused_unless_ranks_exchange_which_they_used(engine) -> None:
    def rank(**options) -> None:
        made = getattr(zero, engine)(make("corners"), Adam, **options)
        loss_of(made, batch(0, 0)).backward()
        made.step()

    with pytest.raises(RankError, match=r"no gradient to unused\..* Make the engine with find_unused_parameters=True"):
        world(2).run(rank)
    calls = world(2).run(rank, find_unused_parameters=True).comm[0].calls
    flags = [call.total_bytes for call in calls if call.op == "all_reduce" and call.total_bytes < 20]
    assert flags == [9]  # a byte for each parameter that is trained


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_without_a_backward_is_empty_except_in_stage_1_which_says_so(engine) -> None:
    def rank(**options):
        ours = made(engine, nn.Linear(2, 2), **options)
        before = ours.state_dict()
        ours.step()
        close(ours.state_dict(), before, rtol=0, atol=0)

    if engine == "Stage1":
        with pytest.raises(RankError, match=r"no parameter has had a gradient since zero_grad\. Call loss\.backward"):
            world(2).run(rank)
    else:
        world(2).run(rank)
    world(2).run(rank, find_unused_parameters=True)


def test_stage_1_steps_with_a_rank_that_made_no_backward_if_ranks_exchange_what_they_used() -> None:
    def rank(**options):
        ours = made("Stage1", nn.Linear(2, 2), lr=1.0, **options)
        before = ours.state_dict()["bias"]
        if dist.get_rank() == 0:
            ours(torch.ones(1, 2)).sum().backward()
        ours.step()
        return (before - ours.state_dict()["bias"]).tolist()

    with pytest.raises(RankError, match=r"rank 1: no parameter has had a gradient since zero_grad\..* Make the engine"):
        world(2).run(rank)
    assert [*world(2).run(rank, find_unused_parameters=True)] == [[pytest.approx(0.5)] * 2] * 2


@pytest.mark.parametrize("engine", ["DataParallel", "Stage1", "Stage2"])
def test_a_model_that_is_converted_after_the_engine_was_made_is_refused(engine) -> None:
    def rank() -> None:
        model = make("stack")
        ours = made(engine, model)
        model.double()
        ours(batch(0, dist.get_rank()))

    with pytest.raises(RankError, match=r"moved or converted since the engine .* Call model.to\(...\) before"):
        world(2).run(rank)


def test_a_state_of_other_groups_is_refused() -> None:
    def rank() -> None:
        ours = made("Stage3", make("stack"))
        ours.load_optimizer_state_dict(SGD([torch.ones(1, requires_grad=True)]).state_dict())

    with pytest.raises(RankError, match=r"the state has parameter groups of \[1\] parameters, and this engine has"):
        world(2).run(rank)


def test_a_models_state_is_no_optimizers_state() -> None:
    def rank() -> None:
        ours = made("Stage2", nn.Linear(2, 2))
        ours.load_optimizer_state_dict(ours.state_dict())

    with pytest.raises(RankError, match=r"keys 'state' and 'param_groups', and this has \['weight', 'bias'\]"):
        world(2).run(rank)


def test_units_must_be_modules_of_the_model_and_apart() -> None:
    def rank(units) -> None:
        model = make("stack")
        made("Stage3", model, units=units(model))

    with pytest.raises(RankError, match="units: a Linear of a Linear is in two units, or not"):
        world(2).run(rank, lambda model: [nn.Linear(2, 2)])
    with pytest.raises(RankError, match="units: a Linear of a Sequential is in two units"):
        world(2).run(rank, lambda model: [model.blocks[0], model.blocks[0][2]])
    with pytest.raises(RankError, match="units: a Sequential of a Sequential is in two units"):
        world(2).run(rank, lambda model: [model.blocks[0], model.blocks[0]])


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_is_neither_copied_nor_pickled(engine) -> None:
    def rank(copied) -> None:
        copied(made(engine, nn.Linear(2, 2)))

    for copied in (copy.deepcopy, torch.optim.swa_utils.AveragedModel, lambda ours: pickle.dumps(ours.ranks)):
        with pytest.raises(RankError, match=r"an engine cannot be copied or pickled.*AveragedModel\(model\)"):
            world(2).run(rank, copied)
    if engine == "Stage3":
        with pytest.raises(RankError, match="nor can the model of a Stage3"):
            world(2).run(rank, lambda ours: copy.deepcopy(ours.module))


@pytest.mark.parametrize("engine", ["DataParallel", "Stage1", "Stage2"])
def test_a_copy_of_the_model_trains_by_itself(engine) -> None:
    def rank():
        model = nn.Linear(5, 3)
        ours = made(engine, model)
        train(ours, dist.get_rank(), [0])
        ours.zero_grad()
        twin = copy.deepcopy(model)
        loss_of(twin, batch(1, dist.get_rank())).backward()
        return twin.weight.grad, [shard.values.grad for shard in ours.shards()]

    grads = [grad for grad, ours in world(2).run(rank) if ours.count(None) == len(ours)]
    assert len(grads) == 2 and not torch.equal(*grads)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("frozen", ["", "0", "2", "02"])
def test_two_parameters_in_the_same_memory_are_refused(engine, frozen) -> None:
    def rank() -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        model[2].weight = nn.Parameter(model[0].weight.data)
        for number in frozen:
            model[int(number)].weight.requires_grad_(False)
        made(engine, model)

    if frozen == "02":
        world(2).run(rank)
        return
    with pytest.raises(RankError, match=r"0.weight and 2.weight are two parameters in the same memory.* one param"):
        world(2).run(rank)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_group_that_is_added_later_is_refused(engine) -> None:
    def rank() -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        ours = made(engine, model, param_groups=list(model[1].parameters()))
        ours.optimizer.add_param_group({"params": list(model[0].parameters())})

    with pytest.raises(RankError, match=r"add_param_group: an engine trains .* all groups, param_groups=\[...\]"):
        world(2).run(rank)


@pytest.mark.parametrize("engine", ENGINES)
def test_adafactor_is_refused_where_parameters_are_cut(engine) -> None:
    def rank():
        ours = made(engine, nn.Linear(4, 4), torch.optim.Adafactor)
        loss_of(ours, torch.ones(1, 4)).backward()
        ours.step()

    world(1).run(rank)
    if engine == "DataParallel":
        world(2).run(rank)
        return
    with pytest.raises(RankError, match=r"Adafactor computes with whole matrices.* Use DataParallel, or a ShardedOpt"):
        world(2).run(rank)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_block_that_is_called_by_itself_trains_too(engine) -> None:
    def loss(model):
        return model.blocks[1](model.blocks[0](torch.ones(2, 6))).square().mean()

    def rank():
        model = make("stack")
        ours = made(engine, model, find_unused_parameters=True)
        for _ in range(2):
            ours.zero_grad()
            loss(model).backward()
            ours.step()
        return ours.state_dict()

    reference = make("stack")
    optimizer = SGD(reference.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss(reference).backward()
        optimizer.step()
    for weights in world(2).run(rank):
        close(weights, dict(reference.state_dict()))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_backward_after_clipping_adds_to_what_was_clipped(engine) -> None:
    def rank():
        torch.manual_seed(0)
        plain, inputs = nn.Linear(5, 3), [torch.randn(2, 5), torch.randn(2, 5)]
        made = getattr(zero, engine)(copy.deepcopy(plain), SGD, lr=0.1)
        optimizer = SGD(plain.parameters(), lr=0.1)
        made(inputs[0]).sum().backward()
        plain(inputs[0]).sum().backward()
        norms = made.clip_grad_norm_(0.5), torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        made(inputs[1]).sum().backward()
        plain(inputs[1]).sum().backward()
        made.step()
        optimizer.step()
        return torch.allclose(*norms), made.state_dict()["weight"], plain.state_dict()["weight"]

    for same_norm, ours, theirs in world(3).run(rank):
        assert same_norm
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_second_backward_of_one_forward_after_clipping_counts_too(engine) -> None:
    def rank():
        torch.manual_seed(0)
        plain = nn.Linear(3, 2)
        made = getattr(zero, engine)(copy.deepcopy(plain), SGD, lr=1.0)
        for model in (plain, made):
            y = model(torch.ones(4, 3))
            y[:, 0].sum().backward(retain_graph=True)
            nn.utils.clip_grad_norm_(plain.parameters(), 1e9) if model is plain else made.clip_grad_norm_(1e9)
            (10 * y[:, 1].sum()).backward()
        SGD(plain.parameters(), lr=1.0).step()
        made.step()
        return made.state_dict(), plain.state_dict()

    for ours, theirs in world(2).run(rank):
        close(ours, dict(theirs))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("clip_before_zero_grad", [False, True])
def test_training_through_the_module_after_a_step(engine, clip_before_zero_grad) -> None:
    def rank():
        model = make("stack")
        ours = made(engine, model)
        for step in range(2):
            ours.zero_grad()
            loss_of(model, batch(step, dist.get_rank())).backward()
            ours.step()
            if clip_before_zero_grad:
                ours.clip_grad_norm_(1e9)
        return ours.state_dict()

    reference = make("stack")
    one_process(reference, SGD, {"lr": 0.1}, 2, range(2))
    for weights in world(2).run(rank):
        close(weights, dict(reference.state_dict()))


@pytest.mark.parametrize("engine", ENGINES)
def test_an_evaluation_between_unscaling_and_the_step_changes_nothing(engine) -> None:
    def rank():
        ours = made(engine, make("stack"))
        scaler = zero.LossScaler(ours, scale=1024.0)
        scaler.scale(loss_of(ours, batch(0, dist.get_rank()))).backward()
        scaler.unscale_()
        with torch.no_grad():
            ours(batch(1, 0))
        assert scaler.step()
        return ours.state_dict()

    reference = make("stack")
    one_process(reference, SGD, {"lr": 0.1}, 2, [0])
    for weights in world(2).run(rank):
        close(weights, dict(reference.state_dict()))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_that_is_left_out_after_unscaling_leaves_the_next_one_right(engine) -> None:
    def rank():
        ours = made(engine, make("stack"))
        scaler = zero.LossScaler(ours, scale=1024.0)
        for step in range(2):
            ours.zero_grad()
            scaler.scale(loss_of(ours, batch(step, dist.get_rank()))).backward()
            scaler.unscale_()
            if step == 1:  # the first norm may have been too large
                assert scaler.step()
        return ours.state_dict()

    reference = make("stack")
    one_process(reference, SGD, {"lr": 0.1}, 2, [1])
    for weights in world(2).run(rank):
        close(weights, dict(reference.state_dict()))


@dataclass(slots=True)
class Output:
    scores: torch.Tensor


@pytest.mark.parametrize("engine", ENGINES)
def test_an_output_may_be_a_dataclass_with_slots(engine) -> None:
    class Model(nn.Linear):
        def forward(self, x):
            return Output(super().forward(x))

    def rank():
        ours = made(engine, Model(3, 2))
        ours(torch.ones(4, 3)).scores.sum().backward()
        return ours.clip_grad_norm_(1e9).item()

    assert [*world(2).run(rank)] == pytest.approx([(2 * 3 * 4**2 + 2 * 4**2) ** 0.5] * 2)


class Holder:
    """What no engine looks into."""

    def __init__(self, value) -> None:
        self.value = value


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("blocks", [0, 3])
def test_a_model_and_its_blocks_may_return_any_object(engine, blocks) -> None:
    class Block(nn.Linear):
        def forward(self, held):
            return Holder(super().forward(held.value).tanh())

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.blocks = Block(5, 5), nn.ModuleList(Block(5, 5) for _ in range(blocks))

        def forward(self, x):
            held = self.first(Holder(x))
            for block in self.blocks:
                held = block(held)
            return torch.distributions.Normal(held.value, 1.0)

    def rank():
        ours = made(engine, Model())
        for step in range(3):
            ours.zero_grad()
            (-ours(batch(step, dist.get_rank())).log_prob(torch.ones(3, 5)).mean()).backward()
            ours.step()
        return ours.state_dict()

    reference = Model()
    optimizer = SGD(reference.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        together = torch.cat([batch(step, rank) for rank in range(2)])
        (-reference(together).log_prob(torch.ones(6, 5)).mean()).backward()
        optimizer.step()
    for weights in world(2).run(rank):
        close(weights, dict(reference.state_dict()))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_gradient_penalty_trains_if_ranks_exchange_which_parameters_they_used(engine) -> None:
    def loss(model, x):
        y = model(x.requires_grad_())
        (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.mean() + grad.square().sum(1).mean()

    def net():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def rank(**options):
        ours = made(engine, net(), **options)
        loss(ours, torch.full((2, 3), 1.0 + dist.get_rank())).backward()
        ours.step()
        return ours.state_dict()

    reference = net()
    (sum(loss(reference, torch.full((2, 3), 1.0 + rank)) for rank in range(2)) / 2).backward()
    SGD(reference.parameters(), lr=0.1).step()
    for weights in world(2).run(rank, find_unused_parameters=True):
        close(weights, dict(reference.state_dict()))
    if engine != "Stage1":
        with pytest.raises(RankError, match=r"or the backward was torch.autograd.grad\. Make the engine"):
            world(2).run(rank)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("engine", ENGINES)
def test_values_that_are_written_to_the_shards_stay(engine, dtype) -> None:
    """As docs/limits.md says: a critic whose weights are clamped after each step."""

    def largest():
        torch.manual_seed(0)
        ours = made(engine, nn.Linear(5, 3).to(dtype), lr=1e-4)
        ours(torch.ones(2, 5, dtype=dtype)).sum().backward()
        ours.step()
        with torch.no_grad():
            for shard in ours.shards():
                shard.values.clamp_(-0.01, 0.01)
            ours.gather_parameters()
        clamped = ours(torch.ones(2, 5, dtype=dtype)).abs().max().item()
        ours.zero_grad()
        ours(torch.ones(2, 5, dtype=dtype)).sum().backward()
        ours.step()
        return clamped, max(value.abs().max().item() for value in ours.state_dict().values())

    for clamped, later in world(2).run(largest):
        assert clamped <= 0.0605 and later < 0.011


@pytest.mark.parametrize("engine", ENGINES)
def test_masters_of_what_a_state_lacks_are_kept(engine) -> None:
    def masters():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 3))
        model.append(nn.Linear(3, 3))[2].weight = model[1].weight
        ours = made(engine, model.bfloat16(), lr=1e-4)
        ours(torch.ones(2, 5, dtype=torch.bfloat16)).sum().backward()
        ours.step()
        read = lambda: [state["master_param"] for state in ours.optimizer_state_dict()["state"].values()]  # noqa: E731
        before = read()
        ours.load_state_dict({}, strict=False)
        nothing = read()
        ours.load_state_dict({"0.bias": torch.ones(3), "2.weight": torch.ones(3, 3)}, strict=False)
        return before, nothing, read()

    for before, nothing, later in world(2).run(masters):
        assert any((each != each.bfloat16().float()).any() for each in before)
        close(nothing, before, rtol=0, atol=0)
        expected = [before[0], torch.ones(3), torch.ones(3, 3), *before[3:]]
        close(later, expected, rtol=0, atol=0)
