"""The two rings of the tests, as tox.ini names them: what they run, and that nothing falls between them."""

import configparser
import importlib.util
import itertools
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOX = configparser.ConfigParser(interpolation=None, comment_prefixes=(";",))
TOX.read(ROOT / "tox.ini")
README = (ROOT / "README.md").read_text()


def names(listed):
    """Return the environments of a list, with each `{a,b}` of a name taken for all in it."""
    found = []
    for name in re.findall(r"(?:[^\s,{]|\{[^}]*\})+", listed):
        parts = [text.strip("{}").split(",") for text in re.findall(r"\{[^}]*\}|[^{]+", name)]
        found += ["".join(map(str.strip, chosen)) for chosen in itertools.product(*parts)]
    return found


def commands_of(environment):
    """Return the commands of an environment of tox.ini, each as its words; `{posargs}` and the like are left out."""
    section = f"testenv:{environment}"
    lines = TOX[section if TOX.has_option(section, "commands") else "testenv"]["commands"].splitlines()
    found = []
    for line in filter(None, lines):
        condition, command = re.fullmatch(r"(?:([\w{}, -]+): )?(.*)", line).groups()
        if any(set(factors.split("-")) <= set(environment.split("-")) for factors in names(condition or environment)):
            other = re.fullmatch(r"\{\[testenv:(\w+)\]commands\}", command)
            found += commands_of(other[1]) if other else [shlex.split(re.sub(r"\{posargs\}", "", command))]
    return found


QUICK = names(TOX["tox"]["env_list"])
LABELS = {name: names(listed) for name, listed in re.findall(r"^(\w+) = (.*)", TOX["tox"]["labels"], re.MULTILINE)}


@pytest.fixture(scope="module")
def matrix():
    spec = importlib.util.spec_from_file_location("matrix_of_ci", ROOT / ".ci" / "matrix.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_full_ring_is_the_quick_one_and_the_rest():
    assert sorted(LABELS["full"]) == sorted([*QUICK, *LABELS["rest"]])
    assert len(set(LABELS["full"])) == len(LABELS["full"])


def test_both_rings_have_each_python_that_the_readme_names_and_the_quick_one_lint_and_types():
    low, high = re.search(r"Python 3\.(\d+) to 3\.(\d+)", README).groups()
    pythons = [f"py3{minor}" for minor in range(int(low), int(high) + 1)]
    assert sorted(QUICK) == sorted([*(f"{python}-latest" for python in pythons), "lint"])
    assert commands_of("type")[0] in commands_of("py311-latest")
    assert {f"{python}-lowest" for python in pythons} <= set(LABELS["rest"])


def test_the_documentation_is_built_in_the_rest():
    assert commands_of("docs")[0] in commands_of("py311-full")


def test_ci_runs_the_readmes_command_which_is_the_quick_ring_and_then_the_rest():
    (_, command) = re.search(r"```sh\n(.*)\n(.*)\n```", README).groups()
    assert command.endswith("python3 -m tox run-parallel")
    assert '"$command" "python3 -m tox run-parallel -m rest"' in (ROOT / ".ci" / "run").read_text()


def runs(environment, matrix):
    """Return what an environment runs where torch is installed: beside what, the path of tests, and their ring."""
    found = set()
    for command in commands_of(environment):
        whom, options = command[2] if command[:2] == ["python", ".ci/matrix.py"] else command[0], command[3:]
        ring = options[options.index("--ring") + 1] if "--ring" in options else "both"
        if whom in ("core", "plugins", "ranks"):
            tests = matrix.tests_with(whom, ring=ring, at_floors="--floors" in options, has_torch=True)
        else:
            tests = {"alone": map(matrix.tests_of, matrix.PLUGINS), "pytest": command[-1:]}.get(whom, ())
        found |= {(whom, path, ring) for path in tests if "--floors" not in options}
    return found


@pytest.mark.parametrize(
    ("quick", "rest"), [("py311-latest", "py311-full"), *((f"py3{n}-latest", f"py3{n}-lowest") for n in (10, 12, 13))]
)
def test_what_the_quick_ring_leaves_out_the_same_python_runs_in_the_full_one(quick, rest, matrix):
    assert rest in LABELS["rest"]
    quick, rest = runs(quick, matrix), runs(rest, matrix)
    assert {ring for *_, ring in quick} == {"quick"}
    assert {(whom, path, "full") for whom, path, _ in quick} <= rest
    assert set(matrix.RINGS.items()) == {("quick", "not full"), ("full", "full")}


def test_each_plugins_own_tests_are_run_with_that_plugin_alone_in_both_rings(matrix):
    own = set(map(matrix.tests_of, matrix.PLUGINS))
    for environment, ring in (("py311-latest", "quick"), ("py311-full", "full")):
        assert {path for whom, path, of in runs(environment, matrix) if (whom, of) == ("alone", ring)} == own


def test_each_test_file_is_run_with_the_latest_dependencies_in_the_full_ring(matrix):
    paths = {path for environment in LABELS["full"] for _, path, _ in runs(environment, matrix)}
    files = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("plugins/*-plugin/**/test_*.py")]
    files = [file.relative_to(ROOT) for file in files if ".tox" not in file.parts]
    assert len(files) > 300
    assert [file for file in files if not {str(file), *map(str, file.parents)} & paths] == []


def test_a_plugin_that_needs_another_library_is_in_neither_ring(matrix):
    assert {"sb-plugin", "optim-plugin"} <= {plugin.name for plugin in matrix.PLUGINS}
    assert [plugin.name for plugin in matrix.PLUGINS if plugin.name.startswith("engine-core-")] == []
