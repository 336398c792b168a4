"""Programs as they are: what a file finds on its ranks, and programs that start their ranks themselves."""

import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

from course_lib import CourseError, CourseWarning, RankError, World
from course_lib.world import Program, Run
from course_lib.world.program.shared_memory import packed
from course_lib.world.rank_threads import printing
from course_lib.world.rank_threads.main import is_main, main_of_ranks
from course_lib.world.torch_hooks import interposer

Start = Callable[..., Run]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a line wait for that of other ranks as long as a busy machine takes."""
    monkeypatch.setattr(printing, "FOLD", 60.0)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def write(text: str, name: str = "program.py") -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(dedent(text))
        return str(path)

    return write


@pytest.fixture(params=["simulated", "processes"])
def world(request: pytest.FixtureRequest) -> Callable[..., World]:
    return partial(World, backend=request.param, timeout=60)


def test_a_program_finds_what_torchrun_gives_it(world, write) -> None:
    write("NAME = 'helper'", "helper.py")
    program = write(
        """
        import os, pickle, sys
        import torch, torch.distributed as dist
        import helper

        class Thing:
            pass

        assert __name__ == "__main__" and __file__ == sys.argv[0] and sys.path[0] == os.path.dirname(__file__)
        assert type(pickle.loads(pickle.dumps(Thing()))) is Thing
        assert not dist.is_initialized()
        dist.init_process_group("nccl")
        assert dist.get_rank() == int(os.environ["RANK"]) == int(os.environ["LOCAL_RANK"])
        assert dist.get_world_size() == int(os.environ["WORLD_SIZE"]) == int(os.environ["LOCAL_WORLD_SIZE"])
        assert os.environ["GROUP_RANK"] == os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=dist.get_rank() == 0)
        store.set(f"rank {dist.get_rank()}", "here")
        store.wait(["rank 0", "rank 1"])
        dist.barrier()  # rank 0 holds the store
        print(helper.NAME, sys.argv[1:], dist.get_rank())
        """
    )
    arguments, folders, main = sys.argv, list(sys.path), sys.modules["__main__"]

    run = world(2).run_file(program, "--epochs", 1)

    assert run.output == tuple(f"helper ['--epochs', '1'] {rank}\n" for rank in range(2))
    assert list(run) == [None, None]
    assert (sys.argv, sys.path, sys.modules["__main__"]) == (arguments, folders, main)
    assert list(world(2).run(lambda: dist.is_initialized())) == [True, True]


def test_a_program_finds_its_own_names_in_main(world, write) -> None:
    program = write(
        '''
        """Words of the program."""
        import __main__, doctest, os, unittest

        def double(x):
            """
            >>> double(2), LEVEL
            (5, 'high')
            """
            return 2 * x

        class Wrong(unittest.TestCase):
            def test(self):
                self.assertEqual(1, 2)

        __main__.LEVEL = __main__.OTHER = "high" if os.environ["RANK"] == "0" else "low"
        del __main__.OTHER
        print(LEVEL, __main__.__doc__, sorted(name for name in dir(__main__) if not name.startswith("_")))
        print([test.name for test in doctest.DocTestFinder().find(__main__) if test.examples])
        unittest.main()
        '''
    )

    with pytest.raises(RankError) as caught:
        world(2).run_file(program)

    assert caught.value.kind == "exited"
    for rank, level in enumerate(("high", "low")):
        assert f"{level} Words of the program. ['LEVEL', 'Wrong', 'doctest', 'double'" in caught.value.output[rank]
        assert "['__main__.double']" in caught.value.output[rank]


def test_a_module_of_a_package_imports_from_next_to_it(world, write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(write("", "package_of_a_test/__init__.py")).parents[1])
    write("PLACE = 'beside'", "package_of_a_test/other.py")
    write(
        "import sys; from .other import PLACE; print(__name__, __package__, PLACE, sys.argv[1:])",
        "package_of_a_test/__main__.py",
    )

    run = world(1).run_file("package_of_a_test", "x", module=True)

    assert run.output == ("__main__ package_of_a_test beside ['x']\n",)


def test_a_program_makes_the_default_group_as_often_as_it_destroys_it(world, write) -> None:
    program = write(
        """
        import datetime, torch, torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        for turn, options in enumerate([
            {}, {"backend": "cpu:gloo,cuda:nccl"}, {"backend": "gloo", "timeout": datetime.timedelta(seconds=9)},
            {"init_method": "tcp://localhost:1?rank=%s&world_size=2"},
        ]):
            import os
            rank = os.environ["RANK"]
            dist.init_process_group(**{k: v % rank if k == "init_method" else v for k, v in options.items()})
            pair, alone = dist.new_group([0, 1]), dist.new_group([turn % 2])
            x = torch.ones(1)
            dist.all_reduce(x, group=pair)
            assert x == 2
            dist.destroy_process_group()
            assert not dist.is_initialized()
        mesh = init_device_mesh("cpu", (2,))
        assert dist.is_initialized() and mesh.size() == 2
        """
    )

    run = world(2).run_file(program)

    assert run.comm[0].count("init_process_group") == 5 and run.comm[1].count("all_reduce") == 4


@pytest.mark.parametrize("asked", [{}, {"backend": "gloo", "rank": 1, "world_size": 2}])
def test_a_function_on_ranks_may_ask_for_the_group_that_it_has(world, asked: dict) -> None:
    def fn():
        group = dist.group.WORLD
        dist.init_process_group(**asked | ({"rank": dist.get_rank()} if asked else {}))
        return dist.group.WORLD is group

    run = world(2).run(fn)

    assert list(run) == [True, True] and run.calls == ((), ())


def test_the_main_of_a_rank_can_end_on_a_different_thread(monkeypatch) -> None:
    with main_of_ranks(), monkeypatch.context() as patch:
        patch.setattr(interposer, "current", object)
        block = is_main(ModuleType("__main__"))
        rank = threading.Thread(target=block.__enter__)
        rank.start()
        rank.join()
        block.__exit__(None, None, None)


def test_a_backend_that_no_world_has_is_refused(write) -> None:
    program = write('import torch.distributed as dist; dist.init_process_group("mpi")')
    with pytest.raises(RankError, match=r"init_process_group\('mpi'\): ranks exchange tensors through gloo here"):
        World(2).run_file(program)


@pytest.mark.parametrize("code", ["0", "", "None", "256"])
def test_an_exit_without_a_failure_ends_a_program(world, write, code: str) -> None:
    run = world(2).run_file(write(f"import sys; print('a'); sys.exit({code}); print('b')"))
    assert run.output == ("a\n", "a\n")


def test_an_exit_that_leaves_out_a_call_is_named(world, write) -> None:
    program = write(
        """
        import sys
        import torch.distributed as dist
        dist.init_process_group()
        if dist.get_rank() == 1:
            sys.exit()
        dist.barrier()
        """
    )
    with pytest.raises(RankError, match=r"rank 1 returned at program.py line 6, at the top level:  sys.exit\(\)"):
        world(2).run_file(program)


@pytest.mark.parametrize(("program", "raised"), [("next(iter(()))", "StopIteration"), ("{}['function']", "KeyError")])
def test_an_exception_of_a_program_is_its_own(world, write, program: str, raised: str) -> None:
    with pytest.raises(RankError, match=f"both ranks raised {raised}.*\n  ranks 0, 1 raised at program.py") as caught:
        world(2).run_file(write(program))
    assert "missing parentheses" not in str(caught.value)


def test_another_exit_code_is_a_failure_with_its_rank_and_line(world, write) -> None:
    program = write(
        """
        import os, sys
        import torch.distributed as dist
        dist.init_process_group()
        if os.environ["RANK"] == "1":
            sys.exit("no data")
        dist.barrier()
        """
    )

    with pytest.raises(RankError) as caught:
        world(2).run_file(program)

    assert caught.value.kind == "exited" and caught.value.rank == 1
    assert "rank 1 of 2 ended with sys.exit('no data')" in str(caught.value)
    assert 'rank 1 raised at program.py line 6, at the top level:  sys.exit("no data")' in str(caught.value)


def test_a_line_of_several_ranks_is_printed_once(world, write, capsys: pytest.CaptureFixture[str]) -> None:
    program = write(
        """
        import os, sys
        rank = int(os.environ["RANK"])
        print("all")
        if rank != 1:
            print("most", file=sys.stderr)
        print("0 %\\r50 %\\r100 %")
        print(f"I am {rank}", end="")
        """
    )

    world(3).run_file(program)

    shown = capsys.readouterr()
    assert shown.err == "[ranks 0, 2] most\n"
    lines = shown.out.splitlines()
    assert lines[:2] == ["[ranks 0-2] all", "[ranks 0-2] 100 %"]
    assert sorted(lines[2:]) == [f"[rank {rank}] I am {rank}" for rank in range(3)]


SPAWNS = """
    import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp

    torch.manual_seed(5)

    class Box:
        def __init__(self, value):
            self.value = value

    def work(rank, world_size, box):
        assert "RANK" not in os.environ
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29500"
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
        x = torch.tensor([box.value + rank])
        dist.all_reduce(x)
        torch.save(box, sys.argv[1] + str(rank))
        assert type(torch.load(sys.argv[1] + str(rank), weights_only=False)) is Box
        print(x.item(), torch.randint(1000, ()).item(), __name__)
        dist.destroy_process_group()

    if __name__ == "__main__":
        {start}
        print("the end")
