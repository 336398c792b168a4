"""The arguments of the longer subcommands, and the types of their values."""

import argparse
import inspect
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import CourseError
from ..planner import HARDWARE, MODELS, Settings
from ..planner.spelling import SETTINGS, SHORT, USUAL, flag, written

ALSO = {"batch": ["--batch-size", "--micro-batch-size", "--per-device-train-batch-size"],
        "sequence": ["--context", "--seq-len", "--seqlen", "--max-seq-length"],
        "stage": ["--zero", "--zero-stage"], "world_size": ["--num-gpus"], "compiled": ["--compile"],
        "micro_batches": ["--grad-accum", "--gradient-accumulation-steps"]}  # fmt: skip
"""Options of other programs, which `--help` does not list."""
INSTEAD = {"--gradient-checkpointing": "--checkpointing full", "--bf16": "--precision mixed, or bf16 without masters",
           "--qlora": "--lora-rank 16 --frozen nf4", "--dtype": "--precision mixed, or bf16 without masters",
           "--cpu-offload": "--offload optimizer, or optimizer,parameters", "--fsdp": "--stage 3",
           "--nodes": "--gpus, the GPUs of all nodes", "--use-liger-kernel": "--loss chunked",
           "--tensor-model-parallel-size": "--tp", "--pipeline-model-parallel-size": "--pp",
           "--context-parallel-size": "--cp", "--expert-model-parallel-size": "--ep",
           "--global-batch-size": "--global-batch"}  # fmt: skip
"""What `course plan` has instead of options of other programs."""

QUESTIONS = """\
question                                           what answers it, after "course plan llama3-8b"
  Does it fit, what is the peak, when? How fast?     --gpus 64 --gpu h100
  The largest micro-batch, the longest sequence,
  the fewest GPUs that fit?                          the same: its last line
  Where does each byte go, at which moment?          --why
  What does each unit hold, gathered or wrapped as
  one? Which part of a layer makes activations?      --why
  What does a setting change?                        two values: --checkpointing none --checkpointing full
    the optimizer on the host                        --offload none --offload optimizer
    mixed precision, fp32 reduction                  --precision fp32 --precision mixed
                                                     --precision mixed_fp32_accumulation
    hybrid sharding                                  --gpus 64 --shard-size none --shard-size 8
    parameters kept after forward, whole or a shard  --reshard yes --reshard no --reshard 4
    LoRA, QLoRA                                      --lora-rank 0 --lora-rank 16 --frozen nf4
  Which way to train is the fastest that fits?       --gpus 64 --fit
  Which is the cheapest for so many tokens?          --tokens 15e12 --days 30
"""


def add_limits_and_reports(argument: Callable[..., Any]) -> None:
    """Add the arguments of `course check`."""
    argument("notebooks", type=Path, nargs="+", metavar="NOTEBOOK")
    seconds = "limit for running one notebook, and again for checking it; one cell or exercise may take a third (300)"
    argument("--seconds", type=positive, default=300, help=seconds)
    argument("--memory", type=positive, default=8, metavar="GIB", help="GiB that one notebook may use (8)")
    jobs = "how many notebooks are graded at a time (as many as this machine has cores, up to 8)"
    argument("--jobs", type=whole, default=min(8, os.cpu_count() or 1), metavar="N", help=jobs)
    argument("--json", type=report, metavar="FILE", help="write the results as JSON")
    go_on = "go on where an earlier run was stopped: keep the grades of unchanged notebooks in the file of --json"
    argument("--continue", action="store_true", dest="go_on", help=go_on)
    argument("--csv", type=report, metavar="FILE", help="write the results as CSV, a row for each exercise")
    gradebook = "write percentages as CSV that Canvas and Moodle import, a row for each student"
    argument("--gradebook", type=report, metavar="FILE", help=gradebook)
    page = "write a page for the teacher as HTML: where each student is, and common mistakes"
    argument("--page", type=report, metavar="FILE", help=page)


