"""Translations fit the texts that they translate. Texts without a translation are English, which is no error."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from babel.messages.mofile import read_mo
from babel.messages.pofile import read_po

ROOT = Path(__file__).parents[1]
OF_WIDGETS = sorted((ROOT / "course_lib/widgets/static/locale").rglob("*.po"))
CATALOGS = sorted((ROOT / "docs/locale").rglob("*.po")) + OF_WIDGETS
FIXED = re.compile(r"`[^`]+`|\]\([^)]+\)|\{\w*\}")
"""Code, the address of a link, a placeholder."""

PROGRAM = """
from course_lib import predict
from course_lib.widgets.world_picker import WorldPicker

guess = predict("lesson.subject", "2 + 2?", tolerance=0)
guess.commit(3)
guess.reveal(4)
print(guess, WorldPicker().choices.value)
"""


def translations(path: Path) -> dict[str, str]:
    """The translations in a catalog, by text. One that is marked as fuzzy does not count."""
    catalog = read_po(path.read_bytes().splitlines())
    return {message.id: message.string for message in catalog if message.id and message.string and not message.fuzzy}


@pytest.mark.parametrize("path", CATALOGS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_translation_keeps_code_links_and_placeholders(path: Path) -> None:
    assert translations(path)
    for text, translation in translations(path).items():
        assert sorted(FIXED.findall(translation)) == sorted(FIXED.findall(text)), translation


@pytest.mark.parametrize("path", OF_WIDGETS, ids=lambda path: path.parts[-3])
def test_the_catalog_that_the_widgets_read_is_up_to_date(path: Path) -> None:
    with path.with_suffix(".mo").open("rb") as file:
        compiled = {message.id: message.string for message in read_mo(file) if message.id}

    assert compiled == translations(path), "run `make translate`"


@pytest.mark.slow
def test_widgets_speak_the_language_that_is_asked_for(tmp_path: Path) -> None:
    environment = os.environ | {"COURSE_LANGUAGE": "de", "COURSE_HOME": str(tmp_path)}
    python = [sys.executable, "-c", PROGRAM]
    shown = subprocess.run(python, check=True, capture_output=True, text=True, env=environment, timeout=120).stdout

    assert "Ergebnis: 4. Deine Vorhersage: 3. Daneben. Zu niedrig." in shown
    assert "Wo Ranks leben" in shown
    assert "Where ranks live" not in shown