"""
LOOP = (
    "processes = [mp.Process(target=work, args=(rank, 3, Box(1))) for rank in range(3)]; "
    "[process.start() for process in processes]; [process.join() for process in processes]; "
    "assert [process.exitcode for process in processes] == [0, 0, 0]"
)


@pytest.mark.parametrize(
    ("start", "module"),
    [
        ("mp.spawn(work, args=(3, Box(1)), nprocs=3)", "__mp_main__"),
        ("assert mp.spawn(work, args=(3, Box(1)), nprocs=3, join=False).join()", "__mp_main__"),
        (f"mp.set_start_method('fork'); {LOOP}", "__main__"),
        (f"mp.set_start_method('spawn'); {LOOP}", "__mp_main__"),
    ],
    ids=["spawn", "no join", "forks", "spawns"],
)
def test_what_a_program_starts_itself_are_the_ranks(
    world, write, tmp_path: Path, capsys: pytest.CaptureFixture[str], start: str, module: str
) -> None:
    method = multiprocessing.get_start_method(allow_none=True)
    drawn = torch.randint(1000, (), generator=torch.Generator().manual_seed(5)).item()

    run = world(2).run_file(write(SPAWNS.format(start=start)), str(tmp_path / "box"))

    assert run.output == (f"6 {drawn} {module}\n",) * 3
    assert capsys.readouterr().out == f"[ranks 0-2] 6 {drawn} {module}\nthe end\n"
    assert multiprocessing.get_start_method(allow_none=True) == method


SHARES_TENSORS = """
    import torch, torch.multiprocessing as mp

    def work(rank, results, model):
        results[1 + rank] += rank + 1
        with torch.no_grad():
            model.weight[rank] += rank + 1

    def forked(rank):
        work(rank, results, model)

    if __name__ == "__main__":
        results, model = torch.zeros(3).share_memory_(), torch.nn.Linear(1, 2).share_memory()
        torch.nn.init.zeros_(model.weight)
        {start}
        print(results.tolist(), model.weight.flatten().tolist())
