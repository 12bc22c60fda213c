"""What an import does: little, and nothing that other code could notice."""

import importlib
import json
import subprocess
import sys
from types import ModuleType

import importlib_metadata
import pytest

import engine_core
from engine_core.moved import FORMER, GROUP, moved

from .test_layers import TORCH_FREE
from .tree import MODULES

# All that needs no torch, and what the plugins' list names; but `__main__` runs the command.
LIGHT = [*TORCH_FREE, *(name for name in MODULES if name.startswith("callbacks"))]
LIGHT = ["engine_core", *(f"engine_core.{name}" for name in LIGHT if name != "__main__")]
NEED_TORCH = ("Loss", "ModelLoss", "Objective", "Trainer", "by_name", "load_model")
PUBLIC = [name for name in engine_core.__all__ if name not in NEED_TORCH]


def run(program):
    """Run a program in a fresh interpreter and return what it prints, which is JSON."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_none_of_the_light_modules_imports_torch_or_numpy():
    program = f"""
import importlib, json, sys
blamed = {{}}
for module in {LIGHT}:
    importlib.import_module(module)
    for heavy in {{"torch", "numpy", "sklearn"}} & set(sys.modules):
        blamed.setdefault(heavy, module)
print(json.dumps([blamed, sorted(sys.modules)]))
"""
    blamed, loaded = run(program)
    assert blamed == {}
    assert set(LIGHT) <= set(loaded)


def test_importing_the_package_alone_imports_one_of_its_modules_and_no_dependency():
    loaded = run("import json, sys, engine_core; print(json.dumps(sorted(sys.modules)))")
    assert [name for name in loaded if name.startswith("engine_core")] == ["engine_core", "engine_core.moved"]
    assert {"pydantic", "pluggy", "importlib_metadata"} & set(loaded) == set()


def test_the_event_enum_alone_is_light():
    program = "import sys; before = set(sys.modules); import engine_core.event; print(len(set(sys.modules) - before))"
    assert run(program) < 60


def test_each_public_name_is_handed_out_when_asked_for_and_then_kept():
    program = f"""
import json, engine_core
early = sorted(set({PUBLIC}) & set(vars(engine_core)))
first = [getattr(engine_core, name) for name in {PUBLIC}]
kept = [vars(engine_core)[name] is value for name, value in zip({PUBLIC}, first)]
print(json.dumps([early, kept]))
"""
    assert run(program) == [[], [True] * len(PUBLIC)]


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'engine_core' has no attribute 'Enginee'"):
        engine_core.Enginee  # noqa: B018


def test_the_public_names_are_the_promised_ones_and_are_listed():
    fixed = """Algorithm, AlgorithmMetadata, AlgorithmPass, Batches, Callback, Engine, Event, Logger, LoggerDestination,
    Loss, ModelLoss, Objective, PassMetadata, State, Time, TimeUnit, Timestamp, Trace, Traces, Trainer, algorithm_pass,
    by_name, hookimpl, load_model, passes"""
    assert set(engine_core.__all__) == set(fixed.replace("\n", " ").replace(" ", "").split(","))
    assert set(engine_core.__all__) <= set(dir(engine_core))


def test_none_sets_a_signal_handler_an_exit_handler_a_thread_or_a_warning_filter():
    program = f"""
import atexit, importlib, json, logging, signal, sys, threading, warnings
import click, importlib_metadata, pluggy, pydantic, pytest, yaml  # whose own effects are not ours
def world():
    handlers = [repr(signal.getsignal(s)) for s in signal.valid_signals()]
    excepthooks = [repr(sys.excepthook), repr(threading.excepthook)]
    logs = [repr(logging.root.handlers), logging.root.level]
    return [handlers, excepthooks, logs, atexit._ncallbacks(), threading.active_count(), len(warnings.filters)]
changed = {{}}
for module in {LIGHT}:
    before = world()
    importlib.import_module(module)
    if world() != before:
        changed[module] = [before, world()]
print(json.dumps(changed))
"""
    assert run(program) == {}


@pytest.fixture
def beside(install, tmp_path):
    """Return `beside(program)`, where one distribution plugs into pydantic and another's entry points can't be read."""
    install("spy-plugin", {}, {"spy_module": "print('spied')\nplugin = None"})
    install("nonsense", {})
    site = tmp_path / "site-packages"
    (site / "spy_plugin-1.0.dist-info" / "entry_points.txt").write_text("[pydantic]\nspy = spy_module:plugin\n")
    (site / "nonsense-1.0.dist-info" / "entry_points.txt").write_bytes(b"[acme]\n\xff = x:y\n")

    def beside(program):
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    return beside


PROGRAM = """
from engine_core import Algorithm, AlgorithmMetadata, Callback, Engine, PassMetadata, State
from engine_core.registry import Registry

Registry.scan().find("callbacks", "loss_guard")

from engine_core.cli import main

for command in (["plugins", "list"], ["--help"], ["--version"], ["plugins", "doctor", "--help"]):
    main(command, standalone_mode=False)
"""


def test_no_import_and_no_command_that_trains_nothing_runs_code_of_others(beside):
    done = beside(PROGRAM)
    assert (done.returncode, "spied" in done.stdout, "Traceback" in done.stderr) == (0, False, False)


def test_this_is_what_pydantic_would_do(beside):
    done = beside("from engine_core import AlgorithmMetadata; AlgorithmMetadata()")
    assert (done.returncode, "UnicodeDecodeError" in done.stderr) == (1, True)


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


def test_other_names_are_not_there(installed):
    for name in ("other", "__path__"):
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
