"""What .ci/matrix.py reads from uv, and which wheels and tests it takes."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

MATRIX = Path(__file__).parents[2] / ".ci" / "matrix.py"


@pytest.fixture(scope="module")
def matrix() -> ModuleType:
    spec = importlib.util.spec_from_file_location("matrix_of_ci", MATRIX)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "said",
    [
        "cause: Because torch{sys_platform == 'linux'}==2.13.0+cpu has no wheels with a matching Python ABI tag (e.g.",
        "cause: Because there is no version of torch{sys_platform == 'linux'}==2.13.0+cpu and you require",
    ],
    ids=["for other Pythons only", "not at all"],
)
def test_a_missing_build_of_torch_is_distinguished_from_other_failures(matrix: ModuleType, said: str) -> None:
    assert matrix.MISSING.search(said)


@pytest.mark.parametrize("said", ["Because torchmetrics==1.4 has no wheels with a matching", "Failed to fetch: torch"])
def test_another_failure_is_not_a_missing_build(matrix: ModuleType, said: str) -> None:
    assert not matrix.MISSING.search(said)


def test_what_is_left_out_at_the_floors_is_there_under_its_name(matrix: ModuleType) -> None:
    assert [path for path in matrix.NOT_AT_FLOORS if not (matrix.ROOT / path).is_file()] == []


def test_a_wheel_is_kept_until_a_file_that_it_is_built_from_changes(matrix: ModuleType, tmp_path: Path) -> None:
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


def test_what_a_wheel_is_built_from_is_what_the_projects_name(matrix: ModuleType) -> None:
    for project in (matrix.ROOT, *matrix.PARTS, *matrix.PLUGINS):
        text = (project / "pyproject.toml").read_text()
        assert f'name = "{matrix.name_of(project)}"' in text
        assert 'readme = "README.md"' in text and 'license-files = ["LICENSE"]' in text
        package = matrix.name_of(project).replace("-", "_")
        assert f'packages = ["{package if project == matrix.ROOT else f"src/{package}"}"]' in text


RUNS = [("quick", False), ("full", False), ("quick", True)]  # of which ring, and whether at the floors


@pytest.mark.parametrize(("ring", "at_floors"), RUNS)
def test_without_torch_the_tests_of_the_core_and_of_what_is_installed_are_run(
    matrix: ModuleType, ring: str, at_floors: bool
) -> None:
    ran = [matrix.tests_with(whom, ring=ring, at_floors=at_floors, has_torch=False) for whom in ("core", "plugins")]
    (core, *own), installed = ran
    assert (core, installed) == ("tests/core", matrix.OF_THE_INSTALLED)
    assert own == matrix.matching(matrix.ROOT, matrix.OF_PARTS_WITHOUT_TORCH)
    files = [file for path in own for file in matrix.ROOT.glob(f"{path}/test_*.py")]
    files += [matrix.ROOT / path for path in own if path.endswith(".py")]
    assert len(files) > 20
    assert not any("import torch" in file.read_text(encoding="utf-8").splitlines() for file in files)


@pytest.mark.parametrize(("ring", "at_floors"), RUNS)
@pytest.mark.parametrize("whom", ["core", "plugins"])
def test_what_is_run_is_there_under_its_name(matrix: ModuleType, whom: str, ring: str, at_floors: bool) -> None:
    tests = matrix.tests_with(whom, ring=ring, at_floors=at_floors, has_torch=True)
    assert [path for path in tests if not (matrix.ROOT / path).exists()] == []


def test_each_pattern_of_the_floors_names_a_file(matrix: ModuleType) -> None:
    parts = [*matrix.OF_PARTS_WITHOUT_TORCH, *matrix.OF_PARTS_AT_FLOORS]
    assert [pattern for pattern in parts if not matrix.matching(matrix.ROOT, [pattern])] == []
    assert [pattern for pattern in matrix.AT_FLOORS if not matrix.matching(matrix.ROOT, [pattern])] == []
    plugins = {
        pattern: [matrix.matching(plugin, [pattern]) for plugin in matrix.PLUGINS]
        for pattern in matrix.OF_PLUGINS_AT_FLOORS
    }
    assert [pattern for pattern, found in plugins.items() if not any(found)] == []