"""
PROCESSES = (
    "processes = [mp.get_context('{method}').Process(target={target}) for rank in (0, 1)]; "
    "[process.start() for process in processes]; [process.join() for process in processes]"
)


@pytest.mark.parametrize(
    "start",
    [
        "mp.spawn(work, args=(results[:], model), nprocs=2)",
        "mp.set_sharing_strategy('file_system'); results = results.clone().share_memory_(); "
        "mp.spawn(work, args=(results, model), nprocs=2)",
        PROCESSES.format(method="spawn", target="work, args=(rank, results, model)"),
        PROCESSES.format(method="fork", target="work, args=(rank, results, model)"),
        PROCESSES.format(method="fork", target="forked, args=(rank,)"),
    ],
    ids=["spawn", "file_system", "spawns", "forks", "forks with globals"],
)
def test_started_ranks_write_into_a_tensor_in_shared_memory(
    world, write, capsys: pytest.CaptureFixture[str], start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.multiprocessing, "_sharing_strategy", torch.multiprocessing.get_sharing_strategy())
    world(2).run_file(write(SHARES_TENSORS.format(start=start)))
    assert capsys.readouterr().out == "[0.0, 1.0, 2.0] [1.0, 2.0]\n"


def test_a_dry_run_leaves_a_tensor_in_shared_memory_as_it_is(write, capsys: pytest.CaptureFixture[str]) -> None:
    start = "mp.spawn(work, args=(results, model), nprocs=2)"
    World(2, backend="dryrun", rank=1).run_file(write(SHARES_TENSORS.format(start=start)))
    assert capsys.readouterr().out == "[0.0, 0.0, 0.0] [0.0, 0.0]\n"


def test_a_tensor_of_a_mapped_file_is_copied_to_started_ranks(tmp_path: Path) -> None:
    tensor = torch.from_file(str(tmp_path / "numbers"), shared=True, size=3).fill_(1)  # shared, without a descriptor
    _, (copied,), _ = pickle.loads(packed((print, (tensor,), {}), forked=True))
    assert copied.tolist() == [1, 1, 1] and not copied.is_shared()


READS_A_QUEUE = """
    import multiprocessing

    def work(rank, results):
        results.put(rank)

    if __name__ == "__main__":
        multiprocessing.set_start_method("spawn")
        results = {queue}
        processes = [multiprocessing.Process(target=work, args=(rank, results)) for rank in range(2)]
        [process.start() for process in processes]
        print(sorted(results.get() for _ in processes))
        [process.join() for process in processes]
