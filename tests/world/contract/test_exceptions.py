"""What a learner reads of an exception: its line, the lines of a cell, its traceback, and no frames of ours."""

import bdb
import linecache
import os
import pickle
import signal
import time
from contextlib import ExitStack, suppress
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from course_lib import RankError, World
from tests.world import functional
from tests.world.programs import come_to_their_waits, failure, lines, rank


def divide_by_zero() -> float:
    return 1 / 0


def cell(number, source, variables) -> None:
    """Run a cell of a notebook: each is a file of its own."""
    name = f"<cell {number}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), variables)


def test_the_traceback_has_the_lines_of_a_cell(world) -> None:
    variables: dict = {"__name__": "__main__"}
    cell(5, 'def program():\n    raise KeyError("in a cell")\n', variables)
    error = failure(world(1), variables["program"])
    head = "rank 0\nTraceback (most recent call last):\n"
    assert error.traceback.startswith(f'{head}  File "<cell 5>", line 2, in program\n')
    assert '    raise KeyError("in a cell")' in error.traceback
    assert 'raise KeyError("in a cell")' in lines(error)[1]


def test_the_traceback_leaves_out_what_stands_between_your_line_and_torch(world) -> None:
    def program() -> None:
        try:
            os.environ["MISSING"]
        except KeyError:
            torch.cat([torch.ones(2, 2), torch.ones(3, 3)], 1)

    trace = failure(world(1), program).traceback
    assert 'os.environ["MISSING"]' in trace and "torch.cat(" in trace and "course_lib" not in trace


def test_a_text_that_ends_the_rank_is_left_out(local_world) -> None:
    class Textless(Exception):
        def __str__(self) -> str:
            raise SystemExit(1)

        __repr__ = __str__

    def program(exit: bool) -> None:
        raise SystemExit(Textless()) if exit else Textless

    told = "<no text: its __str__ raised SystemExit>"
    assert lines(failure(local_world(1), partial(program, False)))[0] == f"rank 0 of 1 raised Textless: {told}"
    assert lines(failure(local_world(1), partial(program, True)))[0] == f"rank 0 ended with sys.exit({told})"


class Nameless(type):
    @property
    def __name__(cls) -> str:
        raise KeyError("no name")


class Homeless(type):
    @property
    def __module__(cls) -> str:
        raise KeyError("no module")


class Classless(Exception):
    @property
    def __class__(self) -> type:
        raise KeyError("no class")


def bad_rule() -> SyntaxError:
    error = SyntaxError("bad rule")
    error.filename, error.lineno, error.offset, error.text = "rules.cfg", 3, 2, ["no", "text"]  # type: ignore[assignment]
    return error


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (bad_rule, "SyntaxError: bad rule (rules.cfg, line 3)"),
        (partial(Homeless, "Lost", (Exception,), {}), "Lost"),
        (partial(Nameless, "Lost", (Exception,), {}), "KeyError: 'no name'"),
        (Classless, "KeyError: 'no class'"),
    ],
)
def test_an_exception_that_python_cannot_show_leaves_no_peer_waiting(local_world, make, told) -> None:
    def program() -> None:
        if dist.get_rank() == 1:
            raise make()
        dist.barrier()

    error = failure(local_world(2), program)
    assert error.kind == "raised" and lines(error)[0] == f"rank 1 of 2 raised {told}"
    assert error.traceback.startswith("rank 1\nTraceback (most recent call last):\n  File ")
    assert f"\n{told}\n" in error.traceback


def test_an_exception_of_no_line_of_yours_asks_what_your_code_passed_on(local_world) -> None:
    shown = lines(failure(local_world(1), partial(torch.zeros, -1)))
    assert shown[1:] == [
        "  rank 0 raised in library code",
        "Next: no line of yours raised this. Look at what your code returned or passed on, and run the cell again.",
    ]


def test_the_line_that_called_a_helper_of_an_earlier_cell(local_world) -> None:
    variables = {"__name__": "__main__", "torch": torch, "dist": dist}
    cell(1, "def reduce(x):\n    if x[0]:\n        raise ValueError('odd')\n    dist.all_reduce(x)\n", variables)
    cell(2, "def program():\n    x = torch.full([2], dist.get_rank())\n    reduce(x)\n", variables)
    shown = lines(failure(local_world(2), variables["program"]))[1:3]
    caller = ", called from <cell 2> line 3, in program:  reduce(x)"
    assert shown == [
        "  rank 1 raised at <cell 1> line 3, in reduce:  raise ValueError('odd')" + caller,
        "  rank 0 waited in all_reduce #1 at <cell 1> line 4, in reduce:  dist.all_reduce(x)" + caller,
    ]


