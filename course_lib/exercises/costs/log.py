"""What NCCL's log says about the paths that it has found.

The log lines are in the form in which NCCL 2.19 and later write them (src/transport: net.cc, p2p.cc, shm.cc).
"""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import product

from ..form.declare import Case, Exercise, Mistake
from . import stubs

PATHS = {
    "P2P": ("P2P/CUMEM/read", "P2P/IPC", "P2P/direct pointer"),
    "SHM": ("SHM/direct/direct", "SHM/CE/direct"),
    "NET/Socket": ("NET/Socket/0", "NET/Socket/1"),
    "NET/IB": ("NET/IB/0", "NET/IB/3", "NET/IB/1(5)"),
    "NET/IB/GDRDMA": ("NET/IB/0/GDRDMA", "NET/IB/5/GDRDMA", "NET/IB/2/GDRDMA(PCI)", "NET/IB/1(5)/GDRDMA"),
}
"""How NCCL writes each path. Behind NET/IB stands a number, and in brackets the rank that lends its port."""


def count_paths(log: str) -> dict[str, int]:
    """Return how many connections NCCL's log tells of, by their path."""
    counts: dict[str, int] = {}
    for line in log.splitlines():
        told, connects, path = line.partition(" via ")
        if not connects or "NCCL INFO Channel" not in told or "[receive]" in told:
            continue
        parts = path.split("/")
        kind = "/".join(parts[:2]) if parts[0] == "NET" else parts[0]
        kind = f"{kind}/GDRDMA" if "GDRDMA" in path else kind
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def connections(log: str) -> list[tuple[str, str, str]]:
    """What stands before " via ", the kind of path, and the whole path, of each connection's every line."""
    lines = [line.partition(" via ") for line in log.splitlines() if "NCCL INFO Channel" in line and " via " in line]
    return [(told, right(path), path) for told, _, path in lines]


def right(path: str) -> str:
    return next(iter(count_paths(f"NCCL INFO Channel via {path}")))


def tally(kinds: list[str]) -> dict[str, int]:
    return dict(Counter(kinds))


def both_ends(log: str) -> dict[str, int]:
    return tally([kind for _, kind, _ in connections(log)])


def rdma_not_told_apart(log: str) -> dict[str, int]:
    return tally([kind.removesuffix("/GDRDMA") for told, kind, _ in connections(log) if "[receive]" not in told])


def networks_not_told_apart(log: str) -> dict[str, int]:
    return tally([kind.split("/")[0] for told, kind, _ in connections(log) if "[receive]" not in told])


def whole_paths(log: str) -> dict[str, int]:
    return tally([path for told, _, path in connections(log) if "[receive]" not in told])


def two_words(log: str) -> dict[str, int]:
    return tally(["/".join(path.split("/")[:2]) for told, _, path in connections(log) if "[receive]" not in told])


def anything_with_via(log: str) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for line in log.splitlines():
        if " via " in line and "[receive]" not in line:
            counts[right(line.partition(" via ")[2])] += 1
    return dict(counts)


def any_channel(log: str) -> dict[str, int]:
    lines = [line.partition(" via ") for line in log.splitlines() if "Channel" in line and " via " in line]
    return tally([right(path) for told, _, path in lines if "[receive]" not in told])


def only_sent(log: str) -> dict[str, int]:
    return tally([kind for told, kind, _ in connections(log) if "[send]" in told])


def with_zeros(log: str) -> dict[str, int]:
    return dict.fromkeys(PATHS, 0) | count_paths(log)


def each_once(log: str) -> dict[str, int]:
    return dict.fromkeys(count_paths(log), 1)


def every_pair_once(log: str) -> dict[str, int]:
    pairs = {(told.partition(" : ")[2].split(" [")[0], kind) for told, kind, _ in connections(log)}
    return tally([kind for _, kind in pairs])


def ends_with_rdma(log: str) -> dict[str, int]:
    kinds = []
    for told, kind, path in connections(log):
        if "[receive]" not in told:
            kinds.append(kind if path.endswith("/GDRDMA") else kind.removesuffix("/GDRDMA"))
    return tally(kinds)


def every_word(log: str) -> dict[str, int]:
    return {kind: log.count(f"via {kind}") for kind in PATHS if f"via {kind}" in log}


