"""An exercise whose rules look at the bytes that ranks hold."""

import torch
import torch.distributed as dist

from course_lib import mark
from course_lib.exercises import Case, Exercise, holds_no_more


def written_otherwise(x: torch.Tensor) -> torch.Tensor:
    return x.view(dist.get_world_size(), -1)[dist.get_rank()] + 0


def kept(solution, numel: int) -> torch.Tensor:
    part = solution(torch.arange(numel, dtype=torch.float32))
    mark("with its part")
    return part


SHARD = Exercise(
    "sample.shard",
    title="Shard",
    task="Return this rank's part.",
    draw=lambda rng, number: Case(world_size=(4, 2)[number % 2], args=lambda rank: (80,), what="80 elements"),
    trial=kept,
    measured=True,
    rules=[holds_no_more("other", "with its part")],
    hints="`clone`",
    explanation="A copy has memory of its own.",
)


@SHARD
def shard(x: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of `x`, and keep nothing of the rest."""
    return x.chunk(dist.get_world_size())[dist.get_rank()].clone()


SHARD.edit("view", {".clone()": ""}, "A view keeps the whole. Next: Copy your part.")


def test_who_lets_go_of_the_rest_passes() -> None:
    assert SHARD.check(shard).status == SHARD.check(written_otherwise).status == "passed"


def test_who_holds_more_than_the_reference_is_told_how_much_on_which_rank_and_why() -> None:
    def keeps_a_window(x):
        whole = x
        return whole[dist.get_rank() * len(whole) // dist.get_world_size() :][: len(whole) // dist.get_world_size()]

    verdict = SHARD.check(keeps_a_window)
    (finding,) = verdict.findings

    assert (verdict.status, verdict.mistake) == ("failed", "view")
    assert finding.observed == "rank 0 holds 320 bytes of other memory, with its part; 160 suffice."
    assert [(row.expected, row.yours) for row in finding.table] == [("at most 160 bytes", "320 bytes")] * 2