"""


def test_started_ranks_run_when_the_program_reads_a_queue(write, capsys: pytest.CaptureFixture[str]) -> None:
    World(2).run_file(write(READS_A_QUEUE.format(queue="multiprocessing.Manager().Queue()")))
    assert capsys.readouterr().out == "[0, 1]\n"
    with pytest.raises(CourseError, match=r"an argument cannot be copied to the ranks \(Queue .* pass `mp\.Manager"):
        World(2).run_file(write(READS_A_QUEUE.format(queue="multiprocessing.Queue()")))


def test_ranks_started_through_a_context_are_found(write) -> None:
    start = (
        "context = mp.get_context('spawn'); processes = [{}.Process(target=work, args=(rank, 3, 1)) for rank in (0, 1)]"
    )
    for context in ("context", "mp.get_context('spawn')", "multiprocessing.get_context(method='fork')"):
        assert Program.found(write(SPAWNS.format(start=start.format(context))), ()).starts_ranks


RANK_0 = """
    import torch.distributed as dist, torch.multiprocessing as mp

    def run(rank, size, store=None):
        dist.init_process_group("gloo", rank=rank, world_size=size, store=store)
        dist.destroy_process_group()

    if __name__ == "__main__":
        mp.set_start_method("spawn")
        processes = [mp.Process(target=run, args=(rank, {size})) for rank in range({first}, 3)]
        [process.start() for process in processes]
        run(0, {parent}, dist.HashStore())
        [process.join() for process in processes]
