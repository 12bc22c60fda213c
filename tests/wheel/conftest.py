"""All distributions, built as they are published, and clean environments with the built wheels in them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import hatchling.build as backend
import pytest

ROOT = Path(__file__).resolve().parents[2]
AUTHOR = "engine-core-author"
PARTS = [AUTHOR, "engine-core-report", "engine-core-study"]
PLUGINS = sorted(file.parent.name for file in ROOT.glob("plugins/*-plugin/pyproject.toml"))


@dataclass(frozen=True)
class Project:
    """A distribution: where its files are, and what was built from them."""

    folder: Path
    package: Path
    wheel: Path
    sdist: Path
    wheel_from_tree: Path

    @property
    def metadata(self):
        with ZipFile(self.wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            return Parser().parsestr(archive.read(name).decode())


@dataclass(frozen=True)
class Environment:
    """A virtual environment; its programs run in its own folder, far from this repository."""

    home: Path

    def program(self, name):
        return self.home / ("Scripts" if os.name == "nt" else "bin") / name

    def run(self, program, *arguments, code=0):
        return run(str(self.program(program)), *arguments, cwd=self.home, code=code)

    def install(self, *requirements):
        """Install with the pins that tox sets, the CPU build of torch among them; they are relative to the root."""
        uv = (sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(self.program("python")))
        run(*uv, *requirements, cwd=ROOT)


def run(*command, cwd, code=0):
    """Run a command that exits with a code, show what it prints if it does not, and return its standard output.

    Of a command that fails, what it prints to standard error is returned.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ENGINE_CORE_")}
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == code, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stderr if code else done.stdout


def build(folder, package, out, *, isolated=False):
    """Build the sdist, the wheel from the sdist, and the wheel straight from the tree."""
    if isolated:
        run(sys.executable, "-m", "build", str(folder), "--outdir", str(out), "--installer", "uv", cwd=ROOT)
    else:
        made = built_in(folder, "build_sdist", out)
        with tarfile.open(made) as archive:
            archive.extractall(out / "unpacked", filter="data")
        (unpacked,) = (out / "unpacked").iterdir()
        built_in(unpacked, "build_wheel", out)
    wheel_from_tree = built_in(folder, "build_wheel", out / "tree")
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return Project(folder, folder / package, wheel, sdist, wheel_from_tree)


def built_in(folder, hook, out):
    """Call a hook of the build backend in a folder, as `build --no-isolation` does in a process of its own."""
    out.mkdir(exist_ok=True)
    with contextlib.chdir(folder):
        return out / getattr(backend, hook)(str(out))


@pytest.fixture(scope="session")
def core(tmp_path_factory):
    return build(ROOT, "engine_core", tmp_path_factory.mktemp("core"), isolated=True)


@pytest.fixture(scope="session")
def plugins(tmp_path_factory):
    """Each part and plugin by its name, built with what is installed here, as all require it: see test_metadata."""
    return {
        name: build(ROOT / "plugins" / name, f"src/{name.replace('-', '_')}", tmp_path_factory.mktemp(name))
        for name in (*PARTS, *PLUGINS)
    }


@pytest.fixture(params=["engine-core", *PARTS, *PLUGINS])
def project(request, core, plugins):
    """One distribution after the other."""
    return plugins.get(request.param, core)
