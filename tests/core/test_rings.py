"""The two rings of the tests, as tox.ini names them: what they run, and that nothing falls between them."""

import configparser
import importlib.util
import itertools
import re
import shlex
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).parents[2]
TOX = configparser.ConfigParser(interpolation=None, comment_prefixes=(";",))
TOX.read(ROOT / "tox.ini")
README = (ROOT / "README.md").read_text()
ADAPTERS = ["accelerate", "lightning", "mlflow", "tensorboard", "transformers"]


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
            found += commands_of(other[1]) if other else [shlex.split(re.sub(r"\{posargs:?([^{}]*)\}", r"\1", command))]
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
    assert commands_of("type")[0] in commands_of("beside-latest")
    assert commands_of("docs")[0] in commands_of("py311-full")


def test_each_python_that_the_readme_names_is_tested_and_the_quick_ring_has_one_with_torch_one_without_and_lint():
    low, high = re.search(r"Python 3\.(\d+) to 3\.(\d+)", README).groups()
    pythons = {f"py3{minor}" for minor in range(int(low), int(high) + 1)}
    assert {name.partition("-")[0] for name in LABELS["full"] if name.startswith("py")} == pythons
    assert ["py311-latest", f"py3{high}-latest", "lint"] == QUICK
    assert f"py3{low}-lowest" in LABELS["rest"]


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
        rings = ("quick", "full") if ring == "both" else (ring,)
        if whom in ("core", "plugins", "ranks"):
            tests = matrix.tests_with(whom, ring=ring, at_floors="--floors" in options, has_torch=True)
        else:
            own = [path for word in command for path in re.findall(r"tests/\w+", word)]
            paths = {"alone": map(matrix.tests_of, matrix.PLUGINS), "beside": ["tests/beside"], "pytest": own}
            tests = paths.get(whom, ())
        found |= {(whom, path, ring) for path in tests for ring in rings if "--floors" not in options}
    return found


def test_what_the_quick_ring_leaves_out_the_same_python_runs_in_the_full_one(matrix):
    assert "py311-full" in LABELS["rest"]
    quick, rest = runs("py311-latest", matrix), runs("py311-full", matrix)
    assert {ring for *_, ring in quick} == {"quick"}
    assert {(whom, path, "full") for whom, path, _ in quick} <= rest
    assert set(matrix.RINGS.items()) == {("quick", "not full"), ("full", "full"), ("both", "")}


@pytest.mark.parametrize("other", ["py310-lowest", "py312-latest"])
def test_the_other_pythons_run_the_quick_tests(other, matrix):
    assert other in LABELS["rest"]
    assert runs(other, matrix) == runs("py313-latest", matrix)


def test_each_plugins_own_tests_are_run_with_that_plugin_alone_in_both_rings(matrix):
    own = set(map(matrix.tests_of, matrix.PLUGINS))
    for environment, ring in (("py311-latest", "quick"), ("py311-full", "full")):
        assert {path for whom, path, of in runs(environment, matrix) if (whom, of) == ("alone", ring)} == own


def test_each_test_file_is_run_with_the_latest_dependencies_in_the_full_ring(matrix):
    paths = {path for environment in LABELS["full"] for _, path, _ in runs(environment, matrix)}
    files = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("plugins/*/tests/**/test_*.py")]
    files = [file.relative_to(ROOT) for file in files if ".tox" not in file.parts]
    assert len(files) > 200
    assert [file for file in files if not {str(file), *map(str, file.parents)} & paths] == []


def test_a_plugin_that_needs_another_library_is_tested_beside_it_in_the_rest_of_the_full_ring(matrix):
    assert {"sb-plugin", "optim-plugin"} <= {plugin.name for plugin in matrix.PLUGINS}
    adapters = [adapter.name for adapter in matrix.ADAPTERS]
    assert adapters == [f"engine-core-{name}" for name in ADAPTERS]
    assert [plugin.name for plugin in matrix.PLUGINS if plugin.name in adapters] == []
    assert not any(name in README.partition("## What each")[0] for name in adapters)
    for environment in ("beside-latest", "beside-lowest"):
        assert environment in LABELS["rest"]
        assert "--adapters" in TOX[f"testenv:{environment}"]["commands_pre"]
    assert runs("beside-latest", matrix) == {("beside", "tests/beside", ring) for ring in ("quick", "full")}
    assert ["python", ".ci/matrix.py", "beside", "--floors"] in commands_of("beside-lowest")


def test_with_the_lowest_of_the_other_libraries_each_adapter_is_tested(matrix):
    chosen, all_of_them = matrix.matching(ROOT, matrix.BESIDE_AT_FLOORS), [*ROOT.glob("tests/beside/test_*.py")]
    assert [name for name in ADAPTERS if not any(f"test_{name}_" in file for file in chosen)] == []
    assert len(all_of_them) / 4 < len(chosen) < len(all_of_them) / 2


