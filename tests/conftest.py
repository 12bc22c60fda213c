"""What the tests share: fake distributions, really installed in a folder, and calm settings for hypothesis."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest
from hypothesis import settings

from engine_core.registry import Registry

settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")


@pytest.fixture
def install(tmp_path):
    """Return `install(name, entry_points, modules, ...)`, which puts a distribution on the path and rescans."""
    site = tmp_path / "site-packages"
    made: set[str] = set()

    def install(name, entry_points=None, modules=None, *, version="1.0", metadata=True):
        folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(parents=True)
        lines = []
        for kind, entries in (entry_points or {}).items():
            lines += [f"[engine_core.{kind}]", *(f"{entry} = {value}" for entry, value in entries.items())]
        (folder / "entry_points.txt").write_text("\n".join(lines))
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
