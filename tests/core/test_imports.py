"""What an import does: little, and nothing that other code could notice."""

import json
import subprocess
import sys

import pytest

import engine_core

MODULES = [
    "engine_core",
    "engine_core.event",
    "engine_core.metadata",
    "engine_core.registry",
    "engine_core.engine",
    "engine_core.passes",
    "engine_core.hookspecs",
    "engine_core.testing",
    "engine_core.callbacks.profiler",
    "engine_core.explain",
    "engine_core.cli",
]
TORCH_FREE = [name for name in engine_core.__all__ if name != "Trainer"]


def run(program):
    """Run a program in a fresh interpreter and return what it prints, which is JSON."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.mark.parametrize("module", MODULES)
def test_it_imports_neither_torch_nor_numpy(module):
    loaded = run(f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))")
    assert module in loaded
    assert {"torch", "numpy", "sklearn"} & set(loaded) == set()


def test_importing_the_package_alone_imports_none_of_its_modules_and_no_dependency():
    loaded = run("import json, sys, engine_core; print(json.dumps(sorted(sys.modules)))")
    assert [name for name in loaded if name.startswith("engine_core")] == ["engine_core"]
    assert {"pydantic", "pluggy", "importlib_metadata"} & set(loaded) == set()


def test_the_event_enum_alone_is_light():
    program = "import sys; before = set(sys.modules); import engine_core.event; print(len(set(sys.modules) - before))"
    assert run(program) < 60


def test_each_public_name_is_handed_out_when_asked_for_and_then_kept():
    program = f"""
import json, engine_core
early = sorted(set({TORCH_FREE}) & set(vars(engine_core)))
first = [getattr(engine_core, name) for name in {TORCH_FREE}]
kept = [vars(engine_core)[name] is value for name, value in zip({TORCH_FREE}, first)]
print(json.dumps([early, kept]))
"""
    assert run(program) == [[], [True] * len(TORCH_FREE)]


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'engine_core' has no attribute 'Enginee'"):
        engine_core.Enginee  # noqa: B018


def test_the_public_names_are_the_promised_ones_and_are_listed():
    fixed = """Algorithm, AlgorithmMetadata, AlgorithmPass, Callback, Engine, Event, Logger, LoggerDestination,
    PassMetadata, State, Time, TimeUnit, Timestamp, Trace, Traces, Trainer, algorithm_pass, hookimpl, passes"""
    assert set(engine_core.__all__) == set(fixed.replace("\n", " ").replace(" ", "").split(","))
    assert set(engine_core.__all__) <= set(dir(engine_core))


@pytest.mark.parametrize("module", MODULES)
def test_it_sets_no_signal_handler_no_exit_handler_no_thread_and_no_warning_filter(module):
    program = f"""
import atexit, json, logging, signal, sys, threading, warnings
import click, importlib_metadata, pluggy, pydantic, yaml
def world():
    handlers = [repr(signal.getsignal(s)) for s in signal.valid_signals()]
    excepthooks = [repr(sys.excepthook), repr(threading.excepthook)]
    logs = [repr(logging.root.handlers), logging.root.level]
    return [handlers, excepthooks, logs, atexit._ncallbacks(), threading.active_count(), len(warnings.filters)]
before = world()
import {module}
print(json.dumps([before, world()]))
"""
    before, after = run(program)
    assert before == after


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
