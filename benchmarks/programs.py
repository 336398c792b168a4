"""What `course run` costs a program: its first line and its steps, beside the same program under torchrun."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from .measure import Row

PROGRAM = Path(__file__).with_name("train.py")
RANKS = 2
ROUNDS = 5
MOST_SECONDS = 600
"""A run that takes longer has failed."""

FIRST_LINE = "its first line"

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}")
COURSE_RUN = (sys.executable, "-W", "ignore", "-m", "course_lib.commands.cli", "run", f"--ranks={RANKS}")
COMMANDS = {
    "torchrun": TORCHRUN,
    "course run --no-measure": (*COURSE_RUN, "--no-gpus", "--no-measure"),
    "course run": (*COURSE_RUN, "--no-gpus"),
    "course run --gpus": (*COURSE_RUN, "--gpus"),
}

MOST = {"course run --no-measure": 1.03, "course run": 1.15}
"""The most of a step under torchrun that a step may take."""

MORE_SECONDS = 1.0
"""The most seconds that the first line may take longer than under torchrun."""


def seconds_of(command: tuple[str, ...], variant: str) -> dict[str, float]:
    """Run the program. Return the seconds until its first line, and those of a step, which it prints."""
    started = time.perf_counter()
    with subprocess.Popen([*command, str(PROGRAM), variant], stdout=subprocess.PIPE, text=True) as process:
        end = threading.Timer(MOST_SECONDS, process.terminate)
        end.daemon = True
        end.start()
        assert process.stdout is not None
        process.stdout.readline()
        first_line = time.perf_counter() - started
        (printed,) = (line[line.index("{") :] for line in process.stdout if "{" in line)
        end.cancel()
    return {FIRST_LINE: first_line, **json.loads(printed)}


def rows() -> Iterator[Row]:
    """The rows of this benchmark. The commands run in turns; a row shows the round whose ratio is the median."""
    for variant in ("ddp", "fsdp2"):
        rounds = [{way: seconds_of(command, variant) for way, command in COMMANDS.items()} for _ in range(ROUNDS)]
        for way in list(COMMANDS)[1:]:
            for what in rounds[0][way]:
                pairs = [(one[way][what], one["torchrun"][what]) for one in rounds]
                ours, peer = sorted(pairs, key=lambda pair: pair[0] / pair[1])[ROUNDS // 2]
                row = Row(what=f"{way}, {variant}: {what}", ours=ours, peer=peer, peer_name="torchrun")
                if what == FIRST_LINE:
                    yield replace(row, most=round(peer + MORE_SECONDS, 1))
                else:
                    yield replace(row, most_of_peer=MOST.get(way))
