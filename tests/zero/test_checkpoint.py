"""Checkpoints: saved on some ranks and resumed on others, at any stage; and never half of one."""

import copy
import os
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch.optim import SGD, AdamW
from torch.optim.swa_utils import AveragedModel

from course_lib import RankError, zero
from tests.zero.models import batch, loss_of, make, train, unused_in, world

ENGINES = ["DataParallel", "Stage1", "Stage2", "Stage3"]


def build(engine, seed=0, model="corners", dtype=torch.float32, **options):
    small = {} if engine == "Stage3" else {"bucket_bytes": 100}
    made = make(model, seed).to(dtype)
    return getattr(zero, engine)(made, AdamW, **{"lr": 0.01, **small, **unused_in(made), **options})


def state(engine):
    return engine.state_dict(), engine.optimizer_state_dict()


def same_batch(engine, steps):
    """Train on a batch that is the same on every rank: then 2 and 4 ranks make the same sums, to the last bit."""
    for step in steps:
        engine.zero_grad()
        loss_of(engine, batch(step, 0)).backward()
        engine.step()
    return state(engine)


def exactly(one, other) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def saved(engine, folder, steps=range(2), **options):
    """Train an engine and save it; what it was when saved, and what it came to two steps later."""
    made = build(engine, **options)
    same_batch(made, steps)
    zero.save_checkpoint(made, folder, extra={"step": len(steps)})
    return state(made), same_batch(made, range(len(steps), len(steps) + 2))


def resumed(engine, folder, **options):
    made = build(engine, seed=7, lr=0.5, **options)
    step = zero.load_checkpoint(made, folder)["step"]
    return state(made), same_batch(made, range(step, step + 2))


# -- going on ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_saved_on_4_ranks_and_resumed_on_1_and_3(engine, tmp_path) -> None:
    then, later = world(4).run(saved, engine, tmp_path)[0]
    for world_size in (1, 3):
        for loaded, trained in world(world_size).run(resumed, engine, tmp_path):
            exactly(loaded, then)
            # A third of a gradient, three times, is not quite the gradient.
            tolerance = {"rtol": 1e-4, "atol": 1e-6} if world_size == 3 else {"rtol": 0, "atol": 0}
            torch.testing.assert_close(trained, later, **tolerance)


@pytest.mark.parametrize("source", ENGINES)
def test_any_stage_goes_on_where_any_other_was_saved(source, tmp_path) -> None:
    then, later = world(2).run(saved, source, tmp_path)[1]
    for engine in ENGINES:
        for loaded, trained in world(2).run(resumed, engine, tmp_path):
            exactly(loaded, then)
            torch.testing.assert_close(trained, later, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_each_rank_goes_on_with_its_own_data(engine, tmp_path) -> None:
    def rank(resume):
        made = build(engine, seed=7 * resume)
        if resume:
            zero.load_checkpoint(made, tmp_path)
        else:
            train(made, dist.get_rank(), range(2))
            zero.save_checkpoint(made, tmp_path)
        train(made, dist.get_rank(), range(2, 4))
        return state(made)

    straight, interrupted = (world(3).run(rank, resume)[2] for resume in (False, True))
    exactly(interrupted, straight)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bf16_model_is_saved_with_all_32_bits(engine, tmp_path) -> None:
    def rank(resume):
        made = build(engine, 7 * resume, model="stack", dtype=torch.bfloat16, lr=1e-4)
        if resume:
            zero.load_checkpoint(made, tmp_path)
        else:
            loss_of(made, batch(0, 0).bfloat16()).backward()
            made.step()
            zero.save_checkpoint(made, tmp_path)
        return state(made)

    then, loaded = world(2).run(rank, False)[0], world(3).run(rank, True)[1]
    exactly(loaded, then)
    masters = [entry["master_param"] for entry in then[1]["state"].values()]
    assert any((master != master.bfloat16().float()).any() for master in masters)


class WithExtraState(torch.nn.Linear):
    """Keeps what is neither a parameter nor a buffer, and gives it to `state_dict` in the form that `pack` chooses."""

    def __init__(self, seen, pack=torch.tensor) -> None:
        super().__init__(2, 2)
        self.seen, self.pack = seen, pack

    def get_extra_state(self):
        return self.pack(self.seen)

    def set_extra_state(self, state) -> None:
        self.seen = state.tolist() if isinstance(state, torch.Tensor) else state


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("pack", [torch.tensor, list], ids=["tensor", "list"])
def test_what_modules_give_as_extra_state_is_loaded_too(engine, pack, tmp_path) -> None:
    def rank(resume):
        seen = [0, 0] if resume else [3 + 10 * dist.get_rank(), 4]
        model = torch.nn.Sequential(WithExtraState(seen, pack), WithExtraState([*seen, 5], pack))
        made = getattr(zero, engine)(model, SGD, lr=0.1)
        zero.load_checkpoint(made, tmp_path) if resume else zero.save_checkpoint(made, tmp_path)
        return model[0].seen, model[1].seen

    world(2).run(rank, False)
    assert [*world(3).run(rank, True)] == [([3, 4], [3, 4, 5])] * 3


class KeepsTensor(torch.nn.Linear):
    """Keeps its extra state as it gets it: an amax history of fp8, say."""

    history = torch.ones(4)

    def get_extra_state(self):
        return self.history

    def set_extra_state(self, state) -> None:
        self.history = state


@pytest.mark.parametrize("engine", ENGINES)
def test_what_was_loaded_is_not_in_the_files_which_the_next_checkpoint_removes(engine, tmp_path) -> None:
    """An `extra` was: as long as the caller kept it, removed files took space on the disk."""

    def kept():
        model = torch.nn.Sequential(KeepsTensor(2, 2), torch.nn.BatchNorm1d(2))
        made = getattr(zero, engine)(model, AdamW, lr=torch.tensor(0.1))
        loss_of(made, torch.randn(4, 2)).backward()
        made.step()
        zero.save_checkpoint(made, tmp_path, extra={"step": torch.ones(3)})
        extra = zero.load_checkpoint(made, tmp_path)
        before = copy.deepcopy([extra, state(made)])
        dist.barrier()
        for file in tmp_path.glob("*/*.pt"):  # a map shows what is written to its file
            with file.open("r+b") as stream:
                stream.write(bytes(file.stat().st_size))
        dist.barrier()
        return before, [extra, state(made)]

    for before, after in world(2).run(kept):
        exactly(after, before)


def test_an_extra_state_that_could_not_be_loaded_again_is_not_saved(tmp_path) -> None:
    def save() -> None:
        model = torch.nn.Sequential(WithExtraState(tmp_path, pack=lambda path: path))
        zero.save_checkpoint(zero.Stage2(model, SGD), tmp_path)

    with pytest.raises(RankError, match=r"extra state of a WithExtraState contains a pathlib.* would refuse"):
        world(2).run(save)


# -- never half of one -------------------------------------------------------------------------------------------------


def test_the_checkpoint_before_is_kept_until_the_next_is_complete_and_then_removed(tmp_path) -> None:
    def save() -> None:
        made = build("Stage2")
        for step in range(2):
            zero.save_checkpoint(made, tmp_path, extra={"step": step})

    world(2).run(save)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "latest"]