def test_the_error_can_be_pickled(local_world) -> None:
    error = pickle.loads(pickle.dumps(failure(local_world(2), divide_by_zero)))
    assert error.kind == "raised" and len(error.ranks) == 2 and "ZeroDivisionError" in error.traceback


def test_ipython_shows_the_message_and_no_frames_of_ours(local_world) -> None:
    rendered = "\n".join(failure(local_world(2), divide_by_zero)._render_traceback_())
    assert rendered.startswith("RankError: both ranks raised ZeroDivisionError")
    shown, advice = rendered.split("\nLibrary frames are left out.")
    assert "course_lib" not in shown and "RankError.last().traceback" in advice


def test_ipython_shows_no_line_that_a_notebook_would_break(local_world) -> None:
    def program() -> None:
        raise ValueError(" ".join(["word"] * 60))

    rendered = "\n".join(failure(local_world(2), program)._render_traceback_())
    assert rendered.count("word") >= 60 and max(map(len, rendered.split("\n"))) <= 88


def test_what_ranks_printed_before_the_failure_is_kept_and_shown_once(world, capsys) -> None:
    def program() -> None:
        print("so far")
        raise ValueError

    error = failure(world(2), program)
    assert error.output == ("so far\n", "so far\n")
    assert capsys.readouterr().out.count("[rank 1] so far") == 1


def test_every_rank_that_returned_early_is_named(local_world) -> None:
    def program() -> None:
        if rank() in (0, 3):
            dist.barrier()

    headline = lines(failure(local_world(4), program))[0]
    assert headline == "ranks 1, 2 returned without the barrier #1 that ranks 0, 3 wait in"


def test_a_rank_that_has_returned_is_at_no_line(local_world) -> None:
    def leave_early() -> None:
        if rank() != 0:
            dist.all_reduce(torch.ones(1))

    for _ in range(5):  # the rank may still be cleaning up when its report is made
        assert "\n  rank 0 returned\n" in str(failure(local_world(3), leave_early))


def test_an_exception_in_a_hook_of_ddp(local_world) -> None:
    def program() -> None:
        net = DistributedDataParallel(torch.nn.Linear(4, 4))
        if rank() == 1:
            net.module.weight.register_hook(lambda gradient: 1 / 0)
        net(torch.ones(2, 4)).sum().backward()

    assert lines(failure(local_world(3), program))[0] == "rank 1 of 3 raised ZeroDivisionError: division by zero"


def test_a_call_on_a_group_without_this_rank_and_with_a_source_outside(local_world) -> None:
    def program() -> None:
        dist.broadcast(torch.ones(1), src=0, group=dist.new_group([1, 2]))

    assert "Next: this rank is not in that group." in str(failure(local_world(3), program))


def test_a_signal_handler_on_a_simulated_rank() -> None:
    error = failure(World(2), lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN))
    assert 'Give each rank a process: World(…, backend="processes")' in str(error)


def test_calls_that_are_shown_at_one_line_are_not_from_different_lines(process_world, tmp_path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import importlib.util, os, pathlib, tempfile, torch, torch.distributed as dist\n"
        "path = pathlib.Path(tempfile.mkdtemp(dir=os.path.dirname(__file__)), 'own.py')\n"
        "path.write_text('def step(t):\\n    dist.all_reduce(t)\\n')\n"
        "spec = importlib.util.spec_from_file_location('own', path)\n"
        "own = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(own)\nown.dist = dist\n"
        "dist.init_process_group('gloo')\nown.step(torch.ones(2 + dist.get_rank()))\n"
    )
    with pytest.raises(RankError, match=r"ranks 0, 1 called all_reduce #1 at own.py line 2") as caught:
        process_world(2).run_file(program)
    assert "different lines" not in str(caught.value)


def test_a_parameter_without_gradient_under_ddp(local_world) -> None:
    class Half(torch.nn.ModuleDict):
        def forward(self, x):
            return self["used"](x)

    def program() -> None:
        net = DistributedDataParallel(Half({"used": torch.nn.Linear(2, 2), "unused": torch.nn.Linear(2, 2)}))
        for _ in range(2):
            net(torch.ones(1, 2)).sum().backward()

    assert "Some parameters got no gradient on this rank" in str(failure(local_world(2), program))


def test_a_wait_for_a_functional_collective_stops_there(local_world, tmp_path) -> None:
    def program() -> None:
        issued = tmp_path / "issued"
        if rank() == 0:
            while not issued.exists():
                time.sleep(0.01)
            come_to_their_waits()
            raise ValueError
        parts = functional.all_gather(torch.ones(2), 0, dist.group.WORLD)
        issued.touch()
        funcol.wait_tensor(parts)
        (tmp_path / "went on").touch()

    error = failure(local_world(2), program)
    assert "\n  rank 1 waited in all_gather_single_coalesced #1 at test_exceptions.py line " in str(error)
    assert not (tmp_path / "went on").exists()


