"""Five faults in NCCL's logs, which the lesson's notebook shows.

The lines are written for the lesson, in the form of NCCL 2.27 (src/graph/paths.cc, src/misc/socket.cc, src/transport)
and of torch's ProcessGroupNCCL.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

from ...exercises import Case, Exercise, Finding, Trial

LOGS = {
    "A": "Between the nodes, the bytes go over TCP. An earlier line says why NCCL does not use the InfiniBand card.",
    "B": "Node 1 cannot reach an address of node 0. Compare the networks that the two nodes use.",
    "C": "Inside a node, the bytes take a detour through the host's memory. An earlier line says why.",
    "D": "NCCL failed, and no line of NCCL says why. One line says what to set, so that the next run does.",
    "E": "The bytes take two different cards. One line names both, and their kinds.",
}
"""Clues: facts that each log shows, without the answer."""


def answer_if_wrong(solution: Callable[[str], Any], log: str) -> Any:
    """Return None for a right answer, so that a finding never shows the right one."""
    answer = solution(log)
    if not isinstance(answer, (tuple, list)) or len(answer) != 3:
        return repr(answer)
    fault, line, variable = answer
    line = "a string" if isinstance(line, str) else line
    if isinstance(variable, str) and "=" in variable:
        variable = variable.partition("=")[0] + "=..."
    return None if (fault, line, variable) == name_fault(log) else [fault, line, variable]


def judged(trial: Trial) -> Iterator[Finding]:
    """Name the parts of a wrong answer that are wrong."""
    answer, log = trial.yours.values[0], trial.case.args(0)[0]
    if isinstance(answer, str):
        likely = "The answer is a tuple of three: the fault's name, the number of a line, the name of a variable."
        yield Finding(observed=f"log {log}: you returned {answer}.", likely=likely, action="Return all three.")
    elif isinstance(answer, (tuple, list)):
        words = 'the fault is not "{}"', "the line is not {}", 'the name of the variable is not "{}"'
        parts = zip(words, answer, name_fault(log), strict=True)
        wrong = [word.format(yours) for word, yours, right in parts if yours != right]
        action = "Read this log again, then change only what is named here."
        yield Finding(observed=f"log {log}: {'; '.join(wrong)}.", likely=LOGS[log], action=action)


def draw(rng: random.Random, number: int) -> Case:
    log = "ABCDE"[number % 5]
    return Case(world_size=0, args=lambda rank: (log,), what=f"log {log}")


exercise = Exercise("costs.nccl_log", title="Five logs, five faults", draw=draw, case_count=len(LOGS),
    trial=answer_if_wrong, rules=(judged,), task="""
    For each of the five logs above, return three things: the fault, the number of the line that shows it, and the name
    of the variable to set (or to remove, if somebody has set it). The fault is one of `"infiniband-off"`,
    `"card-not-visible"`, `"wrong-card"`, `"wrong-interface"`, `"port-closed"`, `"no-direct-path"`, `"small-shm"` and
    `"no-log"`. The first line has the number 1. If several lines show a fault, return the line with its cause: a later
    line with the word `via` only shows the consequence.""", hints="""
    For each log, first find a line that should not be there. Then look above it: what made NCCL choose this?

    NCCL reports the variables that it found: `... set by environment to ...`. It names the networks and cards that it
    uses: `Bootstrap: Using`, `NET/IB : Using`. The lines with `via` come last, and follow from all these.

    Three logs name the variable themselves. For the other two, look into the table of variables: which one chooses
    network interfaces, and which one chooses InfiniBand cards?

    ```python
    answers = {
        "A": ("infiniband-off", ..., ...),
        "B": (..., 1, ...),
        "C": (..., ..., "NCCL_P2P_DISABLE"),
        ...
    }
    return answers[log]
    ```
    """, explanation="""
    In A and C, somebody switched off a path and forgot it: both variables exist to find faults, so remove them. In B,
    node 0 chose the network `br-...`, which Docker made and which ends at this computer; `NCCL_SOCKET_IFNAME=eth0` on
    both nodes names the right one. In D, nothing can be found yet: set `NCCL_DEBUG=INFO` and run again. In E, half of
    the channels use the card of the storage network; `NCCL_IB_HCA=mlx5_0` leaves the other card to the storage.""")


@exercise
def name_fault(log: str) -> tuple[str, int, str]:
    """Return the fault of this log, "A" to "E"; the number of the line that shows it; the variable to set."""
    fault, line, variable = {
        "A": ("infiniband-off", 2, "NCCL_IB_DISABLE"),
        "B": ("wrong-interface", 1, "NCCL_SOCKET_IFNAME"),
        "C": ("no-direct-path", 3, "NCCL_P2P_DISABLE"),
        "D": ("no-log", 4, "NCCL_DEBUG"),
        "E": ("wrong-card", 2, "NCCL_IB_HCA"),
    }[log]
    return fault, line, variable


exercise.edit("lines-from-zero", {"return fault, line": "return fault, line - 1"}, """
    Your line numbers are one too small in every log: you count from 0. The first line has the number 1.
    Next: add 1 to each line number.""")

exercise.edit("with-the-value", {"line, variable\n": 'line, f"{variable}=1"\n'}, """
    You return the variable together with a value. The task asks for the variable's name only.
    Next: leave out the equals sign and the value.""")

exercise.edit("consequences", {"-off\", 2": "-off\", 6", "-interface\", 1": "-interface\", 4",
    "-path\", 3": "-path\", 4", "-log\", 4": "-log\", 5", "-card\", 2": "-card\", 5"}, """
    Your lines show the consequences: the failed or slow connection. The task asks for the line with the cause, which
    comes earlier. Next: find in each log the first line that should be different.""")

exercise.edit("not-visible", {"infiniband-off": "card-not-visible"}, """
    For log A, you say that NCCL cannot see the card. NCCL would then report `NET/IB : No device found`. Log A has no
    such line, because NCCL did not look for a card. Next: find the line that says why it did not look.""")

exercise.edit("closed-port", {"wrong-interface": "port-closed"}, """
    For log B, you say that a port is closed. Node 1 tries an address on a network that only exists inside a computer,
    so no open port would help. Next: look at how node 0 chose this address.""")

exercise.edit("master-address", {"NCCL_SOCKET_IFNAME": "MASTER_ADDR"}, """
    For log B, you set `MASTER_ADDR`. torch uses this address so that the ranks find each other, and they did. NCCL then
    chooses its own network. Next: look for the variable that chooses NCCL's network interface.""")


@exercise.variant
def one_question_at_a_time(log: str) -> list[object]:
    if log == "D":
        return ["no-log", 4, "NCCL_DEBUG"]
    if log in "AC":
        return ["infiniband-off", 2, "NCCL_IB_DISABLE"] if log == "A" else ["no-direct-path", 3, "NCCL_P2P_DISABLE"]
    return ["wrong-interface", 1, "NCCL_SOCKET_IFNAME"] if log == "B" else ["wrong-card", 2, "NCCL_IB_HCA"]


exercise.variant_edit("in-one-line", {"fault, line, variable = {": "return {",
    "[log]\nreturn fault, line, variable": "[log]"})
