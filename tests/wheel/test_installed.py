"""What the installed wheels can do."""

from __future__ import annotations

import json

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
groups = [f"engine_core.{kind}" for kind in ("algorithms", "passes", "callbacks", "loops", "commands")]
for group in [*groups, "console_scripts"]:
    for entry in entry_points(group=group):
        if entry.dist.name in sys.argv:
            entry.load()
            print(entry.dist.name, entry.name)
"""


def test_every_module_of_the_core_imports_without_extras(bare: Environment) -> None:
    assert "engine_core.engine" in bare.run("python", "-c", EVERY_MODULE).split()


def test_every_entry_point_loads(complete: Environment) -> None:
    loaded = complete.run("python", "-W", "error", "-c", EVERY_ENTRY_POINT, *OURS).splitlines()

    assert {line.split()[0] for line in loaded} == {*OURS}
    assert {"sb-plugin selective_backprop", "engine-core set_filo_order", "engine-core engine-core"} <= set(loaded)
    assert "engine-core fsdp" in loaded


def test_the_command_lists_the_plugins(complete: Environment) -> None:
    records = json.loads(complete.run("engine-core", "plugins", "list", "--json"))

    found = [(r["distribution"], r["version"], r["status"]) for r in records if r["name"] == "selective_backprop"]
    assert found == [("sb-plugin", "0.1.0", "available")]
    assert {r["distribution"] for r in records} == {*OURS}
    assert {r["status"] for r in records} == {"available"}


def test_the_core_alone_lists_no_algorithm(bare: Environment) -> None:
    records = json.loads(bare.run("engine-core", "plugins", "list", "--json"))

    assert {r["distribution"] for r in records} == {"engine-core"}
    assert [r["name"] for r in records if r["kind"] == "algorithms"] == []


def test_a_practitioners_pytest_loads_no_plugin_of_ours(lean: Environment, complete: Environment) -> None:
    listed = [one.run("python", "-m", "pytest", "--version", "--version") for one in (lean, complete)]

    assert [f"{AUTHOR}-" in text for text in listed] == [False, True]


def test_the_example_trains_with_the_core_and_a_plugin_alone(lean: Environment) -> None:
    program = "import sys; sys.stderr = sys.stdout; from engine_core.cli import main; main()"
    shown = lean.run("python", "-c", program, "train", "--example", "digits")

    (folder,) = lean.home.glob("runs/*")
    results = json.loads((folder / "results.json").read_text())
    assert results["eval/accuracy"] > 0.95
    header, row, table = (
        "algorithms  SelectiveBackprop (sb-plugin 0.1.0)",
        "epoch 10/10  train/loss ",
        "  eval/accuracy ",
    )
    assert [each for each in (header, row, table) if f"\n{each}" not in shown] == []
    assert (folder / "model.safetensors").is_file()
    assert (folder / results["checkpoints"]["latest"] / "manifest.json").is_file()
    assert "after_dataloader: SelectiveBackprop" in lean.run("engine-core", "explain", str(folder))


@pytest.mark.parametrize("command", ["diff", "picture", "report", "runs", "watch"])
def test_a_command_that_is_not_installed_is_answered_with_what_brings_it(lean: Environment, command: str) -> None:
    assert 'pip install "engine-core[report]"' in lean.run("engine-core", command, "runs", code=2)


def test_with_the_report_a_run_has_its_page(complete: Environment) -> None:
    complete.run("engine-core", "train", "--example", "digits", "--max-duration", "1ep", "--out", "run")

    assert complete.run("engine-core", "report", "run") == "run/report.html\n"
    assert (complete.home / "run" / "report.html").read_text().startswith("<!doctype html>")
