"""`course run`: what it prints, and how it ends."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from course_lib.commands import cli
from course_lib.world.rank_threads import printing

Course = Callable[..., int]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a line wait for that of other ranks as long as a busy machine takes."""
    monkeypatch.setattr(printing, "FOLD", 60.0)


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], str]:
    def program(text: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(dedent(text))
        return str(path)

    return program


def course_run(*arguments: str) -> int:
    return cli.main(["run", *arguments])


SUMS = """
    import os, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    x = torch.ones(1_000_000)
    dist.all_reduce(x)
    print("sum", x[0].item())
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("options", [[], ["--world", "simulated"]], ids=["processes", "simulated"])
def test_lines_come_first_and_a_report_of_equal_ranks_at_the_end(
    program, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert course_run(*options, "--ranks", "3", program(SUMS)) == 0

    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == "[ranks 0-2] sum 3.0"
    assert re.fullmatch(rf"-- 3 ranks: program.py, {options[-1] if options else 'processes'}, [\d.]+ m?s", lines[1])
    assert lines[2:5] == [
        "   ranks 0-2, each",
        "     peak 4 MB: communication 4 MB",
        "     sent 5.33 MB: all_reduce 5.33 MB in 1 call",
    ]
    assert lines[5].startswith("     waited ")
    assert lines[6].startswith("   Slowest: rank") and lines[7].startswith("   Fastest: rank")
    assert said.err == ""


@pytest.mark.parametrize("world", ["processes", "simulated"])
def test_stderr_of_ranks_is_folded_on_stderr(program, capsys: pytest.CaptureFixture[str], world: str) -> None:
    path = program("""
        import os, sys
        print("out")
        print("careful", file=sys.stderr)
        if os.environ["RANK"] == "1":
            sys.stderr.write("the end of")
        print(", and out")
    """)
    assert course_run("--world", world, "--ranks", "3", path) == 0

    said = capsys.readouterr()
    assert said.out.splitlines()[:2] == ["[ranks 0-2] out", "[ranks 0-2] , and out"]
    assert said.err.splitlines() == ["[ranks 0-2] careful", "[rank 1] the end of"]


def test_a_group_that_is_left_open_is_noted(program, capsys: pytest.CaptureFixture[str]) -> None:
    assert course_run("--world", "simulated", program(SUMS.replace("dist.destroy_process_group()", ""))) == 0
    assert "Warning: both ranks never destroyed the group made at program.py line 3" in capsys.readouterr().out


def test_options_of_the_program_are_its_own(program, capsys: pytest.CaptureFixture[str]) -> None:
    path = program("import sys; print(sys.argv[1:])")
    assert course_run("--ranks", "1", "--no-measure", path, "--ranks", "7", "-m", "x") == 0
    assert "[rank 0] ['--ranks', '7', '-m', 'x']" in capsys.readouterr().out


def test_ranks_that_differ_have_reports_of_their_own(program, capsys: pytest.CaptureFixture[str]) -> None:
    path = program(
        """
        import torch, torch.distributed as dist
        dist.init_process_group()
        x = torch.ones(100 * (1 + dist.get_rank()))
        dist.all_reduce(torch.ones(1), async_op=True)
        dist.barrier()
        """
    )
    assert course_run("--world", "simulated", path) == 0

    said = capsys.readouterr().out
    assert re.search(r"   rank 0\n     peak 40\d bytes", said) and re.search(r"   rank 1\n     peak 80\d bytes", said)
    assert "Warning: both ranks never waited for all_reduce #1 at program.py line 5, at the top level" in said


def test_an_option_behind_the_program_that_refuses_it_is_named(program, capsys: pytest.CaptureFixture[str]) -> None:
    advice = "Next: write --ranks before the program if course run is meant. "
    for code, said in (("2", True), ("3", False)):
        assert course_run(program(f"import sys; sys.exit({code})"), "--lr", "0.5", "--ranks", "4") == 1
        assert (advice in capsys.readouterr().err) == said


def test_a_failure_is_one_message_and_exit_code_1(program, capsys: pytest.CaptureFixture[str]) -> None:
    path = program(
        """
        import torch, torch.distributed as dist
        dist.init_process_group()
        for step in range(3):
            if dist.get_rank() == 1 and step == 1:
                continue
            dist.all_reduce(torch.ones(1))
        """
    )
    assert course_run(path) == 1

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("rank 1 returned without the all_reduce #3 that rank 0 waits in\n")
    assert "rank 0 waited in all_reduce #3 at program.py line 7, at the top level:  dist.all_reduce" in said.err
    assert "Next: " in said.err and "Traceback" not in said.err


def test_an_exception_in_a_function_has_the_traceback_of_one_rank(program, capsys: pytest.CaptureFixture[str]) -> None:
    path = program(
        """
        import os, json
        def parse(text):
            return json.loads(text)
        def train():
            parse("[1, 2,]")
        train()
        """
    )
    assert course_run(path) == 1

    trace, message = capsys.readouterr().err.split("\nboth ranks raised JSONDecodeError: ")
    assert trace.startswith("rank 0: Traceback (most recent call last):\n")
    assert re.findall(r'program.py", line \d+, in (.*)', trace) == ["<module>", "train", "parse"]
    assert "decoder.py" in trace and "Traceback" not in message


def test_an_exception_group_has_the_line_of_its_first_exception(program, capsys: pytest.CaptureFixture[str]) -> None:
    path = program(
        """
        import asyncio
        async def load(part):
            raise KeyError(f"shard-{part}")
        async def train():
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(load(part)) for part in range(2)]
        asyncio.run(train())
        """
    )
    assert course_run(path) == 1

    trace, message = capsys.readouterr().err.split("\n\nboth ranks raised ")
    assert trace.startswith("rank 0:   + Exception Group Traceback") and "KeyError: 'shard-1'" in trace
    assert message.startswith(
        "KeyError: 'shard-0'\n    in ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions), "
        "and 1 more exception\n  ranks 0, 1 raised at program.py line 4, in load:"
    )


def test_a_report_that_cannot_be_written_hides_no_failure(
    program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = program("raise ValueError('the cause')")
    assert course_run("--world", "simulated", "--report", str(tmp_path), path) == 1

    said = capsys.readouterr().err
    assert said.startswith("both ranks raised ValueError: the cause") and "cannot be written" in said


def test_the_folder_of_a_report_is_looked_for_before_the_run(program, tmp_path: Path, capsys) -> None:
    page, path = tmp_path / "no folder" / "run.html", program("raise ValueError('the cause')")
    assert course_run("--world", "simulated", "--report", str(page), path) == 2

    assert capsys.readouterr().err == (
        f"course run: --report {page}: there is no folder {page.parent}. Make it first.\n"
    )


def test_a_report_never_replaces_a_program(program, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = program("print('never')")
    with pytest.raises(SystemExit, match="2"):
        course_run("--report", path, path)
    assert f"argument --report: {path} is a program, and the report would replace it" in capsys.readouterr().err

    plain, link = tmp_path / "train", tmp_path / "page.html"
    plain.write_text("print('never')")
    link.symlink_to(plain)
    for report in (plain, link):
        assert course_run("--world", "simulated", "--report", str(report), str(plain)) == 2
        out, err = capsys.readouterr()
        assert f"course run: {report} is {plain}, and the report would replace it. Name another" in err and out == ""
    assert Path(path).read_text() == plain.read_text() == "print('never')"


def test_advice_names_the_options_of_the_command(program, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, path = tmp_path / "run.html", program("import torch\ntorch.ones(1).cuda()")
    assert course_run("--no-gpus", "--report", str(page), path) == 1

    for text in (capsys.readouterr().err, page.read_text("utf-8")):
        assert "pretend GPUs: --gpus." in text and "--world nccl" in text and "World(…, gpus" not in text
    assert course_run(program("import os; os._exit(3)")) == 1
    assert capsys.readouterr().err.endswith(
        "\nNext: look at what that rank did last; anything that it printed is above.\n"
    )


SPAWNS = """
    import torch.multiprocessing as mp
    def work(rank):
        {line}
    if __name__ == "__main__":
        rate = 0.1
        mp.spawn(work, nprocs=2)