def test_the_pages_are_looked_at_in_the_systems_browser_in_the_rest_of_the_full_ring(matrix):
    assert "see" in LABELS["rest"]
    assert runs("see", matrix) == {("pytest", "tests/see", ring) for ring in ("quick", "full")}
    script = (ROOT / ".ci" / "run").read_text()
    assert "apt-get install -y -qq --no-install-recommends chromium" in script
    assert "playwright install" not in script


@pytest.mark.parametrize("ring", ["latest", "lowest"])
def test_the_libraries_of_the_adapters_are_pinned_to_both_ends_of_the_declared_ranges(ring, matrix):
    name = "constraints-beside.txt" if ring == "latest" else "constraints-beside-lowest.txt"
    assert name in TOX[f"testenv:beside-{ring}"]["set_env"]
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE))
    for adapter in matrix.ADAPTERS:
        library = {"mlflow": "mlflow-skinny"}.get(name := adapter.name.removeprefix("engine-core-"), name)
        declared = re.search(rf'"{library}(>=[^"]+)"', (adapter / "pyproject.toml").read_text())[1]
        assert pins[library] in SpecifierSet(declared)
        lowest = re.match(r">=([\d.]+)", declared)[1]
        assert (Version(pins[library]) == Version(lowest)) == (ring == "lowest")


def test_a_missing_build_of_torch_is_distinguished_from_other_failures(matrix):
    for said in (
        "torch{sys_platform == 'linux'}==2.13.0+cpu has no wheels with a matching Python ABI tag (e.g.",
        "there is no version of torch{sys_platform == 'linux'}==2.13.0+cpu and you require",
    ):
        assert matrix.MISSING.search(f"cause: Because {said}")
    for said in ("Because torchmetrics==1.4 has no wheels with a matching", "Failed to fetch: torch"):
        assert not matrix.MISSING.search(said)


def test_a_wheel_is_kept_until_a_file_that_it_is_built_from_changes(matrix, tmp_path):
    package = tmp_path / "src" / "package"
    files = [tmp_path / "pyproject.toml", tmp_path / "README.md", tmp_path / "LICENSE", package / "__init__.py"]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    digests = [matrix.digest_of(tmp_path)]
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "__init__.pyc").write_text("1")
    assert matrix.digest_of(tmp_path) == digests[0]
    for file in files:
        file.write_text("2")
        digests.append(matrix.digest_of(tmp_path))
    files[-1].rename(package / "other.py")
    digests.append(matrix.digest_of(tmp_path))
    assert len(set(digests)) == len(digests)


def test_what_a_wheel_is_built_from_is_what_the_projects_name(matrix):
    for project in (matrix.ROOT, *matrix.PARTS, *matrix.PLUGINS):
        text = (project / "pyproject.toml").read_text()
        assert f'name = "{matrix.name_of(project)}"' in text
        assert 'readme = "README.md"' in text and 'license-files = ["LICENSE"]' in text
        package = matrix.name_of(project).replace("-", "_")
        assert f'packages = ["{package if project == matrix.ROOT else f"src/{package}"}"]' in text


RUNS = [("quick", False), ("full", False), ("quick", True)]  # of which ring, and whether at the floors


@pytest.mark.parametrize(("ring", "at_floors"), RUNS)
def test_without_torch_the_tests_of_the_core_and_of_what_is_installed_are_run(matrix, ring, at_floors):
    ran = [matrix.tests_with(whom, ring=ring, at_floors=at_floors, has_torch=False) for whom in ("core", "plugins")]
    (core, *own), installed = ran
    assert (core, installed) == ("tests/core", matrix.OF_THE_INSTALLED)
    assert own == matrix.matching(matrix.ROOT, matrix.OF_PARTS_WITHOUT_TORCH)
    files = [file for path in own for file in matrix.ROOT.glob(f"{path}/test_*.py")]
    files += [matrix.ROOT / path for path in own if path.endswith(".py")]
    assert {"test_report_page", "test_doctor_command", "test_plugins_new"} <= {file.stem for file in files}
    assert not any("import torch" in file.read_text(encoding="utf-8").splitlines() for file in files)


@pytest.mark.parametrize(("ring", "at_floors"), RUNS)
@pytest.mark.parametrize("whom", ["core", "plugins"])
def test_what_is_run_is_there_under_its_name(matrix, whom, ring, at_floors):
    tests = matrix.tests_with(whom, ring=ring, at_floors=at_floors, has_torch=True)
    assert [path for path in tests if not (matrix.ROOT / path).exists()] == []


def test_each_pattern_of_the_floors_names_a_file(matrix):
    patterns = [*matrix.OF_PARTS_WITHOUT_TORCH, *matrix.OF_PARTS_AT_FLOORS, *matrix.AT_FLOORS, *matrix.NOT_AT_FLOORS]
    assert [pattern for pattern in patterns if not matrix.matching(ROOT, [pattern])] == []
    for pattern in matrix.OF_PLUGINS_AT_FLOORS:
        assert any(matrix.matching(plugin, [pattern]) for plugin in matrix.PLUGINS), pattern