def test_a_rank_that_fails_while_it_writes_leaves_the_checkpoint_before(tmp_path, monkeypatch) -> None:
    then, _ = world(2).run(saved, "Stage3", tmp_path)[0]

    def fails_on_rank_1(_) -> None:
        if dist.get_rank() == 1:
            raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails_on_rank_1)
        with pytest.raises(RankError, match="no space left on device"):
            world(2).run(saved, "Stage3", tmp_path, range(5))
    exactly(world(3).run(resumed, "Stage3", tmp_path)[0][0], then)
    world(2).run(saved, "Stage3", tmp_path, range(3))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "latest"], "what was left of the second is removed"


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_model_is_refused(tmp_path) -> None:
    world(2).run(saved, "Stage1", tmp_path)
    told = r"the checkpoint is of another model: blocks\.0\.0\.bias has no elements there and 11 here\. Make"
    with pytest.raises(RankError, match=told):
        world(2).run(resumed, "Stage1", tmp_path, model="stack")


def test_what_could_not_be_loaded_again_is_not_saved(tmp_path) -> None:
    def save() -> None:
        zero.save_checkpoint(build("Stage1"), tmp_path, extra={"folder": tmp_path})

    with pytest.raises(RankError, match=r"extra contains a pathlib.* which load_checkpoint would refuse. Save numbers"):
        world(2).run(save)


def test_a_checkpoint_of_other_groups_is_refused(tmp_path) -> None:
    def resume() -> None:
        model = make("corners")
        groups = [{"params": [param]} for param in model.parameters()]
        zero.load_checkpoint(zero.Stage2(model, SGD, param_groups=groups), tmp_path)

    world(2).run(saved, "Stage1", tmp_path)
    with pytest.raises(
        RankError, match=r"the state has parameter groups of \[10\] parameters, and this engine has groups of \[1, 1"
    ):
        world(2).run(resume)


@pytest.mark.parametrize("stage", [zero.DataParallel, zero.Stage1, zero.Stage2, zero.Stage3])
def test_an_average_of_weights_is_that_of_one_process(stage) -> None:
    """As docs/limits.md says: an engine cannot be copied, but an average that was made before it can follow."""

    def averaged(engine_of):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        average = AveragedModel(model)
        trained, optimizer, whole = engine_of(model)
        for step in range(3):
            trained(torch.full((2, 4), 1.0 + step)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            with whole():
                average.update_parameters(model)
        return [param.detach().clone() for param in average.parameters()]

    def sharded():
        def engine_of(model):
            engine = stage(model, torch.optim.SGD, lr=0.1)
            return engine, engine, engine.whole

        return averaged(engine_of)

    expected = averaged(lambda model: (model, torch.optim.SGD(model.parameters(), lr=0.1), nullcontext))
    for ours in world(2).run(sharded):
        torch.testing.assert_close([*ours], expected)
