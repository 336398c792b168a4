"""A stage of ZeRO on one axis and tensor parallel on the other train as one process does."""

import copy

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel

from course_lib import RankError, TinyGPT, World, batch, zero
from course_lib.parallel import (
    PipelinePart,
    TensorParallelGPT,
    clip_grad_norm_,
    load_whole_state_dict,
    whole_state_dict,
)

MAX_NORM = 0.5  # below the norm of every step here


def model():
    torch.manual_seed(0)
    # In float64, because the gradient of a key's bias is nothing but rounding, of which Adam makes whole steps.
    return TinyGPT(width=16, layers=2, heads=4, context=12).double()


def alone(steps):
    whole, history = model(), []
    optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-2)
    for step in steps:
        inputs, targets = batch(step, 8, 12)
        loss = cross_entropy(whole(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(whole.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        history.append((loss.item(), norm.item()))
    return history, whole.state_dict()


def engine_on(shape, stage=zero.Stage3, sequence_parallel=False):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
    cut = TensorParallelGPT(model(), mesh.get_group("tensor"), sequence_parallel=sequence_parallel)
    return mesh, stage(cut, torch.optim.AdamW, mesh.get_group("data"), lr=1e-2)


def train(mesh, engine, steps):
    history = []
    for step in steps:
        inputs, targets = (x.chunk(mesh.size(0))[mesh.get_local_rank("data")] for x in batch(step, 8, 12))
        scores = engine(inputs)
        loss = engine.module.loss_of(scores, targets)
        loss.backward()
        norm = clip_grad_norm_(engine, MAX_NORM, mesh.get_group("tensor"))
        engine.step()
        engine.zero_grad()
        total = loss.detach().clone()
        torch.distributed.all_reduce(total, group=mesh.get_group("data"))
        history.append((total.item() / mesh.size(0), norm.item()))
    return history


def trained(shape, stage, sequence_parallel):
    mesh, engine = engine_on(shape, stage, sequence_parallel)
    return train(mesh, engine, range(3)), whole_state_dict(engine, mesh.get_group("tensor"))


def same(ours, expected) -> None:
    for (loss, norm), (their_loss, their_norm) in zip(ours, expected, strict=True):
        assert loss == pytest.approx(their_loss, rel=1e-8)
        assert norm == pytest.approx(their_norm, rel=1e-8)


@pytest.mark.parametrize(("shape", "sequence_parallel"), [((2, 2), False), ((2, 2), True), ((1, 4), True)], ids=str)
def test_stage_3_and_tensor_parallel_equal_one_process(shape, sequence_parallel) -> None:
    history, state = alone(range(3))
    for ours, whole in World(4).run(trained, shape, zero.Stage3, sequence_parallel):
        same(ours, history)
        for name, value in state.items():
            torch.testing.assert_close(whole[name], value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("stage", [zero.DataParallel, zero.Stage1])
def test_every_stage_goes_with_tensor_parallel(stage) -> None:
    history, _ = alone(range(3))
    for ours, _ in World(4).run(trained, (2, 2), stage, False):
        same(ours, history)


@pytest.mark.parametrize("stage", [zero.DataParallel, zero.Stage1, zero.Stage2, zero.Stage3])
def test_a_backward_after_clipping_adds_to_what_was_clipped(stage) -> None:
    whole = model()
    for number in range(2):
        inputs, targets = batch(number, 8, 12)
        cross_entropy(whole(inputs).flatten(0, 1), targets.flatten()).backward()
        if number == 0:
            torch.nn.utils.clip_grad_norm_(whole.parameters(), MAX_NORM)
    norm = torch.nn.utils.get_total_norm([param.grad for param in whole.parameters()]).item()

    def norm_of_both():
        mesh, engine = engine_on((2, 2), stage)
        for number in range(2):
            inputs, targets = (x.chunk(2)[mesh.get_local_rank("data")] for x in batch(number, 8, 12))
            engine.module.loss_of(engine(inputs), targets).backward()
            before = clip_grad_norm_(engine, MAX_NORM, mesh.get_group("tensor"))
        return before.item()

    assert [*World(4).run(norm_of_both)] == pytest.approx([norm] * 4, rel=1e-8)


@pytest.mark.parametrize("stage", [zero.Stage1, zero.Stage3])
def test_a_norm_on_ranks_that_own_no_gradient(stage) -> None:
    """Theirs was a zero in float32, and the ranks disagreed about the dtype."""

    def made():
        torch.manual_seed(0)
        return TinyGPT(width=2, layers=1, heads=2, context=12).double()

    def norm():
        mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("data", "tensor"))
        cut = TensorParallelGPT(made(), mesh.get_group("tensor"))
        engine = stage(
            cut, torch.optim.SGD, mesh.get_group("data"), param_groups=[{"params": [cut.get_parameter(name)]}]
        )
        cut.loss_of(engine(inputs), targets).backward()
        return clip_grad_norm_(engine, MAX_NORM, mesh.get_group("tensor"))

    whole, (inputs, targets) = made(), batch(0, 8, 12)
    cross_entropy(whole(inputs).flatten(0, 1), targets.flatten()).backward()
    name, param = next((name, param) for name, param in whole.named_parameters() if param.numel() == 2)
    for ours in World(6).run(norm):
        torch.testing.assert_close(ours, param.grad.norm())


def saved(shape):
    mesh, engine = engine_on(shape)
    train(mesh, engine, range(2))
    return whole_state_dict(engine, mesh.get_group("tensor"))


def loaded(shape, state):
    mesh, engine = engine_on(shape)
    load_whole_state_dict(engine, state, mesh.get_group("tensor"))
    return whole_state_dict(engine, mesh.get_group("tensor"))


def test_other_meshes_load_the_model() -> None:
    state = World(4).run(saved, (2, 2))[0]
    for ranks, shape in (2, (1, 2)), (4, (4, 1)), (1, (1, 1)):
        for ours in World(ranks).run(loaded, shape, state):
            torch.testing.assert_close(dict(ours), dict(state), rtol=0, atol=0)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda cut: AveragedModel(cut).module], ids=["deepcopy", "average"])
def test_a_copy_of_a_model_has_the_parts_that_are_cut(copied) -> None:
    """A deep copy of a parameter lost which dimension was cut: a rank returned its part as the whole.

    Later, a model with a group of its own could not be copied: `cannot pickle ProcessGroup`.
    """
    expected = alone(range(1))[0][0][1]

    def state_and_norm():
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
        cut = copied(TensorParallelGPT(model(), mesh.get_group("tensor")))
        groups = [torch.distributed.new_group([rank]) for rank in range(2)]
        engine = zero.Stage2(cut, torch.optim.AdamW, groups[torch.distributed.get_rank()])
        inputs, targets = batch(0, 8, 12)
        cut.loss_of(engine(inputs), targets).backward()
        in_average = whole_state_dict(AveragedModel(cut))  # with the keys that AveragedModel gives them
        assert torch.equal(in_average["module.head.weight"], whole_state_dict(cut)["head.weight"])
        return whole_state_dict(cut), clip_grad_norm_(engine, MAX_NORM).item()

    for state, norm in World(2).run(state_and_norm):
        torch.testing.assert_close(dict(state), dict(model().state_dict()), rtol=0, atol=0)
        assert norm == pytest.approx(expected, rel=1e-8)


def saved_in_files(folder, of_group):
    mesh, engine = engine_on((2, 2))
    folder = folder / of_group.format(mesh.get_local_rank("tensor"))
    train(mesh, engine, range(1))
    zero.save_checkpoint(engine, folder)
    train(mesh, engine, range(1, 2))
    zero.save_checkpoint(engine, folder)
    _, other = engine_on((2, 2))
    torch.nn.init.zeros_(next(iter(other.shards())).values)
    zero.load_checkpoint(other, folder)
    return [whole_state_dict(each, mesh.get_group("tensor")) for each in (engine, other)]


def test_each_group_saves_in_its_own_folder(tmp_path) -> None:
    for trained, loaded in World(4).run(saved_in_files, tmp_path, "{}"):
        torch.testing.assert_close(dict(loaded), dict(trained), rtol=0, atol=0)


def test_two_groups_that_save_in_one_folder_are_refused(tmp_path) -> None:
    """Each wrote the files 0.pt and 1.pt, so a rank loaded the parts of a different one."""
    message = (
        r"rank (0|1): ranks \[(0, 2|1, 3)\] save in .*, where ranks \[(0, 2|1, 3)\] have saved.* a folder of its own"
    )
    with pytest.raises(RankError, match=message):
        World(4).run(saved_in_files, tmp_path, "")


def test_a_later_run_saves_where_other_ranks_have_saved(tmp_path) -> None:
    def save(own) -> None:
        groups = [torch.distributed.new_group(ranks) for ranks in own]
        for group, ranks in zip(groups, own, strict=True):
            if torch.distributed.get_rank() in ranks:
                engine = zero.Stage2(torch.nn.Linear(2, 2), torch.optim.SGD, group)
                zero.save_checkpoint(engine, tmp_path)

    World(4).run(save, [[0, 1]])
    World(4).run(save, [[2, 3], [0, 1, 2, 3]])
    assert len([*tmp_path.glob("*/*.pt")]) == 4


@pytest.mark.parametrize("use", [whole_state_dict, lambda engine, group=None: clip_grad_norm_(engine, 1.0, group)])
def test_a_group_over_which_nothing_is_cut_is_refused(use) -> None:
    """Without its group, a norm on a mesh contained each part twice, and a whole state had twice the rows."""

    def forgotten() -> None:
        use(engine_on((2, 2), zero.Stage2)[1])

    with pytest.raises(
        RankError, match=r"this TensorParallelGPT is cut over ranks \[(0, 1|2, 3)\], and `group` has ranks"
    ):
        World(4).run(forgotten)

    def of_a_pipeline() -> None:
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "pipe"))
        part = PipelinePart(model(), mesh.get_local_rank("pipe"), 2)
        use(zero.Stage2(part, torch.optim.SGD, mesh.get_group("data")), mesh.get_group("pipe"))

    with pytest.raises(RankError, match="this PipelinePart is not cut by tensor parallel"):
        World(2).run(of_a_pipeline)


@pytest.mark.parametrize(
    "use", [lambda engine: engine.clip_grad_norm_(1.0), lambda engine: zero.LossScaler(engine).unscale_()]
)
def test_an_engines_own_norm_is_refused_around_a_cut_model(use) -> None:
    """It was that of the engine's ranks, and scaled what all ranks have differently on each."""

    def train() -> None:
        engine = engine_on((1, 2), zero.Stage2)[1]
        inputs, targets = batch(0, 8, 12)
        engine.module.loss_of(engine(inputs), targets).backward()
        use(engine)

    with pytest.raises(RankError, match=r"has parts on ranks \[0, 1\], and this engine sees the gradients of one"):
        World(2).run(train)
