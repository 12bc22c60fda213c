"""Install and test one environment of tox.ini, without torch where torch has no CPU build for its Python.

    python .ci/matrix.py install [--plugins] [--adapters] [--require-torch]
    python .ci/matrix.py core --ring quick|full|both [--floors] [pytest's arguments]
    python .ci/matrix.py plugins --ring quick|full|both [--floors] [pytest's arguments]
    python .ci/matrix.py ranks --ring quick|full|both [pytest's arguments]
    python .ci/matrix.py alone --ring quick|full|both [pytest's arguments]
    python .ci/matrix.py beside [--floors] [pytest's arguments]

tox runs it with the environment's own Python and sets UV_CONSTRAINT. One environment, with the core and its PARTS, is
used for all of it, one after the other: `plugins` and `alone` have the plugins' unpacked wheels on the path.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions
from pathlib import Path
from subprocess import PIPE, STDOUT

ROOT = Path(__file__).resolve().parents[1]
# Those that need only torch.
PLUGINS = [file.parent for file in sorted(ROOT.glob("plugins/*-plugin/pyproject.toml"))]
# What belongs to the core and is a distribution of its own: each environment has these beside the core.
PARTS = [ROOT / "plugins" / f"engine-core-{name}" for name in ("author", "report", "study")]
# Those that need a third party's library too. Only tox's `beside` environments install them.
ADAPTERS = [
    file.parent for file in sorted(ROOT.glob("plugins/engine-core-*/pyproject.toml")) if file.parent not in PARTS
]
UV = [sys.executable, "-m", "uv"]
WHEELS = ROOT / ".tox" / "built"
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE")  # what a wheel is built from, and the package
# What the adapters' extras add: a library under its other name, and what MLflow keeps runs with.
OF_EXTRAS = ["pytorch-lightning", "sqlalchemy", "alembic"]
# How pytest selects the tests of a ring.
RINGS = {"quick": "not full", "full": "full", "both": ""}
NO_TESTS = 5  # pytest's exit code
TORCH = ROOT / ".ci" / "torch-cpu.txt"
WHY_NO_TORCH = Path(sys.prefix, "why-no-torch.txt")
# What uv says where the indexes have torch for other Pythons, and where they have no such build at all.
MISSING = re.compile(r"\btorch(\{.*?\})?==\S+ has no wheels with a matching|there is no version of torch\b")
OURS = {"engine-core", *(plugin.name for plugin in (*PARTS, *PLUGINS, *ADAPTERS))}
# What depends on which plugins are installed; the rest runs with the core alone, and with each plugin alone.
OF_THE_INSTALLED = [f"tests/core/test_{name}.py" for name in ("registry", "cli_plugins", "plugin_passes", "imports")]
# Tests of the project's own text. It is the same in each environment, so only those with torch run them.
OF_THE_TEXT = [f"tests/core/test_{name}.py" for name in ("doors", "layers", "rings", "sizes")]
# Left out at the floors: these, and tests of processes that hang, print and die.
NOT_AT_FLOORS = [*OF_THE_TEXT, "tests/core/test_explain_printing.py"]
# At the floors torch is the same. So of the training tests only those that use another dependency run there.
AT_FLOORS = [f"tests/train/test_{name}*.py" for name in (
    "api1", "bad_input", "checkpoint_files", "checkpoint_h", "checkpoint_s", "checkpoint_t", "cli",
    "explain", "import", "logging", "metrics", "names", "order_of_a_fit", "run_folder", "signature",
)]  # fmt: skip
# Of the tests of PARTS: those that need no torch, and those that run at the floors.
OF_PARTS_WITHOUT_TORCH = ["plugins/engine-core-report/tests", *(
    f"plugins/engine-core-study/tests/test_{name}.py" for name in (
        "statistics", "study_costs", "study_file", "study_order", "study_words", "study_writing",
    )
), *(
    f"plugins/engine-core-author/tests/test_{name}.py" for name in ("author_imports", "doctor*", "plugins_new*")
)]  # fmt: skip
OF_PARTS_AT_FLOORS = ["plugins/engine-core-report/tests", *(
    f"plugins/engine-core-study/tests/test_{name}.py" for name in (
        "statistics", "study_costs", "study_file", "study_runs", "study_writing",
    )
), *(
    f"plugins/engine-core-author/tests/test_{name}*.py" for name in (
        "audit", "conformance_kit", "conformance_reports", "doctor_", "plugins_new",
    )
)]  # fmt: skip
# At the floors Python is the harshest too: it leaves asserts out, of which pytest warns, and text is ASCII.
HARSH = {
    "PYTHONOPTIMIZE": "1",
    "PYTEST_ADDOPTS": os.environ.get("PYTEST_ADDOPTS", "")
    + ' -W "ignore:assertions not in test modules:pytest.PytestConfigWarning"',
    "LC_ALL": "C",
    "PYTHONCOERCECLOCALE": "0",
    "PYTHONUTF8": "0",
}
# Of the plugins' tests at the floors: those that use other dependencies than torch; the kit's own tests run there too.
OF_PLUGINS_AT_FLOORS = ["tests/test_*training.py"]
# Of the adapters' and trackers' tests at the floors: what is read from the library's hooks and files, and from ranks.
BESIDE_AT_FLOORS = [f"tests/beside/test_*_{name}.py" for name in (
    "checkpoints", "events", "places", "ranks", "table",
)]  # fmt: skip
# Of the tables, what several algorithms at once come to in each setting.
OF_THE_TABLES_AT_FLOORS = ["-k", "not table or together"]


def main() -> int:
    """Parse the command line and run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("install", "core", "plugins", "ranks", "alone", "beside"))
    parser.add_argument("--floors", action="store_true", help="only what differs between versions")
    parser.add_argument("--plugins", action="store_true", help="install the plugins too, not the core alone")
    parser.add_argument("--adapters", action="store_true", help="install the adapters to other libraries too")
    parser.add_argument("--require-torch", action="store_true", help="fail where torch has no CPU build")
    parser.add_argument("--ring", choices=RINGS, default="quick", help="only the tests of this ring")
    options, rest = parser.parse_known_args()
    if options.command == "install":
        install(PLUGINS if options.plugins else [], require_torch=options.require_torch)
        if options.adapters:
            pip_install(*map(str, wheels_of(ADAPTERS)), *OF_EXTRAS)
        return 0
    if options.command == "alone":
        return test_each_alone(options.ring, rest)
    if options.command == "beside":
        tests = [*matching(ROOT, BESIDE_AT_FLOORS), *OF_THE_TABLES_AT_FLOORS] if options.floors else ["tests/beside"]
        return run_pytest(*tests, "--numprocesses=auto", "--dist=loadfile", *rest, ring="both").returncode
    return test_with(options.command, ring=options.ring, at_floors=options.floors, arguments=rest)


