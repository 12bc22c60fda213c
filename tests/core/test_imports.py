"""What an import does: little, and nothing that other code could notice."""

import json
import subprocess
import sys

import pytest

import engine_core

from .test_layers import TORCH_FREE
from .tree import MODULES

# All that needs no torch, and what the plugins' list names; but `__main__` runs the command.
LIGHT = [*TORCH_FREE, *(name for name in MODULES if name.startswith("callbacks"))]
LIGHT = ["engine_core", *(f"engine_core.{name}" for name in LIGHT if name != "__main__")]
NEED_TORCH = ("Loss", "ModelLoss", "Objective", "Trainer", "load_model")
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
    hookimpl, load_model, passes"""
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


def test_it_can_be_imported_and_used_in_a_thread():
    program = """
import json, threading
out = []
def work():
    from engine_core import Engine, Logger, State
    out.append(list(Engine(State(), Logger()).run_event("init")))
thread = threading.Thread(target=work); thread.start(); thread.join()
print(json.dumps(out))
"""
    assert run(program) == [[]]