"""


def test_a_program_whose_own_process_is_a_rank_is_refused(write) -> None:
    program = write(RANK_0.format(size=3, first=1, parent=3))
    with pytest.raises(ValueError, match=r"the process that starts 2 of the ranks would be a rank, too.*rank 0"):
        World(2).run_file(program)
    run = World(2).run_file(write(RANK_0.format(size=3, first=0, parent=1)))
    assert len(run) == 3 and not dist.is_initialized()


def test_started_ranks_cannot_choose_their_numbers(write, tmp_path: Path) -> None:
    program = SPAWNS.format(start="mp.spawn(work, args=(3, Box(1)), nprocs=3)")
    program = program.replace("rank=rank, world_size", "rank=2 - rank, world_size")
    with pytest.raises(RankError, match=r"given rank=2, and it is 0 here\. A world numbers the ranks: .*passes first"):
        World(2).run_file(write(program), str(tmp_path / "box"))


def test_a_failure_of_started_ranks_is_named_with_rank_and_line(world, write, tmp_path: Path) -> None:
    program = SPAWNS.format(start="mp.spawn(work, args=(3, Box(1)), nprocs=3)")
    program = program.replace("dist.all_reduce(x)", "rank == 2 or dist.all_reduce(x)")
    with pytest.raises(RankError, match=r"rank 2 returned without the all_reduce #1 that ranks 0, 1 wait"):
        world(2).run_file(write(program), str(tmp_path / "box"))


CATCHES = """
    import torch.multiprocessing as mp

    def work(rank, size):
        if size > {most}:
            raise ValueError(f"too large: {{size}}")

    if __name__ == "__main__":
        for size in (64, 16):
            try:
                mp.spawn(work, args=(size,), nprocs=2)
            except mp.ProcessRaisedException as error:
                print(size, error.error_index)
