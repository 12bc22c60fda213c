"""Install and test one environment of tox.ini, without torch where torch has no CPU build for its Python.

    python .ci/matrix.py install [--plugins] [--require-torch]
    python .ci/matrix.py test [--plugins] [--floors] [pytest's arguments]
    python .ci/matrix.py alone [--floors] [pytest's arguments]

tox runs it with the environment's own Python and sets PIP_CONSTRAINT.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from subprocess import PIPE, STDOUT

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = [file.parent for file in sorted(ROOT.glob("plugins/*/pyproject.toml"))]
TORCH = ROOT / ".ci" / "torch-cpu.txt"
WHY_NO_TORCH = Path(sys.prefix, "why-no-torch.txt")
# As pip says it, also where its configuration has constraints, which it then takes for a part of the conflict.
MISSING = re.compile(
    r"No matching distribution found for (\S+)"
    r"|no matching distributions available for your environment:\s+(torch)\s"
)
# What depends on who is installed; the rest runs with the core alone, and with each plugin alone.
OF_THE_INSTALLED = [f"tests/core/test_{name}.py" for name in ("registry", "cli_plugins", "plugin_passes", "imports")]
# At the floors this is left out: the project's own text, and processes that hang, print and die.
NOT_AT_FLOORS = [f"tests/core/test_{name}.py" for name in ("doctor", "explain_printing", "layers", "sizes")]
# What of training meets other dependencies than torch, which is the same one at the floors: all that is run there.
AT_FLOORS = [f"tests/train/test_{name}*.py" for name in (
    "api1", "audit", "bad_input", "checkpoint_files", "checkpoint_h", "checkpoint_s", "checkpoint_t", "cli",
    "conformance", "destinations", "explain", "import", "logging", "metrics", "names", "order_of_a_fit", "run_folder",
    "signature",
)]  # fmt: skip
# The same of a plugin; whether it conforms is asked where all are installed.
OF_A_PLUGIN_AT_FLOORS = [f"tests/test_*{name}.py" for name in ("training", "readme", "state")]
WITH_TORCH = ["tests/docs", "tests/composition", *ROOT.glob("plugins/*/tests/test_*conformance.py")]


def main() -> int:
    """Parse the command line and run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("install", "test", "alone"))
    parser.add_argument("--floors", action="store_true", help="leave out what meets no dependency but torch")
    parser.add_argument("--plugins", action="store_true", help="the plugins too, not the core alone")
    parser.add_argument("--require-torch", action="store_true", help="fail where torch has no CPU build")
    options, rest = parser.parse_known_args()
    if options.command == "alone":
        return test_each_alone(at_floors=options.floors, arguments=rest)
    if options.command == "test":
        return test(with_plugins=options.plugins, at_floors=options.floors, arguments=rest)
    install(PLUGINS if options.plugins else [], require_torch=options.require_torch)
    return 0


def install(plugins: list[Path], *, require_torch: bool) -> None:
    """Install the core and the given plugins from this tree, with torch if it can be had."""
    reason = install_torch()
    if not reason:
        WHY_NO_TORCH.unlink(missing_ok=True)
        pip_install(f"{ROOT}[examples,metrics,torchdata]", *map(str, plugins))
        return
    if require_torch:
        sys.exit(f"{reason}, and this environment needs it")
    WHY_NO_TORCH.write_text(reason)
    pip_install("--no-deps", str(ROOT), *map(str, plugins))
    pip_install("--no-warn-conflicts", *requirements_without_torch())  # it would miss torch


def install_torch() -> str:
    """Install the CPU build of torch; return why not if there is none for this Python, raise for any other failure."""
    command = pip_command("--no-deps", "-r", str(TORCH))
    environment = {**os.environ, "PIP_CONSTRAINT": ""}  # else pip reports a conflict of pins, not the missing build
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, stdout=PIPE, stderr=STDOUT, check=False)
    if done.returncode == 0:
        return ""
    missing = MISSING.search(done.stdout)
    if not missing:
        sys.exit(f"{done.stdout}\ncan't install torch, and not because there is no such build: see above")
    here = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    return f"pip's indexes have no {missing[1] or missing[2]} for {here}"


def requirements_without_torch() -> list[str]:
    """Return what our installed distributions declare, less torch, the extras (they need torch) and each other."""
    origins = [(json.loads(d.read_text("direct_url.json") or "{}").get("url", ""), d) for d in distributions()]
    ours = [distribution for origin, distribution in origins if origin.startswith(ROOT.as_uri())]
    skipped = {"torch", *(distribution.metadata["Name"] for distribution in ours)}
    declared = {requirement for distribution in ours for requirement in distribution.requires or ()}
    names = {requirement: re.split(r"[^\w.-]", requirement, maxsplit=1)[0] for requirement in declared}
    return sorted(r for r, name in names.items() if name not in skipped and not re.search(r";.*\bextra\b", r))


def pip_command(*arguments: str) -> list[str]:
    """Return the call of this environment's pip; what is imported gets compiled then, which saves half the time."""
    return [sys.executable, "-I", "-m", "pip", "install", "--no-compile", *arguments]


def pip_install(*arguments: str) -> None:
    """Run pip or stop."""
    subprocess.run(pip_command(*arguments), cwd=ROOT, check=True)


def test(*, with_plugins: bool, at_floors: bool, arguments: list[str]) -> int:
    """Run the tests that can run here, and say so when that is not all of them."""
    tests = OF_THE_INSTALLED if with_plugins else ["tests/core"]
    if WHY_NO_TORCH.exists():
        name = os.environ.get("TOX_ENV_NAME", "here")
        print(f"TORCH-FREE HALF in {name}: only {' '.join(tests)}, since {WHY_NO_TORCH.read_text()}", flush=True)
    else:
        of_training = sorted(str(path) for pattern in AT_FLOORS for path in ROOT.glob(pattern))
        tests += [*map(str, WITH_TORCH)] if with_plugins else of_training if at_floors else ["tests/train"]
        tests = sorted(set(tests) - ({"tests/composition"} if at_floors else set()))
    return run_pytest(*tests, *(f"--ignore={path}" for path in NOT_AT_FLOORS if at_floors), *arguments)


def test_each_alone(*, at_floors: bool, arguments: list[str]) -> int:
    """Run the tests of each plugin with no other plugin beside it; return the first exit code that is not 0."""
    codes = []
    uninstall(PLUGINS)  # what an interrupted run, or somebody by hand, has left
    for plugin in PLUGINS:
        try:
            pip_install("--no-deps", str(plugin))
            print(f"{plugin.name}, alone with the core", flush=True)
            found = [path for pattern in OF_A_PLUGIN_AT_FLOORS for path in sorted(plugin.glob(pattern))]
            tests = found if at_floors else [plugin / "tests"]
            codes.append(run_pytest(*(str(path.relative_to(ROOT)) for path in tests), *arguments))
        finally:
            uninstall([plugin])
    return next((code for code in codes if code), 0)


def uninstall(plugins: list[Path]) -> None:
    """Take away those of the plugins that are installed; pip says of the others that they are not."""
    names = [plugin.name for plugin in plugins]
    subprocess.run([sys.executable, "-I", "-m", "pip", "uninstall", "--yes", *names], cwd=ROOT, check=True)


def run_pytest(*arguments: str) -> int:
    """Run pytest on what is installed here."""
    pytest = Path(sys.executable).with_name("pytest")  # not `python -m`, which would put this tree on the path
    return subprocess.run([pytest, *arguments], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