"""


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (
            SPAWNS.format(line="print(rate)"),
            "or define it before that line. A rank that mp.spawn starts does not have what the program defines under "
            '`if __name__ == "__main__"`: pass it in `args=`.\n',
        ),
        ("import torch.multiprocessing as mp\nmp.spawn(print, nprocs=2)", "Next: begin the lines that start processes"),
        (
            SPAWNS.format(line="import torch, io; torch.load(io.BytesIO(b'PK\\x03\\x04'))"),
            "Next: this file is not complete, or torch.save did not write it.",
        ),
    ],
)
def test_advice_on_a_program_that_spawns_ranks(
    program, capsys: pytest.CaptureFixture[str], text: str, advice: str
) -> None:
    assert course_run(program(text)) == 1
    assert advice in capsys.readouterr().err


def test_a_program_without_calls_has_no_lines_about_them(program, capsys: pytest.CaptureFixture[str]) -> None:
    assert course_run("--world", "simulated", program("import torch\nx = torch.ones(25)")) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "   ranks 0, 1, each",
        "     peak 100 bytes: other 100 bytes",
        "     sent nothing",
    ]


def test_an_error_of_a_program_outside_its_ranks_is_shown_from_its_first_line(
    program, capsys: pytest.CaptureFixture[str]
) -> None:
    path = program("import torch.multiprocessing as mp\nmp.spawn(lambda rank: None, nprocs=2)")
    assert course_run(path) == 1

    trace = capsys.readouterr().err.splitlines()
    assert "program.py" in trace[1] and "Can't pickle" in trace[-1]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nowhere.py"], "nowhere.py: No such file or directory"),
        (["-m", "no.such"], "-m no.such: no module of that name"),
        (["--world", "moon", "PROGRAM"], "--world moon: there is no such backend here; there is sim"),
        (["--world", "moon", "PROGRAM"], "nccl:8 for 8 GPUs. Leave --world out for processes."),
        (["--ranks", "1000", "PROGRAM"], "World(1000): a world of processes has 1 to 64 ranks"),
        (["--ranks", "4", "--world", "dryrun:64", "PROGRAM"], "--ranks 4 and --world dryrun:64 differ"),
        (["--memory", "0.0001", "PROGRAM"], "--memory: a pretended GPU has 0.001 GB or more. Give its memory in GB"),
        (["--no-gpus", "--memory", "24", "PROGRAM"], "--memory is the memory of pretended GPUs, and --no-gpus"),
    ],
)
def test_what_cannot_be_run_is_named_with_exit_code_2(
    program, capsys: pytest.CaptureFixture[str], arguments: list[str], why: str
) -> None:
    path = program("print('never')")
    assert course_run(*(path if one == "PROGRAM" else one for one in arguments)) == 2

    said = capsys.readouterr()
    assert said.err.startswith("course run: ") and why in said.err and said.out == ""


def test_a_dry_run_without_numbers_advises_ranks(program, capsys: pytest.CaptureFixture[str]) -> None:
    assert course_run("--world", "dryrun:64", program("import torch\ntorch.ones(1).item()")) == 1
    assert "matters, run the program with --ranks 4, and without --world.\n" in capsys.readouterr().err


@pytest.mark.parametrize("ranks", ["0", "-1", "two", "1.5"])
def test_a_bad_number_of_ranks_is_refused(capsys: pytest.CaptureFixture[str], ranks: str) -> None:
    with pytest.raises(SystemExit) as end:
        course_run("--ranks", ranks, "program.py")
    assert end.value.code == 2
    assert f"argument --ranks: {ranks} is not a whole number from 1" in capsys.readouterr().err


def test_only_the_program_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        course_run()
    assert capsys.readouterr().err.endswith("the following arguments are required: PROGRAM\n")


@pytest.mark.parametrize(("options", "ranks"), [([], 4), (["--ranks", "3"], 3)], ids=["default", "chosen"])
def test_a_program_that_starts_its_ranks_finds_four_gpus_or_as_many_as_ranks(
    program, capsys: pytest.CaptureFixture[str], options: list[str], ranks: int
) -> None:
    path = program("""
        import torch, torch.multiprocessing as mp
        def work(rank):
            pass
        if __name__ == "__main__":
            mp.spawn(work, nprocs=torch.cuda.device_count())
    """)
    assert course_run(*options, path) == 0
    assert f"-- {ranks} ranks" in capsys.readouterr().out


def test_a_dry_run_counts_one_rank_of_many(program, capsys: pytest.CaptureFixture[str]) -> None:
    path = program(SUMS.replace('print("sum", x[0].item())', "print(dist.get_world_size())"))
    assert course_run("--world", "dryrun:64", path) == 0
    assert capsys.readouterr().out == (
        "[rank 0] 64\n-- rank 0 of 64: program.py, dryrun\n   rank 0\n     peak 4 MB: communication 4 MB\n"
        "     sent 7.88 MB: all_reduce 7.88 MB in 1 call\n"
    )


@pytest.mark.parametrize("fails", [False, True])
def test_a_page_of_the_run_is_written_to_a_file(program, tmp_path: Path, fails: bool) -> None:
    end = "    if os.environ['RANK'] == '1':\n        raise ValueError\n" if fails else ""
    page, path = tmp_path / "run.html", program(SUMS + end)
    assert course_run("--world", "simulated", "--replay", "--report", str(page), path) == fails
    text = page.read_text("utf-8")
    assert "<title>" in text and os.path.basename(path) in text and "Replay" in text


def test_replay_names_a_tensor_that_is_used_before_its_wait(program, capsys: pytest.CaptureFixture[str]) -> None:
    path = program(
        """
        import torch, torch.distributed as dist
        dist.init_process_group()
        x = torch.ones(1000)
        work = dist.all_reduce(x, async_op=True)
        norm = x.norm()
        work.wait()
        dist.destroy_process_group()
        """
    )
    assert course_run("--world", "simulated", path) == course_run("--world", "simulated", "--replay", path) == 0
    assert capsys.readouterr().out.count("Warning: both ranks used a tensor of all_reduce #1 before its wait") == 1


def test_ctrl_c_while_the_fork_server_loads_torch_is_reported_in_one_line(program) -> None:
    command = [sys.executable, "-m", "course_lib.commands.cli", "run", program("")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        servers = list[psutil.Process]()
        while not any(sum(server.cpu_times()[:2]) > 0.3 for server in servers):  # its own modules come first
            children = psutil.Process(process.pid).children()
            servers = [child for child in children if "forkserver" in str(child.cmdline())]
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (130, "course run: interrupted\n")


def test_lines_are_printed_while_ranks_run_and_ctrl_c_ends_them_with_130(program) -> None:
    path = program(
        """
        import signal, time
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        print("begun", flush=True); time.sleep(600)
        """
    )
    command = [sys.executable, "-m", "course_lib.commands.cli", "run", path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        begun = ""
        while not {"0", "1"} <= {*begun}:  # in one line, or in a line each
            line = process.stdout.readline()
            assert line
            begun += line
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the run was interrupted" in error and "program.py line 4, at the top level" in error
