"""Names that have moved to another distribution: found there with a warning, or refused with what to install."""

import importlib
from types import ModuleType

import pytest

from engine_core import moved as room
from engine_core.moved import GROUP, moved


class Entry:
    value = "elsewhere.things"

    def load(self):
        return ModuleType(self.value)


@pytest.fixture
def installed(monkeypatch):
    found = []
    monkeypatch.setattr(room, "entry_points", lambda **asked: [e for e in found if asked["group"] == GROUP])
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


@pytest.mark.parametrize("module", ["audit", "callbacks.audit", "doctor", "scaffold", "testing"])
def test_what_only_authors_need_is_refused_with_the_extra_that_brings_it(installed, module):
    with pytest.raises(ImportError, match=rf"engine_core.{module}.Some .*pip install 'engine-core\[author\]'"):
        importlib.import_module(f"engine_core.{module}").Some  # noqa: B018
