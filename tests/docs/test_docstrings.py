"""Every example in a docstring runs."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import engine_core

PLUGINS = sorted(
    file.parent.name.replace("-", "_") for file in Path(__file__).parents[2].glob("plugins/*-plugin/pyproject.toml")
)
PACKAGES = [engine_core, *map(importlib.import_module, PLUGINS)]
MODULES = sorted(
    module.name
    for package in PACKAGES
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not module.name.endswith("__main__")
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for example in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name)):
        if example.examples:
            runner.run(example, out=said.append)

    assert not runner.failures, "".join(said)


def test_there_are_examples():
    tests = doctest.DocTestFinder().find(importlib.import_module("engine_core.event"))

    assert [test.name for test in tests if test.examples] == ["engine_core.event.Event"]
