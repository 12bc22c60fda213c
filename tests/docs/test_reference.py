"""The reference leaves nothing out."""

from __future__ import annotations

import re

import click
import pytest

import engine_core
from engine_core import errors
from engine_core.cli import main
from engine_core.config import Config
from engine_core.config.schema import TrainerSettings
from engine_core.ranks import Ranks
from engine_core.registry import CORE, Registry

from .conftest import DOCS

REFERENCE = {page.stem: page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md")}


@pytest.mark.parametrize("name", engine_core.__all__)
def test_a_public_name_is_in_the_api_reference(name):
    assert re.search(rf"^\.\. auto\w+:: engine_core(\.\w+)?\.{name}$", REFERENCE["api"], re.MULTILINE)


@pytest.mark.parametrize("name", [name for name in dir(Ranks) if not name.startswith("_")])
def test_what_ranks_tell_each_other_is_on_the_page_for_authors(name):
    cells = re.findall(r"^\| (`.*?) \|", (DOCS / "authors" / "scale.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert re.search(rf"`{name}\b", " ".join(cells))


def test_the_errors_are_in_the_reference():
    assert ".. automodule:: engine_core.errors\n   :members:\n" in REFERENCE["modules"]
    types = [
        thing for thing in vars(errors).values() if isinstance(thing, type) and thing.__module__ == errors.__name__
    ]
    assert [error.__name__ for error in types if not error.__doc__] == []


@pytest.mark.parametrize("key", Config.model_fields)
def test_a_key_of_the_config_is_in_the_table(key):
    table = re.findall(r"^\| (`.*?`) \|", REFERENCE["config"], re.MULTILINE)

    assert f"`{key}`" in ", ".join(table)


@pytest.mark.parametrize("setting", TrainerSettings.model_fields)
def test_a_setting_of_the_trainer_is_in_the_reference(setting):
    assert f"`{setting}`" in REFERENCE["config"][REFERENCE["config"].index("## trainer") :]


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


@pytest.mark.parametrize("name", REGISTERED)
def test_a_callback_or_logger_of_the_core_has_a_page_named_as_registered(name):
    page = CALLBACKS / f"{name}.md"
    begins = f"# {name}\n\n```{{callback}} {name}\n"

    assert page.is_file(), (
        f"write {page.relative_to(DOCS)}, add it to callbacks/index.md, and begin it with:\n{begins}```"
    )
    assert page.read_text(encoding="utf-8").startswith(begins)


def test_each_of_these_pages_is_of_a_registered_one():
    assert sorted(page.stem for page in CALLBACKS.glob("*.md")) == sorted([*REGISTERED, "index"])


@pytest.mark.parametrize("variable", ["ENGINE_CORE_PLUGINS", "ENGINE_CORE_DISABLE_PLUGINS"])
def test_an_environment_variable_is_explained(variable):
    assert f"| `{variable}` |" in (DOCS / "howto" / "plugins.md").read_text(encoding="utf-8")
