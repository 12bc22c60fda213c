"""What the installed wheels can do, in one environment that gets more and more of them."""

import json
import venv

import pytest

from .conftest import AUTHOR, PARTS, PLUGINS, Environment

OURS = ["engine-core", *PARTS, *PLUGINS]
EVERY_MODULE = """
import importlib, pkgutil, engine_core
apart = ("engine_core.__main__", "engine_core.examples.")  # a program; need extras
for module in pkgutil.walk_packages(engine_core.__path__, "engine_core."):
    if not module.name.startswith(apart):
        importlib.import_module(module.name)
        print(module.name)
"""
EVERY_ENTRY_POINT = """
import sys
from importlib.metadata import entry_points
groups = [f"engine_core.{kind}" for kind in ("algorithms", "passes", "callbacks", "loops", "commands", "recipes")]
for group in [*groups, "console_scripts"]:
    for entry in entry_points(group=group):
        if entry.dist.name in sys.argv:
            entry.load()
            print(entry.dist.name, entry.name)
"""
TRAIN = "import sys; sys.stderr = sys.stdout; from engine_core.cli import main; main()"
PYTEST_PLUGINS = ("-m", "pytest", "--version", "--version")


def listed(environment):
    return json.loads(environment.run("engine-core", "plugins", "list", "--json"))


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    home = tmp_path_factory.mktemp("installed")
    venv.create(home)
    return Environment(home)


@pytest.fixture(scope="session")
def bare(environment, core):
    """What the core says alone, without extras."""
    environment.install(str(core.wheel))
    return {"modules": environment.run("python", "-c", EVERY_MODULE).split(), "listed": listed(environment)}


@pytest.fixture(scope="session")
def lean(environment, core, plugins, bare):
    """What it says with what one needs who trains with an algorithm, and pytest."""
    extra = f"engine-core[examples] @ {core.wheel.as_uri()}"
    environment.install(extra, str(plugins["sb-plugin"].wheel), "pytest")
    shown = environment.run("python", "-c", TRAIN, "train", "--example", "digits")
    (run,) = environment.home.glob("runs/*")
    return {
        "pytest": environment.run("python", *PYTEST_PLUGINS),
        "shown": shown,
        "run": run,
        "explained": environment.run("engine-core", "explain", str(run)),
        "refused": {name: environment.run("engine-core", name, "runs", code=2) for name in ("report", "watch")},
    }


@pytest.fixture(scope="session")
def complete(environment, plugins, lean):
    """The same with the parts of the core and the plugins."""
    environment.install(*(str(plugin.wheel) for plugin in plugins.values()))
    return environment


def test_every_module_of_the_core_imports_without_extras_and_it_lists_no_algorithm(bare):
    assert "engine_core.engine" in bare["modules"]
    assert {record["distribution"] for record in bare["listed"]} == {"engine-core"}
    assert [record["name"] for record in bare["listed"] if record["kind"] == "algorithms"] == []


def test_the_example_trains_with_the_core_and_a_plugin_alone(lean):
    folder, results = lean["run"], json.loads((lean["run"] / "results.json").read_text())
    assert results["eval/accuracy"] > 0.95
    header, row, table = (
        "algorithms  SelectiveBackprop (sb-plugin 0.1.0)",
        "epoch 10/10  train/loss ",
        "  eval/accuracy ",
    )
    assert [each for each in (header, row, table) if f"\n{each}" not in lean["shown"]] == []
    assert (folder / "model.safetensors").is_file()
    assert (folder / results["checkpoints"]["latest"] / "manifest.json").is_file()
    assert "after_dataloader: SelectiveBackprop" in lean["explained"]


def test_a_command_that_is_not_installed_is_answered_with_what_brings_it(lean):
    assert [name for name, said in lean["refused"].items() if 'pip install "engine-core[report]"' not in said] == []


def test_a_practitioners_pytest_loads_no_plugin_of_ours(lean, complete):
    said = [lean["pytest"], complete.run("python", *PYTEST_PLUGINS)]
    assert [f"{AUTHOR}-" in text for text in said] == [False, True]


def test_every_entry_point_loads(complete):
    loaded = complete.run("python", "-W", "error", "-c", EVERY_ENTRY_POINT, *OURS).splitlines()
    assert {line.split()[0] for line in loaded} == {*OURS}
    assert {"sb-plugin selective_backprop", "engine-core set_filo_order", "engine-core engine-core"} <= set(loaded)
    assert "engine-core fsdp" in loaded


def test_the_command_lists_the_plugins(complete):
    records = listed(complete)
    found = [(r["distribution"], r["version"], r["status"]) for r in records if r["name"] == "selective_backprop"]
    assert found == [("sb-plugin", "0.1.0", "available")]
    assert {r["distribution"] for r in records} == {*OURS}
    assert {r["status"] for r in records} == {"available"}


def test_with_the_report_a_run_has_its_page(complete, lean):
    run = lean["run"].relative_to(complete.home)
    assert complete.run("engine-core", "report", str(run)) == f"{run}/report.html\n"
    assert (complete.home / run / "report.html").read_text().startswith("<!doctype html>")