"""


def test_a_program_may_catch_the_failure_of_spawned_ranks(world, write, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(world(2).run_file(write(CATCHES.format(most=16)))) == 2
    assert capsys.readouterr().out.splitlines()[-1] in ("64 0", "64 1")
    with pytest.raises(RankError, match="raised ValueError: too large: 16"):
        world(2).run_file(write(CATCHES.format(most=8)))


def test_a_program_that_starts_its_ranks_without_a_guard_fails_at_that_line(write) -> None:
    program = write("import torch.multiprocessing as mp\ndef work(rank): pass\nmp.spawn(work, nprocs=2)")
    with pytest.raises(RankError, match=r"RuntimeError: \n*An attempt has been made to start a new process") as caught:
        World(2, backend="processes").run_file(program)
    assert "program.py line 3, at the top level:  mp.spawn" in str(caught.value)


ELASTIC = """
    import os
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    def work(base):
        return base + int(os.environ["RANK"])

    if __name__ == "__main__":
        config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=3, start_method="{method}")
        print(elastic_launch(config, work)(10))
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_torchruns_function_returns_the_values_of_ranks(
    world, write, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    world(2).run_file(write(ELASTIC.format(method=method)))
    assert capsys.readouterr().out == "{0: 10, 1: 11, 2: 12}\n"


def test_a_program_that_starts_no_ranks_is_refused(write) -> None:
    program = write("import torch.multiprocessing as mp\nif False:\n    mp.spawn(print, nprocs=2)")
    with pytest.raises(CourseError, match=r"contains calls that start ranks, such as mp\.spawn, and made none of them"):
        World(2).run_file(program)


def test_an_imported_module_that_starts_ranks_is_refused_on_a_rank(world, write) -> None:
    write("import torch.multiprocessing as mp\ndef start():\n    mp.spawn(print, nprocs=2)", "launch_of_a_test.py")
    program = write("import launch_of_a_test\nif __name__ == '__main__':\n    launch_of_a_test.start()")
    start_processes = torch.multiprocessing.start_processes

    with pytest.raises(RankError, match=r"a rank would start ranks.* its own file, program\.py") as caught:
        world(2).run_file(program)

    assert "launch_of_a_test.py line 3, in start:  mp.spawn(print, nprocs=2)" in str(caught.value)
    assert torch.multiprocessing.start_processes is start_processes


def test_ranks_have_helper_processes(world, write) -> None:
    program = write(
        """
        import multiprocessing, torch

        if __name__ == "__main__":
            with multiprocessing.get_context("fork").Pool(1) as pool:
                print(pool.map(abs, [-2]))
            print(next(iter(torch.utils.data.DataLoader([3], num_workers=1))).item())
        """
    )
    assert world(2).run_file(program).output == ("[2]\n3\n",) * 2


@pytest.mark.parametrize("backend", ["simulated", "processes"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pool_finds_the_functions_of_the_program(write, backend, method) -> None:
    program = write(
        f"""
        import multiprocessing

        def double(x): return 2 * x

        if __name__ == "__main__":
            with multiprocessing.get_context("{method}").Pool(1) as pool:
                print(pool.map(double, [2]))
        """
    )
    assert World(2, backend=backend).run_file(program).output == ("[4]\n",) * 2


def test_a_process_has_no_standard_input(write) -> None:
    with pytest.raises(RankError, match=r"Next: a rank that is a process has no standard input"):
        World(2, backend="processes").run_file(write("input()"))


def test_processes_that_are_no_ranks_are_not_taken_for_ranks(write) -> None:
    program = write(
        "import multiprocessing, os\ndef psutil_Process(pid): pass\npsutil_Process(os.getpid())\nprint('a')"
    )
    assert World(2).run_file(program).output == ("a\n", "a\n")
    helper = "import torch.distributed as dist\ndist.init_process_group({})\nmultiprocessing.Process().start()"
    programs = (write(helper.format(arguments)) for arguments in ("'gloo'", "rank=int(os.environ['RANK'])", "rank=r"))
    assert [Program.found(program, ()).starts_ranks for program in programs] == [False, False, True]
    helper += "\nos.environ['RANK'], os.environ['WORLD_SIZE'] = r, n"
    assert Program.found(write(helper.format("'gloo'")), ()).starts_ranks


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("a b", r"is not a Python program: invalid syntax \(program\.py, line 1\)"),
        ("\0", "is not a Python program: "),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_no_program_is_refused(write, content: str | None, why: str) -> None:
    path = "/nowhere.py" if content is None else write(content)
    with pytest.raises(CourseError, match=why):
        World(2).run_file(path)
    with pytest.raises(CourseError, match=r"is a notebook\. Save it as a program first"):
        World(2).run_file("lesson.ipynb")


def test_a_module_that_is_not_there_is_refused() -> None:
    with pytest.raises(CourseError, match=r"-m no\.such: no module of that name is here"):
        World(2).run_file("no.such", module=True)


def test_a_dry_run_counts_what_a_program_sends(write) -> None:
    program = write(
        """
        import torch, torch.distributed as dist
        dist.init_process_group("nccl")
        dist.all_reduce(torch.ones(dist.get_world_size()))
        """
    )
    assert World(64, backend="dryrun").run_file(program).comm[0].sent_bytes == 504


def test_a_program_leaves_nothing_in_a_ranks_process(write) -> None:
    program = write("import torch.distributed as dist; dist.init_process_group(); keep = dist.new_group([0, 1])")
    world = World(2, backend="processes")
    world.run_file(program)
    found = world.run(lambda: (hasattr(sys.modules["__main__"], "keep"), "MASTER_PORT" in os.environ))
    assert list(found) == [(False, False)] * 2


def test_a_program_that_deletes_its_main_module_takes_no_other(world, write) -> None:
    main = sys.modules["__main__"]
    world(1).run_file(write("import sys; del sys.modules['__main__']"))
    assert sys.modules["__main__"] is main


def test_a_changed_module_next_to_a_program_is_read_again(world, write) -> None:
    program = write("import changing; print(changing.VALUE)")
    for value in ("1", "20"):
        write(f"VALUE = {value}", "changing.py")
        assert world(2).run_file(program).output == (f"{value}\n",) * 2
    assert "changing" not in sys.modules


def test_a_program_may_put_anything_among_modules(world, write) -> None:
    program = write(
        """
        import sys, types
        from importlib.util import LazyLoader, find_spec, module_from_spec

        class Stub:
            def __getattr__(self, name):
                raise ImportError(f"install it to use {name}")

        class Itself:
            def __getattr__(self, name):
                return self

        spec = find_spec("never")
        loader = spec.loader = LazyLoader(spec.loader)
        loader.exec_module(never := module_from_spec(spec))
        stub = types.ModuleType("stub")
        stub.__getattr__ = Stub().__getattr__
        sys.modules.update(a_stub=Stub(), a_module=stub, a_number=5, itself=Itself(), never=never)
        """
    )
    write("raise ImportError('not before it is used')", "never.py")
    try:
        world(1).run_file(program)
    finally:
        world(1).run(lambda: [sys.modules.pop(name, None) for name in ("a_stub", "a_module", "a_number", "itself")])
    assert "never" not in sys.modules


def test_a_program_prints_although_the_shell_has_closed_both_streams(world, write, monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    world(1).run_file(write("import sys; print(1, flush=True); sys.stderr.write('2')"))
    assert sys.stdout is sys.stderr is None


def test_a_print_of_its_own_ends_with_a_program(world, write) -> None:
    program = write(
        "import builtins, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "real, first = builtins.print, dist.get_rank() == 0\n"
        "builtins.print = lambda *args: first and real('epoch', *args)\n"
        "dist.barrier()\n"
        "print(1)"
    )
    assert world(2).run_file(program).output == ("epoch 1\n", "")
    assert world(2).run_file(write("print('again')")).output == ("again\n",) * 2


def test_what_a_program_registers_for_its_end_is_called(write) -> None:
    program = write(
        "import atexit, os\n"
        "never = atexit.register(lambda: print('never'))\n"
        "atexit.register(lambda: print('end of', os.environ['RANK']))\n"
        "atexit.unregister(never)\n"
        "atexit.register(lambda: 1 / 0)"
    )
    first, second = World(2, backend="processes").run_file(program).output
    assert first.endswith("ZeroDivisionError: division by zero\nend of 0\n")
    assert second.endswith("ZeroDivisionError: division by zero\nend of 1\n")


def test_a_skipped_step_is_named_where_counters_are_kept(write) -> None:
    program = write(
        """
        import torch, torch.distributed as dist
        dist.init_process_group()
        rank = dist.get_rank()
        for step in range(20):
            if rank == 1 and step == 12:
                continue
            dist.all_reduce(torch.ones(1))
        """
    )
    with pytest.raises(RankError) as caught:
        World(2, replay=True).run_file(program)
    assert (
        "calls of all_reduce at program.py line 8 until then: rank 0: 20; rank 1: 19. The first call in different "
        "steps: rank 0 with step = 12; rank 1 with step = 13"
    ) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "argument", "asks"),
    [
        ("x.to('cuda')", "", True),
        ("x = torch.accelerator.current_accelerator()", "", True),
        ("x.to(sys.argv[1])", "cuda", True),
        ("import torch", "", False),
        ("import torch", os.fsdecode(b"\xff"), False),
    ],
)
def test_a_program_may_ask_for_gpus_itself_or_by_an_argument(write, text: str, argument: str, asks: bool) -> None:
    assert Program.found(write(text), [argument]).asks_for_gpus is asks


def test_gpus_are_pretended_where_a_program_starts_its_ranks_and_on_them(world, write) -> None:
    program = write(
        """
        import torch, torch.distributed as dist, torch.multiprocessing as mp

        def work(rank):
            dist.init_process_group("nccl", init_method="tcp://localhost:1", rank=rank, world_size=2)
            x = torch.ones(1000).to(rank)
            dist.all_reduce(x)
            print(x.device, torch.cuda.device_count(), torch.cuda.max_memory_allocated())

        if __name__ == "__main__":
            mp.spawn(work, nprocs=torch.cuda.device_count())
        """
    )
    run = world(2, gpus=True).run_file(program)
    assert run.output == ("cuda:0 2 4096\n", "cuda:1 2 4096\n")


def test_a_warning_names_the_line_that_runs_a_program(write) -> None:
    program = write(
        "import torch, torch.distributed as dist\ndist.init_process_group()\n"
        "work = dist.all_reduce(torch.ones(1), async_op=True)\ndist.destroy_process_group()"
    )
    with pytest.warns(CourseWarning, match="never waited for") as caught:  # a kernel shows the text of a cell again
        World(2).run_file(program)
    assert [one.filename for one in caught] == [__file__]
