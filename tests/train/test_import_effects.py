import json
import subprocess
import sys

import pytest

PROGRAM = """
import atexit, json, logging, pkgutil, signal, sys, threading, warnings
import click, importlib_metadata, pluggy, pydantic, rich.console, rich.live, rich.progress, rich.table, torch, yaml
import pytest, torch.utils.data
try:
    import sklearn.datasets
except ImportError:
    pass

def world():
    handlers = [repr(signal.getsignal(s)) for s in signal.valid_signals()]
    excepthooks = [repr(sys.excepthook), repr(threading.excepthook)]
    logs = [repr(logging.root.handlers), logging.root.level]
    settings = [torch.get_num_threads(), str(torch.get_default_dtype()), torch.is_grad_enabled(), torch.initial_seed()]
    counts = [atexit._ncallbacks(), threading.active_count(), len(warnings.filters)]
    return [handlers, excepthooks, logs, settings, counts]

before = world()
import engine_core
names = [m.name for m in pkgutil.walk_packages(engine_core.__path__, "engine_core.") if "__main__" not in m.name]
for name in names:
    __import__(name)
print(json.dumps([before, world(), len(names)]))
"""


@pytest.mark.full
def test_importing_every_module_changes_nothing_that_others_could_notice():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, after, number = json.loads(done.stdout)
    assert number > 40
    assert before == after