# -- an exception that led to a call which does not fit ----------------------------------------------------------


def raises_before_an_except() -> None:
    try:
        dist.all_reduce(torch.ones(2) / (rank() - 1 or int("one")))
    except ValueError:
        dist.broadcast(torch.ones(2), src=0)


def raises_in_a_with() -> None:
    with ExitStack() as stack:
        stack.callback(dist.barrier)
        dist.all_reduce(torch.ones(2) / (rank() - 1 or int("one")))


@pytest.mark.parametrize("program", [raises_before_an_except, raises_in_a_with])
def test_an_exception_before_a_call_that_does_not_fit_is_named(local_world, program) -> None:
    error = failure(local_world(3), program)
    assert lines(error)[0].startswith("the ranks call different collectives at the same point: ranks 0, 2: all_reduce")
    [told] = [line for line in lines(error) if line.startswith("  That call of rank 1 was made in an `except`, ")]
    assert ", after ValueError: invalid literal for int() with base 10: 'one' at test_exceptions.py line " in told
    assert told.endswith('(rank() - 1 or int("one")))')
    assert "Next: look at that exception first: " in str(error) and "If that is meant: " in str(error)


def over() -> None:
    with suppress(ValueError):
        int("one")
    dist.all_reduce(torch.ones(2 + rank()))


def the_same_on_every_rank() -> None:
    try:
        int("one")
    except ValueError:
        dist.all_reduce(torch.ones(2 + rank()))


def the_end_of_a_generator() -> None:
    def batches():
        try:
            yield 1
        finally:
            dist.all_reduce(torch.ones(2 + rank()))

    for _ in batches():
        if rank() == 1:
            break


def the_same_with_another_text() -> None:
    try:
        raise ValueError(f"of rank {rank()}")
    except ValueError:
        dist.all_reduce(torch.ones(2 + rank()))


def the_same_in_a_subgroup() -> None:
    group = dist.new_group([0, 1])
    try:
        int("one")
    except ValueError:
        if rank() < 2:
            dist.all_reduce(torch.ones(2 + rank()), group=group)


@pytest.mark.parametrize(
    "program",
    [over, the_same_on_every_rank, the_same_with_another_text, the_same_in_a_subgroup, the_end_of_a_generator],
)
def test_no_exception_is_blamed_that_led_no_rank_astray(local_world, program) -> None:
    error = failure(local_world(4), program)
    assert "That call" not in str(error) and "Next: find why the sizes differ" in str(error)


@pytest.mark.parametrize(
    ("exception", "told"),
    [
        (lambda: RuntimeError("\n  two\nlines"), "RuntimeError: two"),
        (lambda: FileNotFoundError(2, "No such file", "x"), "FileNotFoundError: [Errno 2] No such file: 'x'"),
        (lambda: KeyError("x"), "KeyError: 'x'"),
        (lambda: SystemExit(3), "SystemExit: 3"),
    ],
)
def test_an_exception_before_a_call_is_named(local_world, exception, told) -> None:
    def program() -> None:
        try:
            if rank() == 1:
                raise exception()
        finally:
            dist.all_reduce(torch.ones(2 + rank()))

    assert f", after {told} at test_exceptions.py line " in str(failure(local_world(4), program))


ON_A_CPU_BUILD = pytest.mark.skipif(torch.version.cuda is not None, reason="a CUDA build does not say what is absent")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.filterwarnings("ignore:Attempted to get default timeout for nccl")
@pytest.mark.parametrize(
    "line",
    [
        lambda: torch.cuda.set_device(0),
        lambda: torch.ones(1).cuda(),
        lambda: torch.ones(1).to("cuda"),
        lambda: torch.ones(1).to(0),
        lambda: torch.ones(1).pin_memory(),
        pytest.param(lambda: torch.cuda.reset_peak_memory_stats(), marks=ON_A_CPU_BUILD),
        lambda: torch.cuda.Stream(),
        pytest.param(lambda: torch.cuda.Event(), marks=ON_A_CPU_BUILD),
        lambda: torch.Generator(device="cuda"),
        lambda: init_device_mesh("cuda", (1,)),
        lambda: dist.new_group(backend="nccl"),
    ],
)
def test_a_line_that_needs_a_gpu(line) -> None:
    advice = lines(failure(World(1), line))[-1]
    assert advice.startswith(
        "Next: this torch finds no GPU here. On simulated ranks and processes, but not in a dry run, pretend GPUs: "
        "World(…, gpus=True). Or"
    )
    assert advice.endswith("If GPUs are pretended already, leave that line out: they lack what it asks for.")


