"""Throw-away environments with the built engine-core and torch in them, and plugins installed from their wheels."""

from __future__ import annotations

import copy
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from .sources import CONFIG, PROJECT, Plugin

ROOT = Path(__file__).resolve().parents[2]
CORE_ENVIRONMENT = runpy.run_path(str(ROOT / "tests" / "author" / "conftest.py"))["core_environment"]
Wheels = Callable[[Plugin], Path]
# Imports once what takes most of the time of a run, and trains in forks, each on the packages of an environment: a job
# as JSON on each line of its input, answered by the exit code.
WARM = """
import json, os, site, sys
import engine_core.run, torch._dynamo
from engine_core.cli import main
for line in sys.stdin:
    job = json.loads(line)
    if not (child := os.fork()):
        os.chdir(job["folder"])
        os.environ.update(job["environ"])
        for number, name in enumerate(("stdout", "stderr"), 1):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
        site.addsitedir(job["site"])
        sys.argv = ["engine-core", "train", "run.yaml"]
        main()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Done:
    """What a command came to, with the places of this environment as `<site>` and that of the core as `<base>`."""

    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Run:
    """A run with a config that names these algorithms: more of it, and variables of its shell."""

    algorithms: tuple[str, ...]
    more: str = ""
    environ: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Environment:
    """A virtual environment that sees the base's packages beside its own, and a folder with a project to train."""

    home: Path
    base: Path
    wheels: Wheels = field(repr=False)
    trainer: subprocess.Popen[str] = field(repr=False)
    environ: dict[str, str] = field(default_factory=dict)
    work: Path = field(init=False)

    def __post_init__(self):
        self.move_to("work")

    def move_to(self, folder):
        """Continue in a folder with a project to train, a new one if there is none."""
        object.__setattr__(self, "work", self.home / folder)
        self.work.mkdir(exist_ok=True)
        (self.work / "project.py").write_text(PROJECT)

    def beside(self, folder):
        """Return the same environment in another folder, for what runs at the same time."""
        other = copy.copy(self)
        other.move_to(folder)
        return other

    @property
    def python(self):
        return self.home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    @property
    def site(self):
        return site_packages(self.home)

    def install(self, *plugins):
        """Install plugins from their wheels, as pip would, in less time."""
        run(*uv_install(self.python), "--no-deps", "--reinstall", *map(str, map(self.wheels, plugins)))

    def pip(self, *arguments, **more):
        """Run our pip on this environment, without what tox says about ours, and with more in its own."""
        environ = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")} | more
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(self.python), *arguments]
        done = subprocess.run(command, cwd=self.home, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, *arguments):
        """Start engine-core in the project's folder."""
        return start(self.python, "-m", "engine_core", *arguments, cwd=self.work)

    def engine_core(self, *arguments):
        """Run engine-core in the project's folder."""
        process = self.start(*arguments)
        stdout, stderr = process.communicate(timeout=600)
        return Done(process.returncode, self.readable(stdout), self.readable(stderr))

    def readable(self, text):
        """Return a text without what differs from place to place and from time to time."""
        for place, name in ((self.site, "<site>"), (self.base, "<base>"), (self.home, "<home>")):
            text = text.replace(str(place), name)
        return re.sub(r"\b\d+\.\d\d s\b", "# s", text)

    def train(self, *algorithms, more=""):
        """Train with a config that names these algorithms; nothing is left of an earlier run."""
        shutil.rmtree(self.work / "runs", ignore_errors=True)
        self.configure(*algorithms, more=more)
        return self.engine_core("train", "run.yaml")

    def train_each(self, **runs):
        """Make runs, each in a folder of its name; return what each came to, and whether it has trained."""
        places = {name: self.beside(name) for name in runs}
        for name, place in places.items():
            place.configure(*runs[name].algorithms, more=runs[name].more)
            job = {"folder": str(place.work), "site": str(self.site), "environ": runs[name].environ}
            self.trainer.stdin.write(json.dumps(job) + "\n")
            self.trainer.stdin.flush()
        return {
            name: (place.left(int(self.trainer.stdout.readline())), place.has_trained())
            for name, place in places.items()
        }

    def left(self, code):
        """Return what a run that ended with a code left in the project's folder."""
        return Done(code, *(self.readable((self.work / name).read_text()) for name in ("stdout", "stderr")))

    def configure(self, *algorithms, more=""):
        """Write the config."""
        (self.work / "run.yaml").write_text(f"{CONFIG}algorithms: {json.dumps(algorithms)}\n{more}")

    def has_trained(self):
        """Is there a finished run? There is nothing at all otherwise."""
        runs = [path.name for path in self.work.glob("runs/*")]
        assert runs in ([], ["first"])
        return (self.work / "runs" / "first" / "results.json").exists() if runs else False

    def about(self, done, *names):
        """Return the rows of a table on these plugins, each with the lines below it, columns one space apart."""
        shown, found = False, []
        for line in done.stdout.splitlines():
            if not line.startswith("    "):
                shown = line.split()[1] in names
            if shown:
                found.append(" ".join(line.split()))
        return found

    def records(self, done, *names):
        """Return the records on these plugins, without the seconds."""
        found = [record for record in json.loads(done.stdout) if record["name"] in names]
        for record in found:
            seconds = record.pop("seconds", None)
            assert seconds is None or seconds >= 0
        return found


def start(python, *arguments, cwd):
    """Start a Python in a neutral shell."""
    # Where no bytecode may be written, torch takes ten seconds to be imported; a color changes what is compared.
    ours = ("PYTHON", "ENGINE_CORE_", "FORCE_COLOR", "COLUMNS")
    environ = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(
        [str(python), *arguments], cwd=cwd, env={**environ, "OMP_NUM_THREADS": "1"}, text=True, **pipes
    )


def site_packages(home):
    (site,) = home.glob("Lib/site-packages" if os.name == "nt" else "lib/python*/site-packages")
    return site


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """Return the packages of the core and the doctor."""
    return site_packages(CORE_ENVIRONMENT(tmp_path_factory.getbasetemp()))


@pytest.fixture(scope="session")
def trainer(base):
    """Start what makes the runs of all environments."""
    home = base.parents[1 if os.name == "nt" else 2]
    with start(home / ("Scripts/python.exe" if os.name == "nt" else "bin/python"), "-c", WARM, cwd=home) as process:
        yield process
        process.stdin.close()


def uv_install(python):
    """Return the beginning of a command that installs into the environment of a Python."""
    return (sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python))


def run(*command):
    """Run a command where the pins lie, and show what it prints if it fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """Return `wheels(plugin)`, which builds a wheel once."""
    built = []

    def wheels(plugin):
        for known, wheel in built:
            if known == plugin:
                return wheel
        wheel = plugin.build(tmp_path_factory.mktemp("source") / "tree")
        built.append((plugin, wheel))
        return wheel

    return wheels


@pytest.fixture(scope="session")
def make_environment(base, wheels, trainer, tmp_path_factory):
    """Return `make_environment(plugins)`."""
    made = []

    def make(plugins, beside=base):
        home = tmp_path_factory.mktemp("environment")
        venv.create(home)
        (site_packages(home) / "base.pth").write_text(f"import site; site.addsitedir({str(beside)!r})\n")
        environment = Environment(home, beside, wheels, trainer)
        if plugins:
            environment.install(*plugins)
        made.append(environment)
        return environment

    yield make
    for environment in made:
        shutil.rmtree(environment.home, ignore_errors=True)