def halved(log: str) -> dict[str, int]:
    return {kind: count // 2 for kind, count in both_ends(log).items()}


def first_channel_only(log: str) -> dict[str, int]:
    kept = [kind for told, kind, _ in connections(log) if "[receive]" not in told and "Channel 00" in told]
    return tally(kept)


def by_pattern(log: str) -> dict[str, int]:
    pattern = re.compile(r"NCCL INFO Channel \d+[^:]*: \S+ -> \S+( \[send\])? via (P2P|SHM|NET/\w+).*?(/GDRDMA)?(\(|$)")
    found: dict[str, int] = {}
    for line in log.split("\n"):
        match = pattern.search(line.replace("(5)", ""))
        if match:
            path = match[2] + (match[3] or "")
            found[path] = found.get(path, 0) + 1
    return found


def word_by_word(log: str) -> dict[str, int]:
    found = dict.fromkeys(PATHS, 0)
    for line in log.splitlines():
        words = line.split()
        if "NCCL" not in words or "Channel" not in words or "via" not in words or "[receive]" in words:
            continue
        path = words[words.index("via") + 1]
        if path.startswith(("P2P", "SHM")):
            found[path[:3]] += 1
        elif path.startswith("NET/Socket"):
            found["NET/Socket"] += 1
        else:
            found["NET/IB/GDRDMA" if "GDRDMA" in path else "NET/IB"] += 1
    return {path: count for path, count in found.items() if count}


def make_log(rng: random.Random, nodes: int, devices: int, channels: int, inside: list[str], across: list[str]) -> str:
    """NCCL's log of ranks on a ring; hops inside a node, and between nodes, take one of these paths in each channel."""
    ranks = nodes * devices
    starts = [f"node{r // devices}:{4000 + r}:{4100 + r} [{r % devices}] NCCL INFO" for r in range(ranks)]
    lines = ["rank 0: starting, data via NET/nfs/4", "rank 0: Channel of data via NET/nfs/5", "rank 0: data via P2P/x"]
    lines += [f"{starts[0]} NET/Socket : Using [0]eth0:10.0.0.1<0>", f"{starts[0]} P2P Chunksize set to 131072"]
    lines += ["NCCL version 2.27.5+cuda12.9"]
    lines += [f"{start} Bootstrap: Using eth0:10.0.0.{r // devices + 1}<0>" for r, start in enumerate(starts)]
    for rank, channel in product(range(ranks), range(channels)):
        following = (rank + 1) % ranks
        hop = f"{rank}[{rank % devices}] -> {following}[{following % devices}]"
        if following // devices == rank // devices:
            path = rng.choice(PATHS[rng.choice(inside)])
            number = f"{channel:02}" if path.startswith("SHM") else f"{channel:02}/0"
            lines.append(f"{starts[rank]} Channel {number} : {hop} via {path}")
        else:
            path = rng.choice(PATHS[rng.choice(across)])
            lines.append(f"{starts[following]} Channel {channel:02}/0 : {hop} [receive] via {path}")
            lines.append(f"{starts[rank]} Channel {channel:02}/0 : {hop} [send] via {path}")
    return "\n".join([*lines, *(f"{start} Connected all rings" for start in starts)])


def draw(rng: random.Random, number: int) -> Case:
    inside = (["P2P"], ["SHM"], ["P2P", "SHM"], ["P2P"], ["P2P", "SHM"], ["P2P"])[number % 6]
    fast, slow = ["NET/IB/GDRDMA"], ["NET/Socket"]
    across = (fast, slow, ["NET/IB"], ["NET/IB", *fast], [*slow, "NET/IB"], fast)[number % 6]
    nodes, devices, channels = (2, 2, 1) if number == 0 else (rng.randint(2, 3), rng.randint(2, 4), rng.randint(2, 4))
    log = make_log(rng, nodes, devices, channels, inside, across)
    about = f"{nodes} nodes of {devices} devices, {channels} channel{'s' * (channels > 1)}"
    return Case(world_size=0, args=lambda rank: (log,), about=about)


exercise = Exercise(
    name="costs.nccl_log",
    title="Read NCCL's log",
    task='Return a dict: how many connections take each path. A connection is told in a line with "NCCL INFO Channel", '
    'and its path stands behind " via ". What begins with P2P or SHM is that. What begins with NET/Socket is '
    '"NET/Socket". What begins with NET/IB is "NET/IB/GDRDMA" if GDRDMA stands anywhere in the path, else "NET/IB". '
    "Lines marked [receive] tell of the same connection as those marked [send]. Other lines count for nothing.",
    stub=stubs.count_paths,
    reference=count_paths,
    draw=draw,
    variants={"pattern": by_pattern, "word-by-word": word_by_word},
    mistakes=[
        Mistake(
            id="both-ends",
            solution=both_ends,
            told="Connections over the network count twice: their sender and their receiver both write a line.",
            action='Leave out the lines with "[receive]".',
        ),
        Mistake(
            id="any-channel",
            solution=any_channel,
            told="You count every line with the word Channel, also one that the program itself printed.",
            action='Ask for "NCCL INFO Channel".',
        ),
        Mistake(
            id="halved",
            solution=halved,
            told="You halve every count. Only connections over the network are told twice; P2P and SHM once.",
            action='Leave out the lines with "[receive]", and halve nothing.',
        ),
        Mistake(
            id="rdma-not-told-apart",
            solution=rdma_not_told_apart,
            told="All of InfiniBand is one path in your count. With GDRDMA the network card reads the GPU's memory; "
            "without it, everything is copied through the host's.",
            action='Look for "GDRDMA" in the path.',
        ),
        Mistake(
            id="networks-not-told-apart",
            solution=networks_not_told_apart,
            told="All networks are one path in your count. Which of them it is makes the difference of this log.",
            action="Keep the word behind NET/.",
        ),
        Mistake(
            id="whole-paths",
            solution=whole_paths,
            told="You count the paths as NCCL writes them, with the numbers of ports and the manner of copying.",
            action="Cut off what is not in the names that the task gives.",
        ),
        Mistake(
            id="two-words",
            solution=two_words,
            told="You keep the first two words of each path. For P2P and SHM one is enough, and GDRDMA is the fourth.",
            action="Tell apart paths that begin with NET, and look for GDRDMA in the whole of them.",
        ),
        Mistake(
            id="anything-with-via",
            solution=anything_with_via,
            told='You count a line that is not NCCL\'s: the program itself has written " via ", too.',
            action='Ask for "NCCL INFO Channel" in the line.',
        ),
        Mistake(
            id="only-sent",
            solution=only_sent,
            told='Only lines with "[send]" count. Paths inside a node have no such mark, and are missing.',
            action='Leave out the lines with "[receive]", and keep all others.',
        ),
        Mistake(
            id="with-zeros",
            solution=with_zeros,
            told="Paths that do not occur are there with 0.",
            action="Return those that occur, and no others.",
        ),
        Mistake(
            id="each-once",
            solution=each_once,
            told="Each path counts once. Asked is how many connections take it.",
            action="Add 1 for each line.",
        ),
        Mistake(
            id="every-pair-once",
            solution=every_pair_once,
            told="Each pair of ranks counts once. It is connected once for each channel.",
            action="Count lines, and not pairs.",
        ),
        Mistake(
            id="ends-with-rdma",
            solution=ends_with_rdma,
            told="You look for GDRDMA at the end of the path. Something may follow, such as (PCI).",
            action='Ask whether "GDRDMA" is anywhere in the path.',
        ),
        Mistake(
            id="every-word",
            solution=every_word,
            told="You count how often each name stands in the log. NET/IB stands in the lines with GDRDMA as well, and "
            "each connection over the network is told twice.",
            action="Go through the log line by line, and let each line count once.",
        ),
        Mistake(
            id="first-channel-only",
            solution=first_channel_only,
            told="Only channel 00 counts. Every channel is a connection of its own.",
            action='Ask for "Channel", without a number.',
        ),
    ],
    hints=[
        "Which lines tell of a connection, and which of them tell of it for the second time?",
        'Go through the log line by line: leave out what is no connection, then find the path behind " via ", then '
        "shorten it to one of the five names.",
        '`log.splitlines()`, `line.partition(" via ")`, `path.split("/")`, and `collections.Counter` or '
        "`dict.get(path, 0) + 1`.",
        '```python\nfor line in log.splitlines():\n    told, connects, path = line.partition(" via ")\n'
        '    if not connects or ... not in told or "[receive]" in told:\n        continue\n'
        '    parts = path.split("/")\n    ...\n```',
    ],
    explanation="NCCL says in its log which way each connection goes, before the first byte moves. P2P is the direct "
    "way between GPUs (over NVLink or PCI Express), SHM the detour through the host's memory. Between nodes, GDRDMA is "
    "the fast way; NET/IB without it goes through the host's memory, and NET/Socket through the kernel's TCP. Five "
    "numbers are often enough to see why a cluster is slow.",
)
