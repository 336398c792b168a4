"""The replay of a run: its steps, its sentences and its page."""

import json
import linecache
import pickle
import re

import pytest
import torch
import torch.distributed as dist

from course_lib import RankError, World, mark
from course_lib.meter import film
from course_lib.world import Run


def scaled_total(factor: float = 1.0) -> float:
    x = torch.full((2,), float(dist.get_rank()))
    mark("made")
    dist.all_reduce(x)
    x *= factor
    dist.all_reduce(x)
    return x.sum().item()


def page_data(page: str) -> dict:
    """The data of a page, and a proof that they are JSON."""
    return json.loads(re.search(r'id="film">(.*?)</script>', page, re.DOTALL)[1])


# -- steps and sentences ---------------------------------------------------------------------------------------------


def test_a_run_becomes_steps_with_marks_bytes_and_values() -> None:
    text = str(World(2, replay=True).run(scaled_total).replay())

    assert text.startswith("Replay: 2 ranks, 4 steps\n")
    assert "step 1: Both ranks: the mark “made”\n    both ranks: other 8 B\n" in text
    assert "step 2: Both ranks: all_reduce #1, 8 B sent by each\n" in text
    assert "    rank 1: x [1 1] → x [1 1]\n" in text
    assert "dist.all_reduce(x)" in text
    assert "step 4: Both ranks: returned\n    rank 0: 4.0\n    rank 1: 4.0\n" in text


def test_a_rank_waits_for_as_many_steps_as_its_peers_need() -> None:
    def late() -> None:
        rank, x = dist.get_rank(), torch.ones(1)
        if rank == 0:
            dist.send(x, dst=1)
            dist.send(x, dst=1)
        elif rank == 1:
            dist.recv(x, src=0)
            dist.recv(x, src=0)
        dist.barrier()

    steps = str(World(3).run(late).replay()).split("step ")

    assert "4 B from rank 0 → 1; rank 2: waiting in barrier #1 for ranks 0, 1\n" in steps[2]
    assert "All 3 ranks: barrier #1\n" in steps[3]


def test_a_collective_that_ranks_call_from_different_lines_is_named() -> None:
    def skips() -> None:
        if dist.get_rank() == 0:
            dist.barrier()
        else:
            dist.barrier()

    assert "barrier #1 was called from different lines" in str(World(2).run(skips).replay())


def test_a_dry_run_is_a_film_of_its_rank() -> None:
    def calls() -> None:
        dist.all_reduce(torch.ones(64))
        dist.broadcast(torch.ones(64), src=0)

    text = str(World(64, backend="dryrun", rank=63).run(calls).replay())

    assert text.startswith("Replay: 1 rank, 3 steps\n")
    assert "step 1: Rank 63: all_reduce #1, 504 B sent by each\n" in text
    assert "step 2: Rank 63: broadcast #1, 252 B sent by each on average\n" in text


def test_a_run_without_calls_is_one_step_and_lacks_no_values() -> None:
    replay = World(1).run(dist.get_rank).replay()

    assert str(replay).startswith("Replay: 1 rank, 1 step\nstep 1: Rank 0: returned\n    rank 0: 0\n")
    assert "title='Replay of 1 rank in 1 step'" in replay._repr_html_()


def test_without_a_measurement_the_replay_says_so() -> None:
    assert "Bytes were not measured" in str(World(2, measure=False).run(scaled_total).replay())


def passes_around(rounds: int) -> None:
    rank, world_size, chunk = dist.get_rank(), dist.get_world_size(), torch.tensor([dist.get_rank()])
    for _ in range(rounds):
        sending = dist.isend(chunk, dst=(rank + 1) % world_size)
        arrived = torch.empty_like(chunk)
        dist.recv(arrived, src=(rank - 1) % world_size)
        sending.wait()
        chunk = arrived + 10


