"""The page about other frameworks: what it calls ours are our arguments, events and plugins."""

from __future__ import annotations

import inspect
import re

from engine_core import Event, State, Trainer
from engine_core.registry import Registry

from .conftest import DOCS

PAGE = (DOCS / "howto" / "coming-from.md").read_text(encoding="utf-8")
_, WORDS, MOMENTS, _ = re.split(r"^## .*$", PAGE, flags=re.MULTILINE)
PLUGINS = {record.name for record in Registry.scan().records}


def column(text: str, number: int) -> str:
    """Return a column of the table in a section."""
    rows = [line.split(" |") for line in text.splitlines() if line.startswith("|")]
    return " ".join(row[number] for row in rows[2:])


def test_the_arguments_are_those_of_the_trainer():
    named = re.findall(r"`(\w+)=", column(WORDS, 3))

    assert len(named) > 10
    assert sorted({*named} - {*inspect.signature(Trainer).parameters}) == []


def test_the_other_words_in_lower_case_are_plugins_or_declared_in_metadata():
    named = re.findall(r"`([a-z_]+)`", column(WORDS, 3))

    assert sorted({*named} - PLUGINS) == ["after", "around", "before", "loss", "within"]


def test_the_moments_are_events_in_their_order_but_for_evaluation():
    named = re.findall(r"`(\w+)`", column(MOMENTS, 3))

    assert [name for name in named if name not in set(Event)] == []
    training = [event.value for event in Event if not event.is_eval]
    assert [name for name in named if name in training] == [name for name in training if name in named]


def test_the_methods_of_state_exist():
    assert [name for name in re.findall(r"`state\.(\w+)\(\)`", PAGE) if not callable(getattr(State, name))] == []