def install(plugins: list[Path], *, require_torch: bool) -> None:
    """Install the core, its parts and the given plugins from this tree, with torch if it can be had."""
    reason = install_torch()
    core, *others = wheels_of([ROOT, *PARTS, *plugins])
    if not reason:
        WHY_NO_TORCH.unlink(missing_ok=True)
        pip_install(f"engine-core[examples,metrics,torchdata] @ {core.as_uri()}", *map(str, others))
        return
    if require_torch:
        sys.exit(f"{reason}, and this environment needs it")
    WHY_NO_TORCH.write_text(reason)
    pip_install("--no-deps", str(core), *map(str, others))
    pip_install(*requirements_without_torch())


def wheels_of(projects: list[Path]) -> list[Path]:
    """Build the wheels of projects, unless an environment beside this one has built them from the same files."""
    kept = {project: WHEELS / f"{name_of(project)}-{digest_of(project)}" for project in projects}
    for project, folder in kept.items():
        if folder.exists():
            continue
        WHEELS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=WHEELS, ignore_cleanup_errors=True) as new:  # it is mostly gone by then
            build = [*UV, "build", "--quiet", "--wheel", "--out-dir", new, str(project)]
            subprocess.run(build, cwd=ROOT, check=True)
            (wheel,) = Path(new).glob("*.whl")
            shutil.unpack_archive(wheel, Path(new, "unpacked"), "zip")
            try:
                Path(new).rename(folder)  # all of it at once
            except OSError:  # the environment beside this one was quicker
                if not folder.exists():
                    raise
    return [next(folder.glob("*.whl")) for folder in kept.values()]