def chunks(run: Run, op: str) -> list[list[int]]:
    """The numbers of the chunks that each rank sends or receives."""
    lanes = film(run.calls, run.memory, [("returned", None, "")] * len(run), range(len(run))).lanes
    return [[event.chunk for event in lane.events if event.op == op] for lane in lanes]


def test_start_and_end_of_a_call_that_all_ranks_make_are_one_step_and_a_chunk_keeps_its_number() -> None:
    run = World(3, replay=True).run(passes_around, 2)

    text = str(run.replay())
    assert "step 1: Every rank passes 8 B on; each has sent 1 of 2 chunks\n    all 3 ranks at" in text
    assert "step 2: Every rank passes 8 B on; each has sent 2 of 2 chunks\n" in text
    assert "    rank 1: sends chunk [10]\n    rank 1: receives arrived [12]\n" in text
    assert "step 3: All 3 ranks: returned\n" in text
    assert chunks(run, "send") == [[1, 3], [2, 1], [3, 2]]
    assert chunks(run, "recv") == [[3, 2], [1, 3], [2, 1]]


def test_a_rank_never_passes_a_chunk_back_to_where_it_came_from() -> None:
    def there_and_back() -> None:
        rank, x = dist.get_rank(), torch.ones(1)
        for to, back in ((rank + 1, rank - 1), (rank - 1, rank + 1)):
            if 0 <= back < 3:
                dist.recv(x, src=back)
            if 0 <= to < 3:
                dist.send(x, dst=to)

    assert chunks(World(3).run(there_and_back), "send") == [[1], [1, 2], [2]]


def test_a_step_stays_apart_if_one_rank_does_not_start_a_call_at_it() -> None:
    def one_is_idle() -> None:
        if dist.get_rank() < 2:
            passed = dist.isend(torch.ones(1), dst=1 - dist.get_rank())
            dist.recv(torch.ones(1), src=1 - dist.get_rank())
            passed.wait()

    assert "step 1: Ranks 0, 1: starting a send" in str(World(3).run(one_is_idle).replay())


def test_a_replay_without_memory_keeps_the_marks() -> None:
    replay = World(2).run(scaled_total).replay(memory=False)

    assert "the mark “made”\n    both ranks: other" in str(World(2).run(scaled_total).replay())
    assert "the mark “made”\nstep 2:" in str(replay)
    assert page_data(replay.html)["held"] == [{}]


def test_a_variable_that_is_the_same_everywhere_and_always_is_left_out() -> None:
    def program() -> None:
        same, own, x = torch.ones(2), torch.full((1,), dist.get_rank()), torch.zeros(1)
        dist.all_reduce(x)
        del same, own

    lanes = page_data(World(2, replay=True).run(program).replay().html)["lanes"]
    assert [lane["events"][0][11] for lane in lanes] == [[["own", "0"]], [["own", "1"]]]


# -- recording -------------------------------------------------------------------------------------------------------


def test_keeping_values_changes_neither_the_results_nor_the_bytes() -> None:
    plain, kept = World(2).run(scaled_total), World(2, replay=True).run(scaled_total)

    assert list(kept) == list(plain)
    assert [m.peak_bytes for m in kept.memory] == [m.peak_bytes for m in plain.memory]
    assert all(call.values is None for calls in plain.calls for call in calls)


def test_values_are_kept_of_small_tensors_only_and_of_the_variables_around() -> None:
    def program() -> None:
        chunks, large = [torch.tensor([1]), torch.tensor([2])], torch.zeros(1000)
        dist.all_reduce(large)
        dist.all_reduce(chunks[0])

    large, small = World(2, replay=True).run(program).calls[0]
    assert (large.values.before, large.values.after) == ((), ())
    assert small.values.before == (("chunks[0]", (1,)),)
    assert small.values.after == (("chunks[0]", (2,)),)
    assert ("chunks", (1, 2)) in small.values.around


