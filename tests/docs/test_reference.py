"""The reference leaves nothing out."""

from __future__ import annotations

import re

import click

import engine_core
from engine_core import errors
from engine_core.cli import main
from engine_core.config import Config
from engine_core.config.schema import TrainerSettings
from engine_core.ranks import Ranks
from engine_core.registry import CORE, Registry

from .conftest import DOCS

REFERENCE = {page.stem: page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md")}


def test_each_public_name_is_in_the_api_reference():
    described = re.findall(r"^\.\. auto\w+:: engine_core(?:\.\w+)?\.(\w+)$", REFERENCE["api"], re.MULTILINE)

    assert sorted({*engine_core.__all__} - {*described}) == []


def test_what_ranks_tell_each_other_is_on_the_page_for_authors():
    cells = re.findall(r"^\| (`.*?) \|", (DOCS / "authors" / "scale.md").read_text(encoding="utf-8"), re.MULTILINE)
    names = [name for name in dir(Ranks) if not name.startswith("_")]

    assert [name for name in names if not re.search(rf"`{name}\b", " ".join(cells))] == []


def test_the_errors_are_in_the_reference():
    assert ".. automodule:: engine_core.errors\n   :members:\n" in REFERENCE["modules"]
    types = [
        thing for thing in vars(errors).values() if isinstance(thing, type) and thing.__module__ == errors.__name__
    ]
    assert [error.__name__ for error in types if not error.__doc__] == []


def test_each_key_of_the_config_and_setting_of_the_trainer_is_in_the_table():
    table = ", ".join(re.findall(r"^\| (`.*?`) \|", REFERENCE["config"], re.MULTILINE))
    settings = REFERENCE["config"][REFERENCE["config"].index("## trainer") :]

    assert [key for key in Config.model_fields if f"`{key}`" not in table] == []
    assert [setting for setting in TrainerSettings.model_fields if f"`{setting}`" not in settings] == []


def test_the_commands_have_a_heading_each():
    assert sorted(re.findall(r"^## ([a-z ]+)$", REFERENCE["cli"], re.MULTILINE)) == commands(main)


def commands(group: click.Group, before: str = "") -> list[str]:
    """Return the names of commands that do something, as they are written."""
    context = click.Context(group)
    found = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        full = f"{before} {name}".strip()
        found += commands(command, full) if isinstance(command, click.Group) else [full]
    return found


CALLBACKS = DOCS / "callbacks"
REGISTERED = [
    record.name for record in Registry.scan().records if (record.kind, record.distribution) == ("callbacks", CORE)
]


def test_each_callback_and_logger_of_the_core_has_a_page_named_as_registered_and_no_other_has():
    pages = {page.stem: page.read_text(encoding="utf-8") for page in CALLBACKS.glob("*.md")}

    assert sorted(pages) == sorted([*REGISTERED, "index"])
    assert [name for name in REGISTERED if not pages[name].startswith(f"# {name}\n\n```{{callback}} {name}\n")] == []


def test_the_environment_variables_are_explained():
    page = (DOCS / "howto" / "plugins.md").read_text(encoding="utf-8")

    assert [f"| `ENGINE_CORE_{name}` |" in page for name in ("PLUGINS", "DISABLE_PLUGINS")] == [True, True]
