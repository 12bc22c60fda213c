"""Commands that distributions register in `engine_core.commands`, and those that an extra would bring."""

import sys

import pytest
from click.testing import CliRunner

from engine_core.cli import main
from engine_core.registry import Registry, brought_by

GREET = """
    import click

    @click.command()
    @click.argument("whom")
    def greet(whom):
        "Greet somebody. And more."
        click.echo(f"hello {whom}")
"""


@pytest.fixture
def greet(install):
    """Return a function that installs a command under a name."""
    return lambda name="greet", text=GREET: install(
        "acme", {"commands": {name: "acme_greet:greet"}}, {"acme_greet": text}
    )


def run(*arguments):
    return CliRunner().invoke(main, arguments)


def test_a_registered_command_is_listed_with_its_first_sentence_and_runs_whatever_is_allowed(greet, monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_PLUGINS", "other")
    greet()
    line = next(line for line in run("plugins", "list").output.splitlines() if "greet" in line)
    assert line.split() == ["commands", "greet", "acme", "1.0", "available"]
    assert "acme_greet" not in sys.modules
    assert ["greet", "Greet", "somebody."] in [line.split() for line in run("--help").output.splitlines()]
    assert (run("greet", "you").output, run("greet", "you").exit_code) == ("hello you\n", 0)


def test_a_name_with_a_dot_is_a_command_of_a_group_and_not_of_the_top(greet):
    greet("plugins.greet")
    assert run("plugins", "greet", "you").output == "hello you\n"
    assert "greet" in run("plugins", "--help").output
    assert "greet" not in run("--help").output
    refused = run("greet", "you")
    assert (refused.exit_code, "'greet'" in refused.output) == (2, True)


def test_the_cores_own_commands_and_those_of_its_groups_cannot_be_taken(install):
    commands = {"train": "acme_greet:greet", "plugins.list": "acme_greet:greet", "checkpoint.show": "acme_greet:greet"}
    install("acme", {"commands": commands}, {"acme_greet": GREET})
    assert "hello" not in run("train", "you").output
    assert "hello" not in run("plugins", "list").output
    assert "hello" not in run("checkpoint", "show", "you").output
    taken = next(r for r in Registry.scan().records if (r.name, r.distribution) == ("train", "acme"))
    assert (taken.status, "acme:train" in taken.reason) == ("ambiguous", True)


@pytest.mark.parametrize(
    ("module", "why"), [("raise OSError('no disk')", "no disk"), ("greet = 3", "click.Command")], ids=["raises", "is 3"]
)
def test_a_broken_command_is_named_with_its_distribution_and_breaks_no_other(greet, module, why):
    greet(text=module)
    told = run("greet")
    assert told.exit_code == 2
    assert all(part in told.output for part in ("acme 1.0", "acme_greet:greet", why))
    listed = run("--help")
    assert (listed.exit_code, "train" in listed.output, why in " ".join(listed.output.split())) == (0, True, True)


def test_a_disabled_command_is_not_listed_and_says_why_it_does_not_run(greet, monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "acme")
    greet()
    assert "greet" not in run("--help").output
    told = run("greet", "you")
    assert (told.exit_code, "ENGINE_CORE_DISABLE_PLUGINS" in told.output) == (2, True)


@pytest.mark.parametrize(("words", "extra"), [(("fly",), "wings"), (("plugins", "fly"), "author")])
def test_what_an_extra_brings_is_named_with_the_line_that_installs_it(monkeypatch, words, extra):
    import importlib_metadata  # noqa: PLC0415

    text = "[extras_of_engine_core]\ncommands.fly = wings\ncommands.plugins.fly = author\n"
    core = type("Core", (), {"entry_points": importlib_metadata.EntryPoints._from_text_for(text, None)})
    monkeypatch.setattr(importlib_metadata, "distribution", lambda name: core)
    told = run(*words)
    assert told.exit_code == 2
    assert "'fly'" in told.output
    assert f'pip install "engine-core[{extra}]"' in told.output


@pytest.mark.parametrize("what", ["commands plugins.doctor", "commands plugins.new", "callbacks audit"])
def test_the_extra_that_brings_what_only_authors_need_is_in_the_cores_metadata(what):
    assert 'pip install "engine-core[author]"' in brought_by(*what.split())
