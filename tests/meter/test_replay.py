"""The replay of a run: its steps, its sentences and its page."""

import json
import pickle
import re

import pytest
import torch
import torch.distributed as dist

from course_lib import RankError, World, mark


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
    text = str(World(64, backend="dryrun", rank=63).run(lambda: dist.all_reduce(torch.ones(64))).replay())

    assert text.startswith("Replay: 1 rank, 2 steps\n")
    assert "step 1: Rank 63: all_reduce #1, 504 B sent by each\n" in text


def test_without_a_measurement_the_replay_says_so() -> None:
    assert "Bytes were not measured" in str(World(2, measure=False).run(scaled_total).replay())


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
    assert [event[14:] for event in lanes[0]["events"]] == [[[["step", "0"]]], [[["step", "1"]]], []]
    assert [event[14:] for event in lanes[1]["events"]] == [[[["step", "0"]]], []]


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


@pytest.mark.slow
def test_64_ranks_and_100_collectives_take_less_than_a_megabyte() -> None:
    def many() -> None:
        x = torch.ones(4)
        for _ in range(100):
            dist.all_reduce(x)

    assert len(World(64, replay=True).run(many).replay()._repr_html_().encode()) < 1e6


def test_a_tag_in_a_value_does_not_end_the_data() -> None:
    page = World(1).run(lambda: "<!--<script></script>").replay().html

    assert page.count("<script") == 2 and "<!--" not in page
    assert page_data(page)["names"][-1][-1] == "'<!--<script></script>'"
