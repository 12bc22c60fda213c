"""Plugins created by what is built here, and what tox, pip and the engine make of them.

The core and engine-core-author come from their wheels, named in a constraints file that tox hands on to uv, as it hands
one on to pip. A plugin's tox sees only the Python that runs here. The others have no CPU build of torch in reach, so
that a plugin's tests can't run there; those of engine-core-author, which run on all of them, check that its modules
compile.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
AUTHOR = ROOT / "plugins" / "engine-core-author"
WHEELS_OF = runpy.run_path(str(ROOT / ".ci" / "matrix.py"))["wheels_of"]  # each built once for all environments of tox
# What a shell, or the tox that runs these tests, says about other work than an author's.
FOREIGN = (
    *("TOX", "VIRTUAL_ENV", "PYTEST", "ENGINE_CORE_", "PIP_", "FORCE_COLOR", "PY_COLORS", "COLUMNS"),
    *("UV_CONSTRAINT", "UV_BUILD_CONSTRAINT"),
)


@dataclass(frozen=True)
class Workplace:
    """A folder with plugins in it, and an environment with engine-core and engine-core-author, from their wheels."""

    folder: Path
    home: Path
    core_version: str
    environ: dict[str, str] = field(repr=False)

    def run(self, *command, cwd=None):
        """Run a command, show what it prints if it fails, and return its standard output."""
        done = self.attempt(*command, cwd=cwd)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def attempt(self, *command, cwd=None):
        """Run a command that may fail."""
        where, environ = cwd or self.folder, self.environ
        return subprocess.run(command, cwd=where, env=environ, capture_output=True, text=True, check=False)

    def engine_core(self, *arguments):
        """Run the command of the engine-core that is installed here."""
        return self.run(*self.installed("engine-core"), *arguments)

    def pip(self, subcommand, *arguments):
        uv = (sys.executable, "-m", "uv", "pip", subcommand, "--quiet", "--python", *self.installed("python"))
        return self.run(*uv, *arguments)

    def installed(self, program):
        return [str(program_of(self.home, program))]

    def begin(self, name, *options):
        """Begin a plugin and return its folder."""
        self.engine_core("plugins", "new", name, *options)
        return self.folder / name

    def files(self):
        """Return the files of the environment, except those that Python writes when it imports."""
        files = (file.relative_to(self.home).as_posix() for file in self.home.rglob("*"))
        return {file for file in files if "__pycache__" not in file}


def program_of(environment, program):
    return environment / ("Scripts" if os.name == "nt" else "bin") / program


def core_environment(folder):
    """Return an environment with the core, engine-core-author and what the example needs, which is made once."""
    home = folder / "core"
    if not home.exists():
        venv.create(home)
        wheel, author = WHEELS_OF([ROOT, AUTHOR])
        uv = (sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(program_of(home, "python")))
        subprocess.run((*uv, f"engine-core[examples] @ {wheel.as_uri()}", str(author)), cwd=ROOT, check=True)
    return home


@pytest.fixture(scope="session")
def workplace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("author")
    wheel, author = WHEELS_OF([ROOT, AUTHOR])
    constraints = folder / "constraints.txt"
    pins = [(ROOT / file).read_text() for file in ("constraints.txt", ".ci/torch-cpu.txt")]
    built = [f"engine-core @ {wheel.as_uri()}", f"engine-core-author @ {author.as_uri()}\n"]
    constraints.write_text("\n".join([*pins, *built]))
    home = core_environment(tmp_path_factory.getbasetemp())
    return Workplace(folder, home, wheel.name.split("-")[1], environ_with(constraints))


def environ_with(constraints):
    """Return the environment variables of an author's shell with tox-uv beside tox: it takes less time."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    here = f"{sys.version_info.major}{sys.version_info.minor}"
    return {
        **kept,
        "UV_CONSTRAINT": str(constraints),
        "UV_BUILD_CONSTRAINT": str(constraints),
        "TOX_SKIP_ENV": f"py(?!{here})\\d+-.*",
    }
