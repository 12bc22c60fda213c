"""What the installed wheels can do."""

from __future__ import annotations

import json

from .conftest import AUTHOR, PLUGINS, Environment

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
groups = [f"engine_core.{kind}" for kind in ("algorithms", "passes", "callbacks", "commands", "loops")]
for group in [*groups, "console_scripts"]:
    for entry in entry_points(group=group):
        if entry.dist.name in sys.argv:
            entry.load()
            print(entry.dist.name, entry.name)
"""


def test_every_module_of_the_core_imports_without_extras(bare: Environment) -> None:
    assert "engine_core.engine" in bare.run("python", "-c", EVERY_MODULE).split()


def test_every_entry_point_loads(complete: Environment) -> None:
    loaded = complete.run("python", "-W", "error", "-c", EVERY_ENTRY_POINT, "engine-core", *PLUGINS).splitlines()

    assert {line.split()[0] for line in loaded} == {"engine-core", *PLUGINS}
    assert {"sb-plugin selective_backprop", "engine-core set_filo_order", "engine-core engine-core"} <= set(loaded)
    assert "engine-core fsdp" in loaded


def test_the_command_lists_the_plugins(complete: Environment) -> None:
    records = json.loads(complete.run("engine-core", "plugins", "list", "--json"))

    found = [(r["distribution"], r["version"], r["status"]) for r in records if r["name"] == "selective_backprop"]
    assert found == [("sb-plugin", "0.1.0", "available")]
    assert {r["distribution"] for r in records} == {"engine-core", *PLUGINS}
    assert {r["status"] for r in records} == {"available"}


def test_the_core_alone_lists_no_algorithm(bare: Environment) -> None:
    records = json.loads(bare.run("engine-core", "plugins", "list", "--json"))

    assert {r["distribution"] for r in records} == {"engine-core"}
    assert [r["name"] for r in records if r["kind"] == "algorithms"] == []


def test_a_practitioners_pytest_loads_no_plugin_of_ours(lean: Environment, complete: Environment) -> None:
    listed = [one.run("python", "-m", "pytest", "--version", "--version") for one in (lean, complete)]

    assert [f"{AUTHOR}-" in text for text in listed] == [False, True]


def test_the_example_trains_with_the_algorithms_plugin_alone(lean: Environment) -> None:
    lean.run("python", "-m", "engine_core", "train", "--example", "digits")

    (results,) = lean.home.glob("runs/*/results.json")
    assert json.loads(results.read_text())["eval/accuracy"] > 0.95
