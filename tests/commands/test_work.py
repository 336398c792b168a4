"""The learner's copies of the lessons: made once, kept current, and never overwritten."""

import json
import os
import resource
import sqlite3
import sys
from functools import partial

import nbformat
import pytest
from nbformat.sign import NotebookNotary
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course_lib.commands import cli, work
from course_lib.commands.lab import FIRST_LESSON, last_saved
from course_lib.errors import CourseError

BARE = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}


def code(id_, source, output="42\n", **metadata):
    return new_code_cell(source, id=id_, outputs=[new_output("stream", text=output)], metadata=metadata)


def ship(folder, *cells, name="03-topic.ipynb") -> None:
    folder.mkdir(exist_ok=True)
    nbformat.write(new_notebook(cells=list(cells)), folder / name)


def cells(folder, name="03-topic.ipynb"):
    return {cell.id: cell for cell in nbformat.read(folder / name, as_version=4).cells}


def trusted(folder):
    with NotebookNotary() as notary:
        return notary.check_signature(nbformat.read(folder / "03-topic.ipynb", as_version=4))


@pytest.fixture
def jupyter(tmp_path, monkeypatch):
    """The learner's folder of Jupyter, which has the signatures."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "jupyter"))
    return tmp_path / "jupyter"


@pytest.fixture
def folders(tmp_path, jupyter):
    answer = code("answer", "run()", jupyter={"outputs_hidden": True, "source_hidden": True})
    ship(tmp_path / "lessons", new_markdown_cell("Text", id="text"), answer, code("shown", "show()"))
    return tmp_path / "lessons", tmp_path / "work"


def edit(folder, id_, source) -> None:
    notebook = nbformat.read(folder / "03-topic.ipynb", as_version=4)
    next(cell for cell in notebook.cells if cell.id == id_).source = source
    nbformat.write(notebook, folder / "03-topic.ipynb")


def test_a_copy_has_no_answers(folders) -> None:
    lessons, copies = folders
    assert work.update(lessons, copies) == copies
    made = cells(copies)
    assert made["answer"].outputs == [] and made["answer"].metadata == {"jupyter": {"source_hidden": True}}
    assert made["shown"].outputs
    assert cells(lessons)["answer"].outputs  # the course's own file stays as it is


def test_the_lesson_that_was_saved_last_opens(folders) -> None:
    lessons, copies = folders
    for name in (FIRST_LESSON, "04-zero.ipynb"):
        ship(lessons, name=name)
    work.update(*folders)
    assert last_saved(copies) == FIRST_LESSON
    for name in ("04-zero.ipynb", "03-topic.ipynb"):
        later = max(path.stat().st_mtime for path in copies.rglob("*.ipynb")) + 1
        os.utime(copies / name, (later, later))
        work.update(*folders)
        assert last_saved(copies) == name


def test_a_second_start_changes_nothing(folders) -> None:
    work.update(*folders)
    edit(folders[1], "answer", "mine()")
    before = (folders[1] / "03-topic.ipynb").read_bytes()
    work.update(*folders)
    assert (folders[1] / "03-topic.ipynb").read_bytes() == before


def test_a_later_version_comes_in_and_the_learners_cells_stay(folders) -> None:
    lessons, copies = folders
    work.update(*folders)
    edit(copies, "answer", "mine()")
    notebook = nbformat.read(copies / "03-topic.ipynb", as_version=4)
    notebook.cells.insert(1, new_code_cell("my own cell", id="own"))
    nbformat.write(notebook, copies / "03-topic.ipynb")
    ship(lessons, new_markdown_cell("Better text", id="text"), code("answer", "run(2)"), code("more", "more()"))

    work.update(*folders)

    assert {id_: cell.source for id_, cell in cells(copies).items()} == {
        "text": "Better text", "own": "my own cell", "answer": "mine()", "more": "more()",
    }  # fmt: skip
    assert list(cells(copies)) == ["text", "own", "answer", "more"]


def test_a_copy_whose_cells_have_no_ids_keeps_them(folders) -> None:
    work.update(*folders)
    copy = folders[1] / "03-topic.ipynb"
    copy.write_text(json.dumps(new_notebook(nbformat_minor=0, cells=[{"source": "mine()"} | BARE])))
    ship(folders[0], new_markdown_cell("Better text", id="text"), code("more", "more()"))
    work.update(*folders)
    assert [cell.source for cell in cells(folders[1]).values()] == ["mine()", "more()"]


@pytest.mark.parametrize("minor", [0, 4, 5])
def test_a_later_version_comes_into_a_copy_whose_cells_have_lost_their_ids(folders, minor: int, capfd) -> None:
    lessons, copies = folders
    work.update(*folders)
    copy = json.loads((copies / "03-topic.ipynb").read_text())
    for cell in copy["cells"]:
        del cell["id"]
    copy["cells"][1]["source"] = "mine()"
    copy["cells"].append({"source": "my own cell"} | BARE)
    (copies / "03-topic.ipynb").write_text(json.dumps(copy | {"nbformat_minor": minor}))
    ship(lessons, new_markdown_cell("Better", id="text"), code("more", "more()"), code("answer", "run(2)"))

    work.update(*folders)

    assert [cell.source for cell in cells(copies).values()] == ["Better", "more()", "mine()", "my own cell"]
    assert capfd.readouterr() == (
        "03-topic.ipynb: your version of this cell stays, and the lesson has a later one: run(2)\n", ""
    )  # fmt: skip


def test_a_copy_in_which_two_cells_have_one_id_keeps_both(folders) -> None:
    work.update(*folders)
    copy = folders[1] / "03-topic.ipynb"
    copy.write_text(copy.read_text().replace('"shown"', '"answer"').replace("run()", "mine()"))
    ship(folders[0], new_markdown_cell("Better", id="text"), code("answer", "run()"))
    work.update(*folders)
    assert [cell.source for cell in cells(folders[1]).values()] == ["Better", "mine()", "show()"]


def test_a_changed_cell_that_the_lesson_no_longer_has_stays(folders) -> None:
    work.update(*folders)
    edit(folders[1], "shown", "my show()")
    ship(folders[0], new_markdown_cell("Text", id="text"))
    work.update(*folders)
    assert {id_: cell.source for id_, cell in cells(folders[1]).items()} == {"text": "Text", "shown": "my show()"}


def test_imports_of_the_learner_and_of_earlier_versions_come_after_the_lessons_later_ones(folders, capsys) -> None:
    lessons, copies = folders
    ship(lessons, code("imports", "import torch\nimport old\nfrom course_lib import gone"))
    work.update(*folders)
    edit(copies, "imports", "import torch\nimport numpy as np\n\nimport old\nfrom course_lib import gone")
    ship(lessons, code("imports", "import torch\nfrom torch import nn"))
    work.update(*folders)
    assert cells(copies)["imports"].source == "import torch\nfrom torch import nn\nimport numpy as np\nimport old"
    assert capsys.readouterr().out == ""


def test_names_of_the_course_stay_where_a_changed_cell_uses_them(folders) -> None:
    lessons, copies = folders
    old = "from course_lib import World, compare, gone, plots, zero as z  # noqa\nfrom course_lib.gone import table"
    ship(lessons, code("imports", old), code("answer", "run()"))
    work.update(*folders)
    edit(copies, "answer", "compare(World, gone, z, table)")
    ship(lessons, code("imports", "from course_lib import World"), code("answer", "run(2)"))
    for _ in range(2):
        work.update(*folders)
    assert cells(copies)["imports"].source == "from course_lib import World\nfrom course_lib import compare, zero as z"


def test_a_lesson_whose_copy_was_moved_away_starts_again(folders) -> None:
    work.update(*folders)
    edit(folders[1], "answer", "mine()")
    (folders[1] / "03-topic.ipynb").rename(folders[1] / "03-topic-old.ipynb")
    work.update(*folders)
    assert cells(folders[1])["answer"].source == "run()"
    assert cells(folders[1], "03-topic-old.ipynb")["answer"].source == "mine()"


def test_a_lesson_with_a_new_number_takes_its_copy_along(folders) -> None:
    lessons, copies = folders
    work.update(lessons, copies)
    edit(copies, "shown", "mine()")
    (lessons / "03-topic.ipynb").rename(lessons / "04-topic.ipynb")
    work.update(lessons, copies)

    assert [path.name for path in copies.glob("*.ipynb")] == ["04-topic.ipynb"]
    assert cells(copies, "04-topic.ipynb")["shown"].source == "mine()"


def test_a_copy_is_trusted_and_has_nothing_to_save(folders) -> None:
    work.update(*folders)
    assert trusted(folders[1])
    language = nbformat.read(folders[1] / "03-topic.ipynb", as_version=4).metadata.language_info
    assert (language.name, language.version) == ("python", sys.version.split()[0])


def test_after_a_merge_a_copy_is_trusted_if_it_was_before(folders) -> None:
    lessons, copies = folders
    for source in ("run(2)", "run(3)"):
        work.update(*folders)
        assert trusted(copies)
        ship(lessons, code("answer", source))

    edit(copies, "answer", "mine()")  # as a program would that is not Jupyter
    work.update(*folders)
    assert not trusted(copies)


def test_a_copy_that_nobody_changed_becomes_trusted(folders) -> None:
    work.update(*folders)
    with NotebookNotary() as notary:
        notary.unsign(nbformat.read(folders[1] / "03-topic.ipynb", as_version=4))
    assert not trusted(folders[1])
    ship(folders[0], code("answer", "run(2)"))
    work.update(*folders)
    assert trusted(folders[1])


def no_folder(jupyter) -> None:
    jupyter.write_text("a file")


def locked(jupyter):
    with NotebookNotary() as notary:
        db = sqlite3.connect(notary.db_file)
    db.execute("BEGIN IMMEDIATE")
    return db


@pytest.mark.parametrize("unusable", [no_folder, locked])
def test_copies_are_made_where_nothing_can_be_signed(folders, jupyter, unusable, capsys, monkeypatch) -> None:
    held = unusable(jupyter)
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, timeout=0.1))  # of its own, it waits for 5 s
    assert work.update(*folders) == folders[1]
    assert "The copies could not be signed (" in capsys.readouterr().out
    assert cells(folders[1])
    del held


def test_what_was_not_taken_is_printed(folders, capsys) -> None:
    work.update(*folders)
    edit(folders[1], "answer", "mine()")
    ship(folders[0], new_markdown_cell("New", id="text"), code("answer", "run(\n2)"), code("shown", "show()"))
    for _ in range(2):  # once
        work.update(*folders)
    assert capsys.readouterr().out == (
        "03-topic.ipynb: your version of this cell stays, and the lesson has a later one: run(\n"
    )


@pytest.mark.parametrize("damaged", ["{", "[]"])
def test_a_damaged_copy_is_named_and_stays(folders, damaged) -> None:
    work.update(*folders)
    (folders[1] / "03-topic.ipynb").write_text(damaged)
    ship(folders[0], new_markdown_cell("Other", id="text"))
    with pytest.raises(CourseError, match=r"03-topic\.ipynb cannot be read as a notebook"):
        work.update(*folders)
    assert (folders[1] / "03-topic.ipynb").read_text() == damaged


def test_a_full_disk_leaves_the_copy_as_it_was(folders) -> None:
    work.update(*folders)
    before = (folders[1] / "03-topic.ipynb").read_bytes()
    ship(folders[0], new_markdown_cell("Other" * 1000, id="text"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(CourseError, match=r"03-topic\.ipynb cannot be written"):
            work.update(*folders)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (folders[1] / "03-topic.ipynb").read_bytes() == before
    assert not list(folders[1].glob("*.new"))


def test_the_command_opens_the_copies(folders, monkeypatch) -> None:
    opened = []
    monkeypatch.setattr(work, "update", lambda: folders[1])
    monkeypatch.setattr("course_lib.commands.lab.launch", lambda notebooks, others: opened.append(notebooks))
    assert cli.main(["lab"]) == cli.main(["lab", "--notebooks", "elsewhere"]) == 0
    assert [path.name for path in opened] == ["work", "elsewhere"]


@pytest.mark.parametrize(("writable", "folder"), [(True, work.NOTEBOOKS.parent / "work"), (False, "home/sharded")])
def test_copies_go_home_where_the_clone_cannot_be_written(tmp_path, monkeypatch, capsys, writable, folder) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("os.access", lambda path, mode: writable)
    monkeypatch.setattr(work, "update", lambda: work.folder())

    assert cli.main(["copy"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / folder}\n"
