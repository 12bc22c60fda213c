"""All distributions, built as they are published, and clean environments with the built wheels in them."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[2]
AUTHOR = "engine-core-author"
PARTS = [AUTHOR, "engine-core-report"]
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
    def metadata(self) -> Message:
        with ZipFile(self.wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            return Parser().parsestr(archive.read(name).decode())


@dataclass(frozen=True)
class Environment:
    """A virtual environment; its programs run in its own folder, far from this repository."""

    home: Path

    def program(self, name: str) -> Path:
        return self.home / ("Scripts" if os.name == "nt" else "bin") / name

    def run(self, program: str, *arguments: str, code: int = 0) -> str:
        return run(str(self.program(program)), *arguments, cwd=self.home, code=code)

    def install(self, *requirements: str) -> None:
        """Install with the pins that tox sets, the CPU build of torch among them; they are relative to the root."""
        uv = (sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(self.program("python")))
        run(*uv, *requirements, cwd=ROOT)


def run(*command: str, cwd: Path, code: int = 0) -> str:
    """Run a command that exits with a code, show what it prints if it does not, and return its standard output.

    Of a command that fails, what it prints to standard error is returned.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ENGINE_CORE_")}
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == code, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stderr if code else done.stdout


def build(folder: Path, package: str, out: Path, *isolation: str) -> Project:
    """Build the sdist, the wheel from the sdist, and the wheel straight from the tree."""
    command = (sys.executable, "-m", "build", str(folder), "--outdir")
    run(*command, str(out), *(isolation or ("--installer", "uv")), cwd=ROOT)
    run(*command, str(out / "tree"), "--wheel", "--no-isolation", cwd=ROOT)
    (wheel,), (sdist,), (wheel_from_tree,) = out.glob("*.whl"), out.glob("*.tar.gz"), out.glob("tree/*.whl")
    return Project(folder, folder / package, wheel, sdist, wheel_from_tree)


def environment(home: Path) -> Environment:
    venv.create(home)
    return Environment(home)


@pytest.fixture(scope="session")
def core(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return build(ROOT, "engine_core", tmp_path_factory.mktemp("core"))


@pytest.fixture(scope="session")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Project]:
    """Each part and plugin by its name, built with what is installed here, as all require it: see test_metadata."""
    return {
        name: build(
            ROOT / "plugins" / name, f"src/{name.replace('-', '_')}", tmp_path_factory.mktemp(name), "--no-isolation"
        )
        for name in (*PARTS, *PLUGINS)
    }


@pytest.fixture(params=["engine-core", *PARTS, *PLUGINS])
def project(request: pytest.FixtureRequest, core: Project, plugins: dict[str, Project]) -> Project:
    """One distribution after the other."""
    return plugins.get(request.param, core)


@pytest.fixture(scope="session")
def bare(core: Project, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The core alone, without extras."""
    clean = environment(tmp_path_factory.mktemp("bare"))
    clean.install(str(core.wheel))
    return clean


@pytest.fixture(scope="session")
def lean(core: Project, plugins: dict[str, Project], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What one needs who trains with an algorithm, and pytest."""
    clean = environment(tmp_path_factory.mktemp("lean"))
    clean.install(f"engine-core[examples] @ {core.wheel.as_uri()}", str(plugins["sb-plugin"].wheel), "pytest")
    return clean


@pytest.fixture(scope="session")
def complete(core: Project, plugins: dict[str, Project], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The core with what its example needs, its parts and the plugins."""
    clean = environment(tmp_path_factory.mktemp("complete"))
    clean.install(f"{core.wheel}[examples]", *(str(plugin.wheel) for plugin in plugins.values()))
    return clean
