"""How a click reaches Python: events arrive in one field, numbered, with the values of the card's fields."""

import json
import re
from html import unescape

from ipywidgets import HTML

from course_lib.widgets.card import Card


def click(card: Card, action: str, **fields: str) -> None:
    """Do what the browser does at a click: add an event to those that were sent before."""
    before = json.loads(card.inbox.value or "[]")[-9:]
    number = before[-1][0] + 1 if before else 1
    card.inbox.value = json.dumps([*before, [number, action, fields]])


def text(part: HTML) -> str:
    """Return the text of a part, without tags."""
    return unescape(re.sub(r"<[^>]+>", "", part.value))


def recorder() -> tuple[Card, list[tuple[str, str]]]:
    """A card, and the list of what its two actions were called with."""
    calls: list[tuple[str, str]] = []
    actions = {
        "check": lambda fields: calls.append(("check", fields.get("answer", ""))),
        "again": lambda fields: calls.append(("again", "")),
    }
    return Card([HTML()], actions), calls


def test_an_action_is_called_with_the_values_of_the_fields() -> None:
    card, calls = recorder()
    click(card, "check", answer="12")
    click(card, "again")
    click(card, "check", answer="12")
    assert calls == [("check", "12"), ("again", ""), ("check", "12")]


def test_an_event_is_done_once_and_in_order_whatever_message_comes_first() -> None:
    card, calls = recorder()
    first, second = [1, "check", {"answer": "7"}], [2, "again", {}]
    for message in ([first, second], [first], [second], [first, second]):
        card.inbox.value = json.dumps(message)
    assert calls == [("check", "7"), ("again", "")]


def test_a_card_is_answered_while_a_cell_runs() -> None:
    """ipykernel asks this method for a thread; without it, JupyterLab's choice counts."""
    assert recorder()[0].inbox.comm._reply_subshell_for is None
