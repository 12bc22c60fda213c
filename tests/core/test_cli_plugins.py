"""`engine-core plugins list`, which imports nothing, and commands that distributions register."""

import json
import os
import resource
import subprocess
import sys

import pytest
from click.testing import CliRunner

from engine_core.cli import main
from engine_core.errors import PluginError
from engine_core.registry import Registry, brought_by


def run(*arguments):
    return CliRunner().invoke(main, arguments)


def test_json_is_an_array_of_the_records(install):
    install("acme-plugin", {"algorithms": {"acme": "acme:Acme"}}, {"acme": ""}, version="1.2")
    (record,) = [
        record
        for record in json.loads(run("plugins", "list", "--json").output)
        if record["distribution"] == "acme-plugin"
    ]
    names = {"kind": "algorithms", "name": "acme", "distribution": "acme-plugin", "version": "1.2"}
    assert record == {**names, "entry_point": "acme:Acme", "status": "available", "reason": ""}


def test_the_table_says_why_a_plugin_is_not_available(install, monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "acme-plugin")
    install("acme-plugin", {"algorithms": {"acme": "acme:Acme"}}, {"acme": ""}, version="1.2")
    lines = run("plugins", "list").output.splitlines()
    row = next(place for place, line in enumerate(lines) if "acme" in line)
    assert [lines[0].split(), lines[row].split(), lines[row + 1]] == [
        ["KIND", "NAME", "DISTRIBUTION", "VERSION", "STATUS"],
        ["algorithms", "acme", "acme-plugin", "1.2", "disabled"],
        "    listed in ENGINE_CORE_DISABLE_PLUGINS",
    ]
    assert {line.index("acme-plugin") for line in lines if "acme-plugin" in line} == {lines[0].index("DISTRIBUTION")}


def test_a_broken_plugin_is_listed_and_not_imported_and_control_characters_are_escaped(install):
    points = {"algorithms": {"a\x1b[31m\u202e": "acme_broken:Acme"}}
    install("acme-plugin", points, {"acme_broken": "raise SystemExit('no')"})
    result = run("plugins", "list")
    assert (result.exit_code, "acme_broken" in sys.modules) == (0, False)
    written = [part in result.output for part in ("\x1b", "\u202e", r"a\x1b[31m\u202e", "acme-plugin")]
    assert written == [False, False, True, True]


def test_listing_imports_nothing_heavy(tmp_path):
    heavy = "{'torch', 'numpy', 'yaml', 'rich', 'engine_core.engine', 'engine_core.config', 'engine_core.run'}"
    script = (
        "import sys; from engine_core.cli import main; main(['plugins', 'list'], standalone_mode=False);"
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.full
def test_listing_takes_less_than_5_times_the_cpu_of_importing_the_libraries_that_it_needs(tmp_path):
    bytecode = {"PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}

    def cpu_s(*arguments):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command, environment = [sys.executable, *arguments], {**os.environ, **bytecode}
        subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    listing = ("-m", "engine_core", "plugins", "list")
    libraries = ("-c", "import click, importlib_metadata, pydantic")
    took = [(cpu_s(*listing), cpu_s(*libraries)) for _ in range(3)]  # the first of them compiles
    assert min(s for s, _ in took) < 5 * min(s for _, s in took)


def test_what_training_loops_offer_is_listed_as_loops_and_has_to_be_offers(install):
    install("acme-loop", {"loops": {"acme": "acme_offers:OFFERS"}}, {"acme_offers": "OFFERS = 3"})
    rows = [line.split() for line in run("plugins", "list").output.splitlines()]
    assert [row for row in rows if row[0] == "loops"] == [
        ["loops", "acme", "acme-loop", "1.0", "available"],
        ["loops", "fsdp", "engine-core", Registry.scan().version_of("engine-core"), "available"],
    ]
    said = r"loop 'acme' of acme-loop 1.0 .*must name an engine_core.needs.Offers, not 3"
    with pytest.raises(PluginError, match=said):
        Registry.scan().load("loops", "acme")


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
