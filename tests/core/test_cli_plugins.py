"""`engine-core plugins list`: what is installed, shown without importing any of it."""

import json
import os
import resource
import subprocess
import sys

import pytest
from click.testing import CliRunner

from engine_core.cli import main
from engine_core.errors import PluginError
from engine_core.registry import Registry


def run(*arguments):
    return CliRunner().invoke(main, ["plugins", "list", *arguments])


def test_json_is_an_array_of_the_records(install):
    install("acme-plugin", {"algorithms": {"acme": "acme:Acme"}}, {"acme": ""}, version="1.2")
    (record,) = [record for record in json.loads(run("--json").output) if record["distribution"] == "acme-plugin"]
    names = {"kind": "algorithms", "name": "acme", "distribution": "acme-plugin", "version": "1.2"}
    assert record == {**names, "entry_point": "acme:Acme", "status": "available", "reason": ""}


def test_the_table_says_why_a_plugin_is_not_available(install, monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "acme-plugin")
    install("acme-plugin", {"algorithms": {"acme": "acme:Acme"}}, {"acme": ""}, version="1.2")
    lines = run().output.splitlines()
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
    result = run()
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
    rows = [line.split() for line in run().output.splitlines()]
    assert [row for row in rows if row[0] == "loops"] == [
        ["loops", "acme", "acme-loop", "1.0", "available"],
        ["loops", "fsdp", "engine-core", Registry.scan().version_of("engine-core"), "available"],
    ]
    said = r"loop 'acme' of acme-loop 1.0 .*must name an engine_core.needs.Offers, not 3"
    with pytest.raises(PluginError, match=said):
        Registry.scan().load("loops", "acme")
