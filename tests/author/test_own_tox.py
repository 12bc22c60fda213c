"""What a new plugin's own tools say about it, whatever its name."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Workplace, program_of

HERE = f"py{sys.version_info.major}{sys.version_info.minor}"
# The environments of a plugin's tox: all of them once, then the one in which a name with dots and capitals matters.
WHOLE = ["lint", "type", f"{HERE}-lowest", f"{HERE}-latest", "wheel"]
TOXES = {"my-algo": WHOLE, "My.Awkward_name": ["wheel"]}
LONGEST_S = 3600  # for the tox of both, side by side
OTHERS = ["My.Awkward_state", "x", "true", "test-noise", "Two--dashes.2d", "W" * 40]


@pytest.fixture(scope="module")
def toxes(workplace: Workplace) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Create plugins and start the tox of each, side by side; what they print is in `tox.log`."""
    started = {
        name: workplace.start_tox(workplace.begin(name), *(() if named is WHOLE else ("-e", ",".join(named))))
        for name, named in TOXES.items()
    }
    yield started
    for process in started.values():
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", TOXES)
def test_its_own_tox_is_green(name: str, workplace: Workplace, toxes: dict[str, subprocess.Popen[bytes]]) -> None:
    status = toxes[name].wait(LONGEST_S)
    printed = (workplace.folder / name / "tox.log").read_text()

    assert status == 0, printed
    assert re.findall(r"^  ([\w-]+): (\w+)", printed, re.MULTILINE) == [(each, "OK") for each in TOXES[name]]
    tested = [each for each in TOXES[name] if each.startswith(HERE)]
    assert len(re.findall(r"^=+ \d+ passed\b", printed, re.MULTILINE)) == len(tested)


@pytest.fixture(scope="module")
def tools(workplace: Workplace, toxes: dict[str, subprocess.Popen[bytes]]) -> Path:
    """Return the folder of a plugin whose environments have all tools in them, from its own tox."""
    toxes["my-algo"].wait(LONGEST_S)
    return workplace.folder / "my-algo"


@pytest.mark.parametrize("name", OTHERS)
def test_lint_types_and_tests_are_green_whatever_its_name(name: str, workplace: Workplace, tools: Path) -> None:
    project = workplace.begin(name)
    ruff, python = program_of(tools / ".tox" / "lint", "ruff"), program_of(tools / ".tox" / "type", "python")
    pip = [str(python), "-I", "-m", "pip", "--quiet"]
    workplace.run(*pip, "install", "--no-deps", "--editable", str(project))
    workplace.run(str(ruff), "check", cwd=project)
    workplace.run(str(ruff), "format", "--check", cwd=project)
    workplace.run(str(python), "-m", "mypy", "--cache-dir", str(tools / ".mypy_cache"), cwd=project)
    workplace.run(str(python), "-m", "pytest", cwd=project)
    workplace.run(*pip, "uninstall", "--yes", name)
