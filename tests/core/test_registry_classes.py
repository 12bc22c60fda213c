"""Which record a class has: the one that leads to it, whatever other classes of the distribution are called."""

import importlib
import sys

import pytest

from engine_core import Engine, Logger, State
from engine_core.errors import PluginError
from engine_core.registry import Registry

QUIET = """
from engine_core import Algorithm

class Quiet(Algorithm):
    match = apply = lambda *_: None
"""
CLASS = f"{QUIET}\nclass Mix(Quiet):\n    pass\n"
MORE = (
    f"{QUIET}\nclass Box:\n    class Inner(Quiet):\n        pass\n\nclass _Impl(Quiet):\n    pass\n\nPublic = _Impl\n"
)
FILES = {"__init__": "from .shown import Shown", "shown": CLASS.replace("Mix", "Shown"), "more": MORE}
ENTRIES = {
    "image_mix": "twop.image:Mix",
    "text_mix": "twop.text:Mix",
    "nested": "twop.more:Box.Inner",
    "alias": "twop.more:Public",
    "shown": "twop:Shown",
}


@pytest.fixture
def deny(install, tmp_path, monkeypatch):
    """Install a package with algorithms; return what denies some of them by name."""
    folder = tmp_path / "site-packages" / "twop"
    folder.mkdir()
    for module, text in {**FILES, "image": CLASS, "text": CLASS, "late": "def __getattr__(name): 1 / 0"}.items():
        (folder / f"{module}.py").write_text(text)
    install("two-plugin", {"algorithms": {**ENTRIES, "z_late": "twop.late:Mix", "z_unread": "twop.unread:Mix"}})

    def deny(*names):
        monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", ",".join(names))
        return Registry.scan(refresh=True)

    yield deny
    for module in [name for name in sys.modules if name.partition(".")[0] == "twop"]:
        del sys.modules[module]


def made(module, path):
    found = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found()


@pytest.mark.parametrize(
    ("name", "module", "path"),
    [
        ("image_mix", "twop.image", "Mix"),
        ("text_mix", "twop.text", "Mix"),
        ("nested", "twop.more", "Box.Inner"),
        ("alias", "twop.more", "_Impl"),
        ("shown", "twop.shown", "Shown"),
    ],
)
def test_a_class_is_denied_and_accepted_by_the_record_that_leads_to_it(deny, name, module, path):
    importlib.import_module("twop.late")
    assert deny().identify(made(module, path)).name == name
    deny(name)
    with pytest.raises(PluginError, match=f"is '{name}' of two-plugin 1.0, which is disabled: listed in"):
        Engine(State(algorithms=[made(module, path)]), Logger())
    deny(*({*ENTRIES, "z_late"} - {name}))
    Engine(State(algorithms=[made(module, path)]), Logger()).close()


def test_a_subclass_has_the_record_of_its_base_if_it_is_named_like_it(deny):
    for module in ("image", "text"):
        base = type(made(f"twop.{module}", "Mix"))
        assert deny().identify(type("Mix", (base,), {})()).name == f"{module}_mix"
        assert deny().identify(type("Blend", (base,), {"__module__": __name__})()).record is None


def test_a_class_whose_module_was_reloaded_has_the_record_that_it_had(deny):
    former = made("twop.text", "Mix")
    importlib.reload(sys.modules["twop.text"])
    assert deny().identify(former).name == "text_mix"


def test_nothing_is_imported_to_find_a_record(deny):
    registry, mix = deny(), made("twop.text", "Mix")
    before = set(sys.modules)
    assert registry.identify(mix).name == "text_mix"
    assert set(sys.modules) == before