def test_the_page_has_the_counters_that_change_on_some_rank() -> None:
    def program():
        rank, large = dist.get_rank(), 10**400
        for step in range(2 - rank):  # noqa: B007 - the replay shows it
            dist.barrier()
        return large

    with pytest.raises(RankError) as caught:
        World(2, replay=True).run(program)
    lanes = page_data(caught.value.replay().html)["lanes"]
    assert [event[12:13] for event in lanes[0]["events"]] == [[[["step", "0"]]], [[["step", "1"]]], []]
    assert [event[12:13] for event in lanes[1]["events"]] == [[[["step", "0"]]], []]


def test_a_variable_whose_memory_is_freed_has_no_values() -> None:
    def program():
        freed, x = torch.ones(2), torch.ones(1)
        freed.untyped_storage().resize_(0)
        dist.all_reduce(x)
        return freed.numel()

    (call,) = World(1, replay=True).run(program).calls[0]
    assert (call.values.after, call.values.around) == ((("x", (1.0,)),), ())


def test_a_failed_run_keeps_its_replay_when_it_is_pickled() -> None:
    def raises() -> None:
        dist.barrier()
        raise ValueError("no data")

    with pytest.raises(RankError) as caught:
        World(2).run(raises)

    copied = pickle.loads(pickle.dumps(caught.value))
    assert "step 2: Both ranks: raised ValueError: no data\n" in str(copied.replay())


# -- the page --------------------------------------------------------------------------------------------------------


def test_the_page_needs_nothing_else() -> None:
    page = World(2, replay=True).run(scaled_total).replay().html

    assert set(re.findall(r"https?://[^\"' )]+", page)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.search(r"<link|<script src|@import|import\(|fetch\(", page)
    assert not re.search(r"/\*(STYLE|SCRIPT|DATA)\*/", page)


def test_text_of_the_learners_cannot_end_the_pages_script() -> None:
    def marks() -> None:
        mark("</script><b>'bold' & \"quoted\"</b>")

    replay = World(1).run(marks).replay()

    assert page_data(replay.html)["captions"][0] == "Rank 0: the mark “</script><b>'bold' & \"quoted\"</b>”"
    srcdoc = re.search(r"srcdoc='([^']*)'", replay._repr_html_())[1]
    assert srcdoc.endswith("</html>\n")


def test_the_page_shows_the_function_that_the_ranks_are_in(tmp_path) -> None:
    replay = World(2).run(scaled_total).replay()
    replay.save(tmp_path / "replay.html")

    (block,) = page_data((tmp_path / "replay.html").read_text())["blocks"]
    assert block["text"][0] == "def scaled_total(factor: float = 1.0) -> float:"
    assert block["text"][-1] == "    return x.sum().item()"


TRAIN = "def train():\n    dist.barrier()\n"


@pytest.mark.parametrize("edited", ["# shorter\n", "\n\n\n" + TRAIN.replace(")", "")])
def test_a_page_of_a_program_that_was_edited_while_it_ran(edited: str, tmp_path) -> None:
    program = tmp_path / "train.py"
    program.write_text(f"import torch.distributed as dist\n\n\n{TRAIN}\n\ndist.init_process_group()\ntrain()\n")
    run = World(1, replay=True).run_file(program)
    program.write_text(edited)
    linecache.checkcache(str(program))  # as in a kernel that has read no line of it yet

    assert {block["label"] for block in page_data(run.replay().html)["blocks"]} == {"train.py"}


@pytest.mark.slow
def test_64_ranks_and_25_collectives_take_less_than_0_3_megabytes() -> None:
    def many() -> None:
        x = torch.ones(4)
        for _ in range(25):
            dist.all_reduce(x)

    assert len(World(64, replay=True).run(many).replay()._repr_html_().encode()) < 300_000


def test_a_tag_in_a_value_does_not_end_the_data() -> None:
    page = World(1).run(lambda: "<!--<script></script>").replay().html

    assert page.count("<script") == 2 and "<!--" not in page
    assert page_data(page)["names"][-1][-1] == "'<!--<script></script>'"