@pytest.mark.parametrize("error", [ConnectionResetError, EOFError])
def test_a_connection_to_a_process_that_loaded_data(error) -> None:
    def program() -> None:
        def get(timeout):
            raise error

        batches = iter(DataLoader([1], num_workers=1))
        batches._data_queue.get = get
        next(batches)

    assert "Next: a process that loads data has ended" in str(failure(World(1), program))


def test_ddp_that_backward_meets_twice() -> None:
    class Twice(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(2):
                x = checkpoint(super().forward, x, use_reentrant=True)
            return x

    def program() -> None:
        model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(2, 2), Twice(2, 2)))
        model(torch.ones(2)).sum().backward()

    assert lines(failure(World(1), program))[-1].startswith("Next: if you use checkpoint, pass it use_reentrant=False.")


@pytest.mark.filterwarnings("ignore:.*all_gather_into_tensor:FutureWarning")
def test_shapes_that_only_nccl_takes() -> None:
    def program() -> None:
        whole, part = torch.empty(2, 3), torch.ones(3)
        dist.all_gather_into_tensor(whole.view(-1, *part.shape[1:]), part)
        dist.all_gather_into_tensor(whole, part)

    shown = lines(failure(World(2), program))
    assert shown[1].endswith("in program:  dist.all_gather_into_tensor(whole, part)")
    assert shown[-1].endswith(
        "Pass a view of the large tensor with the parts one after the other: whole.view(-1, *part.shape[1:])."
    )


def test_ddp_on_the_cpu_with_device_ids() -> None:
    error = failure(World(1), lambda: DistributedDataParallel(torch.nn.Linear(2, 2), device_ids=[rank()]))
    assert lines(error)[-1].startswith("Next: leave out device_ids: this model is on the CPU.")


@pytest.mark.parametrize("wrap", [DistributedDataParallel, lambda model: model(torch.ones(2, 2))])
def test_sync_batch_norm_on_the_cpu(wrap) -> None:
    error = failure(World(1), lambda: wrap(torch.nn.SyncBatchNorm(2)))
    assert lines(error)[-1].startswith("Next: move the model and its input to the GPU first: SyncBatchNorm does not")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_fsdp_on_the_cpu() -> None:
    error = failure(World(1), lambda: FullyShardedDataParallel(torch.nn.Linear(2, 2)))
    assert lines(error)[-1].startswith(
        'Next: without GPUs, pass FullyShardedDataParallel device_id=torch.device("cpu"), which trains on the CPU.'
    )


def test_split_sizes_of_the_other_tensor() -> None:
    def program() -> None:
        sends, receives = ([2, 1], [2, 3]) if rank() == 0 else ([3, 1], [1, 1])
        dist.all_to_all_single(torch.empty(sum(sends)), torch.ones(sum(sends)), sends, receives)

    assert lines(failure(World(2), program))[-1].startswith(
        "Next: all_to_all_single takes the split sizes of the output"
    )


def test_a_parameter_that_is_changed_in_place() -> None:
    error = failure(World(1), lambda: torch.nn.Linear(2, 2).bias[:1].zero_())
    said = lines(error)[-1]
    assert said.startswith("Next: write into a parameter inside `with torch.no_grad():`, or into its `.data`. For any")
    assert said.endswith("make a new one: `x = x - y` instead of `x -= y`.")


def test_a_column_is_sent(local_world) -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            dist.send(torch.ones(4, 6)[:, 2], 1)
        else:
            dist.recv(torch.empty(4), 0)

    assert any(line.startswith("Next: pass tensor.contiguous().") for line in lines(failure(local_world(2), program)))


def test_a_destroyed_group_is_named_without_its_address(local_world) -> None:
    def program() -> None:
        group = dist.new_group([0, 1])
        dist.destroy_process_group(group)
        dist.all_reduce(torch.ones(2), group=group)

    error = failure(local_world(2), program)
    assert lines(error)[0].startswith("both ranks raised ValueError: Process group <torch.distributed.")
    assert "ProcessGroup object> is not initialized" in str(error)
    assert "this rank has destroyed it, or never had it." in lines(error)[-1]


def test_the_end_of_a_debugger_names_it() -> None:
    def program() -> None:
        raise bdb.BdbQuit  # as breakpoint() does where no keyboard answers

    assert lines(failure(World(2), program))[-1].startswith("Next: take `breakpoint()` (or pdb) out, and print what ")


def test_a_checkpoint_that_one_rank_saves_while_the_other_loads(world, tmp_path) -> None:
    def save_on_rank_0_only() -> None:
        state = {"weight": torch.ones(2)}
        if rank() == 0:
            dcp.save(state, checkpoint_id=tmp_path)
        dcp.load(state, checkpoint_id=tmp_path)

    error = failure(world(2), save_on_rank_0_only)
    assert "both ranks raised CheckpointException" in str(error)
    assert "Next: the ranks are at different lines: call save, async_save and load of " in str(error)
