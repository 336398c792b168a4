"""The replay of a run in a browser: as a file, and in Notebook 7. See test_report.py for JupyterLab."""

from pathlib import Path

import nbformat
import pytest
import torch
import torch.distributed as dist
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import FrameLocator, Page, expect

from course_lib import World, mark
from tests.browser.jupyterlab import (
    JupyterLab,
    choose_theme,
    run_all,
    wait_until_idle,
)
from tests.world.programs import failure

pytestmark = [pytest.mark.browser, pytest.mark.slow]

RUN = """
import torch, torch.distributed as dist
from course_lib import RankError, World

def step():
    x = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(x)
    dist.barrier()

World(2, replay=True).run(step).replay()
"""
FIGURE = "from course_lib.plots import move_zero\n\nmove_zero()"
FAILURE = """
def diverges():
    dist.barrier()
    if dist.get_rank() == 1:
        dist.broadcast(torch.ones(2), src=0)
    dist.all_reduce(torch.ones(2))

try:
    World(2).run(diverges)
except RankError as error:
    replay = error.replay()
replay
"""


def ranks_differ() -> None:
    x = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(x)
    if dist.get_rank() == 0:
        dist.send(x, dst=1)
    else:
        dist.recv(x, src=0)


def rank_0_is_missing() -> None:
    if dist.get_rank() == 1:
        dist.barrier()


def rank_1_skips_an_iteration() -> None:
    for step in range(4):
        if (step, dist.get_rank()) != (1, 1):
            dist.barrier()


def saved(notebooks: Path, name: str, *cells: nbformat.NotebookNode) -> None:
    notebook = new_notebook(cells=list(cells))
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, notebooks / name)


def test_the_page_plays_as_a_file_without_a_network(page: Page, tmp_path: Path) -> None:
    World(2, replay=True).run(ranks_differ).replay().save(tmp_path / "replay.html")
    requests, problems = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: problems.append(error))
    page.emulate_media(reduced_motion="reduce", color_scheme="dark")

    page.goto((tmp_path / "replay.html").as_uri())
    caption = page.locator("#caption")
    expect(caption).to_have_text("Both ranks: all_reduce #1, 4 B sent by each")
    expect(page.get_by_role("region", name="rank 0").locator(".changed")).to_have_text("1")
    page.keyboard.press("ArrowRight")
    expect(caption).to_have_text("4 B from rank 0 → 1")
    page.keyboard.press("Home")
    expect(page.get_by_label("Step", exact=True)).to_have_value("1")
    page.get_by_role("button", name="Play").click()
    expect(caption).to_have_text("Both ranks: returned")
    for control, key in ((page.locator("#back"), "Enter"), (page.locator(".row"), "End")):
        control.press(key)
        expect(control).to_be_focused()

    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert (len(requests), problems) == (1, [])


def doubles() -> None:
    x = torch.ones(2)
    dist.all_reduce(x)
    x *= 2
    mark("doubled")


def test_a_rank_at_a_mark_is_at_no_line_of_an_earlier_call(page: Page, tmp_path: Path) -> None:
    World(2).run(doubles).replay().save(tmp_path / "replay.html")
    page.goto((tmp_path / "replay.html").as_uri())

    expect(page.locator("#code li.active")).to_contain_text("dist.all_reduce(x)")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#caption")).to_have_text("Both ranks: the mark “doubled”")
    expect(page.locator("#code li.active, #code li.idle")).to_have_count(0)


def passes_around() -> torch.Tensor:
    rank, world_size, chunk = dist.get_rank(), dist.get_world_size(), torch.tensor([dist.get_rank()])
    for _ in range(world_size - 1):
        sending = dist.isend(chunk, dst=(rank + 1) % world_size)
        arrived = torch.empty_like(chunk)
        dist.recv(arrived, src=(rank - 1) % world_size)
        sending.wait()
        chunk = arrived + 10
    return chunk


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_values_travel_around_the_ring_and_keep_their_tint(page: Page, tmp_path: Path, motion: str) -> None:
    World(4, replay=True).run(passes_around).replay(memory=False).save(tmp_path / "replay.html")
    page.emulate_media(reduced_motion=motion)  # type: ignore[arg-type]
    page.set_viewport_size({"width": 360, "height": 800})
    page.goto((tmp_path / "replay.html").as_uri())
    chips = page.locator(".ring .chip")
    moving = "document.getAnimations().filter(one => one.effect.target.matches('.chip')).length"

    assert chips.all_text_contents() == ["3", "0", "1", "2"]  # by receiving rank
    tints = chips.evaluate_all("chips => chips.map(chip => chip.getAttribute('class'))")
    assert len(set(tints)) == 4
    page.keyboard.press("ArrowRight")
    assert page.evaluate(moving) == (0 if motion == "reduce" else 4)
    assert chips.all_text_contents() == ["12", "13", "10", "11"]
    assert chips.evaluate_all("chips => chips.map(chip => chip.getAttribute('class'))") == tints[-1:] + tints[:-1]
    expect(page.locator(".card .line, .held")).to_have_count(0)  # the cards do not repeat what all ranks share
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(moving) == 0  # back is a jump
    page.keyboard.press("End")
    assert chips.all_text_contents() == ["[31]", "[32]", "[33]", "[30]"]
    expect(page.locator("#caption")).to_have_text("All 4 ranks: returned")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_code_in_the_message_of_a_failed_run_has_no_backticks(page: Page, tmp_path: Path) -> None:
    error = failure(World(2), rank_0_is_missing)
    error.replay().save(tmp_path / "replay.html")
    page.goto((tmp_path / "replay.html").as_uri())

    assert "`if`" in str(error)
    expect(page.locator("#failure code")).to_have_text(["if", "return", "except"])
    expect(page.locator("#failure")).not_to_contain_text("`")
    expect(page.locator("#strip .never")).to_have_text("barrier #1")


@pytest.mark.parametrize(("replay", "answer"), [
    (True, "First difference, at step 2: rank 0: step = 1 at barrier #2 ({line}); rank 1: step = 2 at barrier #2"),
    (False, "First difference in calls, at step 4: rank 0: barrier #4 ({line}); rank 1: returned."),
])  # fmt: skip
def test_a_failed_run_leads_to_the_skipped_iteration(page: Page, tmp_path: Path, replay: bool, answer: str) -> None:
    error = failure(World(3, replay=replay), rank_1_skips_an_iteration)
    error.replay().save(tmp_path / "replay.html")
    page.goto((tmp_path / "replay.html").as_uri())

    page.locator("#failure button").click()
    expect(page.locator("#answer")).to_contain_text(answer.format(line=error.calls[0][0].line))


def test_replays_and_figures_play_in_notebook_7(page: Page, server: JupyterLab, notebooks: Path) -> None:
    saved(notebooks, "scratch.ipynb", new_code_cell(RUN), new_code_cell(FIGURE))
    page.goto(f"{server.url}/notebooks/scratch.ipynb?token={server.token}")
    wait_until_idle(page)
    run_all(page)
    replay, figure = (page.frame_locator("iframe").nth(index) for index in range(2))
    press(replay, "ArrowRight")
    expect(replay.locator("#caption")).to_have_text("Both ranks: barrier #1")
    figure.get_by_text("3", exact=True).click()
    expect(figure.locator("#figure text[font-size='46']")).to_have_text("1.9 GB")
    choose_theme(page, "Dark")
    expect(replay.locator("html")).to_have_attribute("data-theme", "dark")


def press(frame: FrameLocator, key: str) -> None:
    frame.locator("#code").press(key)