def add_run_arguments(parser: Any) -> None:
    """Add the arguments of `course run`."""
    parser.usage = "course run [--ranks N] [OPTIONS] [-m] PROGRAM [ARGUMENTS ...]"
    number = "the number of ranks (2), or of pretended GPUs, if the program starts its ranks itself (4)"
    parser.add_argument("--ranks", type=whole, metavar="N", help=number)
    where = "processes, simulated, nccl, nccl:8 for 8 GPUs, or dryrun:64 for one rank of 64 (processes)"
    parser.add_argument("--world", default="processes", help=where)
    gpus = "pretend GPUs (default: if the machine has none, and the program may ask for one)"
    parser.add_argument("--gpus", action=argparse.BooleanOptionalAction, default=None, help=gpus)
    parser.add_argument("--memory", type=positive, metavar="GB", help="memory of each pretended GPU, in GB (80)")
    limit = "stop the ranks after so many seconds (a day)"
    parser.add_argument("--timeout", type=positive, default=86400, metavar="S", help=limit)
    parser.add_argument("--report", type=report, metavar="FILE", help="write a page of the run, as HTML")
    kept = "keep values and watch tensors in flight: more faults are found, and the page steps through the run"
    parser.add_argument("--replay", action="store_true", help=kept)
    parser.add_argument("--no-measure", dest="measure", action="store_false", help="do not measure memory")
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module's name")
    parser.add_argument("program", metavar="PROGRAM", help="a Python file")
    own = parser.add_argument("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER, help="the program's own")
    own.required = False  # else argparse reports that they are missing


def add_plan_arguments(parser: Any) -> None:
    """Add the arguments of `course plan`: the model, the hardware, what to print, an option for each of `Settings`."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, QUESTIONS
    parser.usage = "course plan MODEL [OPTIONS]"
    names = f"a number of parameters, such as 7b, or one of {', '.join(MODELS)}"
    parser.add_argument("model", nargs="?", metavar="MODEL", help=names)
    params = "the number of parameters, such as 7e9, instead of MODEL"
    parser.add_argument("--params", action="append", metavar="N", help=params)
    config = "Hugging Face's config.json, instead of MODEL"
    parser.add_argument("--config", action="append", type=Path, metavar="FILE", help=config)
    machines = f"one of {', '.join(HARDWARE)} (h100)"
    parser.add_argument("--gpu", "--hardware", action="append", metavar="NAME", help=machines)
    parser.add_argument("--why", action="store_true", help="explain every byte, and print every way that was tried")
    parser.add_argument("--fit", action="store_true", help="find the fastest way that fits; what you give stays fixed")
    parser.add_argument("--global-batch", metavar="N", help="with --fit: sequences of a step, on all GPUs together")
    parser.add_argument("--tokens", metavar="N", help="find the cheapest way to train on so many tokens")
    parser.add_argument("--days", metavar="N", help="with --tokens: in so many days (30)")
    known = parser.add_argument_group("settings", "Give one twice, with two values, to compare them.")
    text, tables = inspect.cleandoc(Settings.__doc__ or ""), vars(inspect.getmodule(Settings))
    for name, field in SETTINGS.items():
        about = re.search(rf"^    {name}: (.*(?:\n     .*)*)", text, re.MULTILINE)
        line = re.sub(r"`([A-Z]+)`", lambda one: ", ".join(_named(tables[one[1]])), about[1] if about else "")
        help = f"{' '.join(line.split()).rstrip('.')} ({written(USUAL.get(name, field.default))})".replace("%", "%%")
        flags = [flag(name), *([SHORT[name]] if name in SHORT else [])]
        value: Any = {"nargs": "?", "const": "yes"} if isinstance(field.default, bool) else {}
        known.add_argument(*flags, dest=name, action="append", metavar="VALUE", help=help, **value)
        if name in ALSO:
            parser.add_argument(*ALSO[name], dest=name, action="append", help=argparse.SUPPRESS, **value)


def _named(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of a table, with what is behind each if it says so."""
    for name, value in table.items():
        yield f"{name} ({value.what})" if hasattr(value, "what") else name


def whole(text: str) -> int:
    """Return the number of ranks or of jobs, or refuse the text."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1, such as 4")
    return int(text)


def positive(text: str) -> float:
    """Return the number, or refuse the text: argparse reports `invalid positive value`."""
    number = float(text)
    if not 0 < number < math.inf:
        raise ValueError
    return number


def report(name: str) -> Path:
    """Return the file for a report, which never replaces a notebook or a program."""
    for ending, what in ((".ipynb", "a notebook"), (".py", "a program")):
        if name.lower().endswith(ending):
            raise argparse.ArgumentTypeError(f"{name} is {what}, and the report would replace it: name another file")
    return Path(name)


def keeps_reports(reports: Mapping[str, Path | None]) -> None:
    """Refuse two reports in one file, by their options. A device, such as /dev/stdout, takes more than one.

    Raises:
        CourseError: the second would replace the first.
    """
    seen: dict[str, str] = {}
    for option, file in reports.items():
        if file and (os.path.isfile(file) or not os.path.exists(file)):
            first = seen.setdefault(os.path.realpath(file), option)
            if first != option:
                raise CourseError(f"{first} and {option} are one file, {reports[first]}. Name two files.")


def keeps_inputs(report: Path | None, inputs: Iterable[str | Path]) -> None:
    """Refuse a report that would replace a file that the command reads, whatever its name, or through a link.

    Raises:
        CourseError: the report is one of the inputs.
    """
    for file in inputs:
        if report and os.path.exists(report) and os.path.exists(file) and os.path.samefile(report, file):
            raise CourseError(f"{report} is {file}, and the report would replace it. Name another file.")
