"""What a new plugin's own tools say about it, whatever its name."""

import re
import sys

import pytest

from .conftest import program_of

HERE = f"py{sys.version_info.major}{sys.version_info.minor}"
ENVIRONMENTS = ["lint", "type", f"{HERE}-lowest", f"{HERE}-latest", "wheel"]
AWKWARD = "My.Awkward_name"
EXAMPLES = {
    "Two--dashes.2d": ["--description", """say "hi" to it's 'x' – C:\\x""", "--author", 'Zoë "Z" <z@example.org>'],  # noqa: RUF001
    "test-" + "W" * 35: ["--algorithm", "w" * 40, "--description", "d" * 90],
}
NOTHING = '"""Change nothing."""'
SOMETHING = """[p.grad.zero_() for p in state.model.parameters()]"""


@pytest.fixture(scope="module")
def tools(workplace):
    """Create a plugin with all that it may have, run its own tox, two environments at a time, and return its folder."""
    project = workplace.begin(AWKWARD, "--example", "--with-pass")
    command = (sys.executable, "-m", "tox", "run-parallel", "--parallel", "2", "--parallel-live")
    done = workplace.attempt(*command, cwd=project)
    (project / "tox.log").write_text(done.stdout + done.stderr)
    return project


def test_its_own_tox_is_green(tools):
    printed = (tools / "tox.log").read_text()
    assert re.findall(r"^  ([\w-]+): (\w+)", printed, re.MULTILINE) == [(each, "OK") for each in ENVIRONMENTS], printed
    assert len(re.findall(r"^=+ \d+ passed\b", printed, re.MULTILINE)) == 2


@pytest.fixture
def checked(workplace, tools):
    """Return `checked(name, *options)`, which creates a plugin, and checks its lint and types with those tools."""
    ruff, python = program_of(tools / ".tox" / "lint", "ruff"), program_of(tools / ".tox" / "type", "python")
    uv = [sys.executable, "-m", "uv", "pip"]
    installed = []

    def checked(name, *options):
        project = workplace.begin(name, *options)
        workplace.run(*uv, "install", "--python", str(python), "--no-deps", "--editable", str(project))
        installed.append(name)
        workplace.run(str(ruff), "check", cwd=project)
        workplace.run(str(ruff), "format", "--check", cwd=project)
        workplace.run(str(python), "-m", "mypy", "--cache-dir", str(tools / ".mypy_cache"), cwd=project)
        return project

    yield checked
    workplace.run(*uv, "uninstall", "--python", str(python), *installed)


@pytest.mark.parametrize("name", EXAMPLES)
def test_lint_and_types_are_green_whatever_its_name(name, checked):
    checked(name, "--example", "--with-pass", *EXAMPLES[name])


def test_a_skeleton_fails_its_one_test_until_it_does_something(workplace, tools, checked):
    project = checked("true-plugin", "--with-pass", "--description", "d" * 90)
    python = str(program_of(tools / ".tox" / f"{HERE}-latest", "python"))
    uv = (sys.executable, "-m", "uv", "pip", "install", "--python", python)
    workplace.run(*uv, "--no-deps", "--editable", str(project))
    printed = workplace.attempt(python, "-m", "pytest", cwd=project).stdout
    own = "tests/test_true_plugin.py::test_it_changes_what_a_training_gives"
    assert re.findall(r"^FAILED (\S+)", printed, re.MULTILINE) == [own]
    assert re.search(r"^=+ 1 failed, \d+ passed\b", printed, re.MULTILINE), printed
    (algorithm,) = project.glob("src/*/algorithm.py")
    text = algorithm.read_text()
    assert text.count(NOTHING) == 1
    algorithm.write_text(text.replace(NOTHING, SOMETHING))
    assert " 1 passed" in workplace.attempt(python, "-m", "pytest", own, cwd=project).stdout
