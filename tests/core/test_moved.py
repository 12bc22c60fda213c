"""Names that have moved to another distribution: found there with a warning, or refused with what to install."""

import importlib
from types import ModuleType

import importlib_metadata
import pytest

from engine_core.moved import FORMER, GROUP, moved


class Entry:
    value = "elsewhere.things"

    def load(self):
        return ModuleType(self.value)


@pytest.fixture
def installed(monkeypatch):
    found = []
    monkeypatch.setattr(importlib_metadata, "entry_points", lambda **asked: found if asked["group"] == GROUP else [])
    return found


def test_a_moved_name_is_found_where_it_is_now_with_a_warning_that_says_where(installed, monkeypatch):
    there = ModuleType("elsewhere.things")
    there.replace = "the thing"
    monkeypatch.setattr(Entry, "load", lambda self: there)
    installed.append(Entry())
    with pytest.warns(DeprecationWarning, match="engine_core.old.replace .* elsewhere.things") as caught:
        assert moved("engine_core.old", "replace", extra="things")("replace") == "the thing"
    assert caught[0].filename == __file__


def test_without_the_distribution_the_error_says_what_to_install(installed):
    with pytest.raises(ImportError, match=r"engine_core.old.replace .*pip install 'engine-core\[things\]'"):
        moved("engine_core.old", extra="things")("replace")


@pytest.mark.parametrize("name", ["other", "__path__"])
def test_other_names_are_not_there(installed, name):
    with pytest.raises(AttributeError, match=f"engine_core.old.*{name}"):
        moved("engine_core.old", "replace", extra="things")(name)


@pytest.mark.parametrize(("module", "extra"), [pair for pair in FORMER.items() if pair[1]])
def test_the_former_modules_are_found_however_they_are_imported(installed, module, extra):
    package, _, last = f"engine_core.{module}".rpartition(".")
    found = importlib.import_module(f"{package}.{last}")
    refused = pytest.raises(ImportError, match=rf"{module}.Some .*pip install 'engine-core\[{extra}\]'")
    with refused:
        exec(f"from {package}.{last} import Some")
    with refused:
        exec(f"from {package} import {last} as found; found.Some")
    with refused:
        exec(f"import {package}.{last}; {package}.{last}.Some")
    assert "Some" not in vars(found)


def test_a_module_that_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"engine_core\.testin'"):
        importlib.import_module("engine_core.testin")
