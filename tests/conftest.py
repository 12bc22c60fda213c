"""What the tests share: a neutral shell, fake distributions, really installed in a folder, and calm settings."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import settings

from engine_core.registry import Registry

# A developer's shell may disable what the tests install; here and not in a fixture, as collecting scans too.
for name in ("ENGINE_CORE_PLUGINS", "ENGINE_CORE_DISABLE_PLUGINS"):
    os.environ.pop(name, None)

settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")

# These change what pytest, rich, click and Python itself write; the pytest of this run has read its part already.
HABITS = (
    *("FORCE_COLOR", "NO_COLOR", "PY_COLORS", "PYTHON_COLORS", "COLUMNS", "LINES"),
    *("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTHONWARNINGS"),
)


def pytest_collection_finish():
    """Keep the thousands of collected tests out of each later garbage collection, which would look at all of them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _a_shell_without_habits():
    """Hide from the tests and their children what differs from shell to shell and changes what is printed."""
    with pytest.MonkeyPatch.context() as patch:
        for name in HABITS:
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def _ctrl_c_is_heard():
    """Let children receive it even where a shell runs the tests in its background, and ignores it for all of them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def install(tmp_path):
    """Return `install(name, entry_points, modules, ...)`, which puts a distribution on the path and rescans.

    It is on the path of the Pythons that a test starts too.
    """
    site = tmp_path / "site-packages"
    made: set[str] = set()

    def install(name, entry_points=None, modules=None, *, version="1.0", metadata=True):
        folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(parents=True)
        lines = []
        for kind, entries in (entry_points or {}).items():
            lines += [f"[engine_core.{kind}]", *(f"{entry} = {value}" for entry, value in entries.items())]
        (folder / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
        if metadata:
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        for module, text in (modules or {}).items():
            (site / f"{module}.py").write_text(textwrap.dedent(text))
            if module not in sys.modules:  # what is loaded already stays what it is
                made.add(module)
        importlib.invalidate_caches()
        Registry.scan(refresh=True)

    site.mkdir()
    sys.path.insert(0, str(site))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
        yield install
    sys.path.remove(str(site))
    for module in made:
        sys.modules.pop(module, None)
    importlib.invalidate_caches()
    Registry.scan(refresh=True)


@pytest.fixture
def api1(tmp_path):
    """Return the package `api1_plugin`, installed from the wheel that was built when hook API 1 was new."""
    site = tmp_path / "site-of-api1"
    with zipfile.ZipFile(Path(__file__).parent / "api1" / "api1_plugin-1.0-py3-none-any.whl") as wheel:
        wheel.extractall(site)
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()
    Registry.scan(refresh=True)
    yield importlib.import_module("api1_plugin")
    sys.path.remove(str(site))
    for module in [name for name in sys.modules if name.partition(".")[0] == "api1_plugin"]:
        del sys.modules[module]
    importlib.invalidate_caches()
    Registry.scan(refresh=True)


@pytest.fixture
def ends():
    """Return `ends(pid)`, which waits until a process that is not ours is gone, or is a zombie."""

    def ends(pid):
        last_s = time.monotonic() + 60
        while _is_alive(pid) and time.monotonic() < last_s:
            time.sleep(0.05)
        return not _is_alive(pid)

    return ends


def _is_alive(pid):
    try:
        if Path("/proc/self").exists():
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        os.kill(pid, 0)
    except (FileNotFoundError, ProcessLookupError):  # the latter from /proc too, if it ends while it is read
        return False
    return True


@pytest.fixture
def on_terminal(tmp_path):
    """Return `on_terminal(script)`, which runs Python on a pseudo-terminal and returns what it wrote there."""
    pty = pytest.importorskip("pty", reason="pseudo-terminals are POSIX's")

    def on_terminal(script):
        ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", script]
        process = subprocess.Popen(command, stdout=theirs, stderr=theirs, cwd=tmp_path, env=environment)
        os.close(theirs)
        written = b""
        try:
            while chunk := os.read(ours, 4096):
                written += chunk
        except OSError:  # Linux's way to say that the other end is closed
            pass
        os.close(ours)
        process.wait()
        return written.decode()

    return on_terminal
