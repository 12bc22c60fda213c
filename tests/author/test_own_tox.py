"""What a new plugin's own tools say about it, whatever its name."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .conftest import Workplace, program_of

HERE = f"py{sys.version_info.major}{sys.version_info.minor}"
# The environments of a plugin's tox: all of them once, then the one in which a name with dots and capitals matters.
WHOLE = ["lint", "type", f"{HERE}-lowest", f"{HERE}-latest", "wheel"]
AWKWARD = "My.Awkward_name"
TOXES = {"my-algo": WHOLE, AWKWARD: ["wheel"]}
LONGEST_S = 3600  # for the tox of both, side by side
EXAMPLES = [
    ("test-noise", ["--description", """say "hi" to it's 'x' – C:\\x"""]),  # noqa: RUF001
    ("Two--dashes.2d", ["--with-pass", "--algorithm", "w" * 40, "--author", 'Zoë "Z" <z@example.org>']),
    ("W" * 40, ["--with-pass", "--description", "d" * 90]),
]
SKELETONS = [("true-plugin", ["--with-pass"]), ("x", ["--description", "d" * 90])]
NOTHING = '"""Change nothing."""'
SOMETHING = """[p.grad.zero_() for p in state.model.parameters()]"""


@pytest.fixture(scope="module")
def toxes(workplace: Workplace) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Create plugins and start the tox of each, side by side; what they print is in `tox.log`."""
    started = {
        "my-algo": workplace.start_tox(workplace.begin("my-algo", "--example", "--with-pass")),
        AWKWARD: workplace.start_tox(workplace.begin(AWKWARD), "-e", "wheel"),
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


@pytest.fixture
def checked(workplace: Workplace, tools: Path) -> Iterator[Callable[..., tuple[Path, Callable[..., str]]]]:
    """Return `checked(name, *options)`: create a plugin, install it, check lint and types; return it and a `pytest`."""
    ruff, python = program_of(tools / ".tox" / "lint", "ruff"), program_of(tools / ".tox" / "type", "python")
    uv = [sys.executable, "-m", "uv", "pip"]
    installed = []

    def checked(name: str, *options: str) -> tuple[Path, Callable[..., str]]:
        project = workplace.begin(name, *options)
        workplace.run(*uv, "install", "--python", str(python), "--no-deps", "--editable", str(project))
        installed.append(name)
        workplace.run(str(ruff), "check", cwd=project)
        workplace.run(str(ruff), "format", "--check", cwd=project)
        workplace.run(str(python), "-m", "mypy", "--cache-dir", str(tools / ".mypy_cache"), cwd=project)
        return project, lambda *given: workplace.attempt(str(python), "-m", "pytest", *given, cwd=project).stdout

    yield checked
    workplace.run(*uv, "uninstall", "--python", str(python), *installed)


@pytest.mark.parametrize(("name", "options"), EXAMPLES)
def test_lint_types_and_tests_are_green_whatever_its_name(
    name: str, options: list[str], checked: Callable[..., tuple[Path, Callable[..., str]]]
) -> None:
    _, run_pytest = checked(name, "--example", *options)
    printed = run_pytest()

    assert re.search(r"^=+ \d+ passed\b", printed, re.MULTILINE), printed


@pytest.mark.parametrize(("name", "options"), SKELETONS)
def test_a_skeleton_fails_its_one_test_until_it_does_something(
    name: str, options: list[str], checked: Callable[..., tuple[Path, Callable[..., str]]]
) -> None:
    project, run_pytest = checked(name, *options)
    printed = run_pytest()

    own = f"tests/test_{name.replace('-', '_')}.py::test_it_changes_what_a_training_gives"
    assert re.findall(r"^FAILED (\S+)", printed, re.MULTILINE) == [own]
    assert re.search(r"^=+ 1 failed, \d+ passed\b", printed, re.MULTILINE), printed

    (algorithm,) = project.glob("src/*/algorithm.py")
    text = algorithm.read_text()
    assert text.count(NOTHING) == 1
    algorithm.write_text(text.replace(NOTHING, SOMETHING))
    assert " 1 passed" in run_pytest(own.partition("::")[0])