def digest_of(project: Path) -> str:
    """Return a digest of the files that a project's wheel is built from."""
    package = project / "engine_core" if project == ROOT else project / "src"
    files = [project / name for name in BUILT_FROM]
    files += sorted(path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    digest = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.relative_to(project).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def name_of(project: Path) -> str:
    """Return the name of a project's distribution; a plugin's is that of its folder."""
    return "engine-core" if project == ROOT else project.name


def install_torch() -> str:
    """Install the CPU build of torch; return why not if there is none for this Python, raise for any other failure."""
    done = subprocess.run(
        uv_pip("install", "-r", str(TORCH)), cwd=ROOT, text=True, stdout=PIPE, stderr=STDOUT, check=False
    )
    if done.returncode == 0:
        return ""
    if not MISSING.search(done.stdout):
        sys.exit(f"{done.stdout}\ncan't install torch, and not because there is no such build: see above")
    here = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    return f"the indexes have no CPU build of torch for {here}"


def requirements_without_torch() -> list[str]:
    """Return what our installed distributions declare, less torch, the extras (they need torch) and each other."""
    ours = [distribution for distribution in distributions() if distribution.metadata["Name"] in OURS]
    skipped = {"torch", *OURS}
    declared = {requirement for distribution in ours for requirement in distribution.requires or ()}
    names = {requirement: re.split(r"[^\w.-]", requirement, maxsplit=1)[0] for requirement in declared}
    return sorted(r for r, name in names.items() if name not in skipped and not re.search(r";.*\bextra\b", r))


def uv_pip(command: str, *arguments: str) -> list[str]:
    """Return a command of uv's pip for this environment."""
    return [*UV, "pip", command, "--quiet", "--python", sys.executable, *arguments]


def pip_install(*arguments: str) -> None:
    """Install into this environment or stop; of ours, a wheel of another path replaces one of the same version."""
    subprocess.run(uv_pip("install", *arguments), cwd=ROOT, check=True)


def test_with(whom: str, *, ring: str, at_floors: bool, arguments: list[str]) -> int:
    """Run the tests that can run here with the core alone or with all plugins, and say so if some can't."""
    has_torch = not WHY_NO_TORCH.exists()
    tests = tests_with(whom, ring=ring, at_floors=at_floors, has_torch=has_torch)
    if not has_torch:
        name = os.environ.get("TOX_ENV_NAME", "here")
        print(f"TORCH-FREE HALF in {name}: only {' '.join(tests)}, since {WHY_NO_TORCH.read_text()}", flush=True)
    ignored = NOT_AT_FLOORS if at_floors else [] if has_torch else OF_THE_TEXT
    # `worksteal` keeps most tests of a file together, which share fixtures, and leaves no core idle; those of ranks
    # start processes, once for each file.
    processes = ("--numprocesses=auto", f"--dist={'loadfile' if whom == 'ranks' else 'worksteal'}")
    left_out = (f"--ignore={path}" for path in ignored)
    environment = {**(HARSH if at_floors else {}), **({} if whom == "core" else path_of(PLUGINS))}
    return run_pytest(*tests, *left_out, *processes, *arguments, ring=ring, environment=environment).returncode


def tests_with(whom: str, *, ring: str, at_floors: bool, has_torch: bool) -> list[str]:
    """Return the tests to run with the core alone, or with the plugins beside it."""
    if whom == "ranks":
        return ["tests/ranks"]
    tests = ["tests/core"] if whom == "core" else OF_THE_INSTALLED
    if whom == "core" and not has_torch:
        tests = [*tests, *matching(ROOT, OF_PARTS_WITHOUT_TORCH)]
    elif whom == "core" and at_floors:
        tests = [*tests, *matching(ROOT, [*OF_PARTS_AT_FLOORS, *AT_FLOORS])]
    elif whom == "core":
        tests = [*tests, "tests/train", *map(tests_of, PARTS)]
    elif has_torch and at_floors:
        own = (path for plugin in PLUGINS for path in matching(plugin, OF_PLUGINS_AT_FLOORS))
        tests = [*tests, "tests/docs", *own]
    elif has_torch:
        tests = [*tests, "tests/docs", "tests/composition"]  # `alone` runs the plugins' own
    return tests


def tests_of(plugin: Path) -> str:
    """Return the folder of a plugin's tests."""
    return str(plugin.relative_to(ROOT) / "tests")


def matching(project: Path, patterns: list[str]) -> list[str]:
    """Return the test files of a project with such names."""
    found = {path for pattern in patterns for path in project.glob(pattern)}
    return [str(path.relative_to(ROOT)) for path in sorted(found)]


def test_each_alone(ring: str, arguments: list[str]) -> int:
    """Run the tests of each plugin beside those alone that it requires; return the first exit code that is not 0."""
    if WHY_NO_TORCH.exists():
        print("the tests of the plugins need torch", flush=True)
        return 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {
            # One process each: what xdist starts takes longer to import torch than it saves.
            plugin.name: pool.submit(
                run_pytest,
                *(tests_of(plugin), *arguments),
                ring=ring,
                environment=path_of([plugin, *required_by(plugin)]),
                stdout=PIPE,  # they run side by side
            )
            for plugin in sorted(PLUGINS, key=size_of_tests, reverse=True)
        }
        codes = []
        for name, done in ((name, future.result()) for name, future in running.items()):
            print(f"{name}, alone with the core\n{done.stdout}", flush=True)
            codes.append(done.returncode)
    return next((code for code in codes if code), 0)


def required_by(plugin: Path) -> list[Path]:
    """Return the plugins that a plugin requires."""
    declared = (plugin / "pyproject.toml").read_text(encoding="utf-8")
    return [other for other in PLUGINS if f'"{other.name}>=' in declared]


def size_of_tests(plugin: Path) -> int:
    """Return how much there is to test about a plugin: the size of its test files."""
    return sum(file.stat().st_size for file in (plugin / "tests").rglob("*.py"))


def path_of(plugins: list[Path]) -> dict[str, str]:
    """Return the variable that puts plugins on the path, from their unpacked wheels."""
    return {"PYTHONPATH": os.pathsep.join(str(wheel.with_name("unpacked")) for wheel in wheels_of(plugins))}


def run_pytest(
    *arguments: str, ring: str, environment: Mapping[str, str] | None = None, stdout: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the tests of a ring on what is installed here, with these variables beside those of this environment."""
    pytest = Path(sys.executable).with_name("pytest")  # not `python -m`, which would put this tree on the path
    command = [pytest, "-m", RINGS[ring], *arguments]
    variables = {**os.environ, **(environment or {})}
    done = subprocess.run(command, cwd=ROOT, env=variables, stdout=stdout, text=True, check=False)
    if (ring, done.returncode) == ("full", NO_TESTS):
        done.returncode = 0  # these may all be quick
    return done


if __name__ == "__main__":
    sys.exit(main())
