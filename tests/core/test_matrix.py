"""What .ci/matrix.py reads from pip."""

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
        "ERROR: No matching distribution found for torch==2.13.0+cpu\n",
        "some packages have no matching distributions available for your environment:\n    torch\n\nTo fix",
    ],
    ids=["alone", "with constraints in pip's configuration"],
)
def test_a_missing_build_of_torch_is_told_from_other_failures(matrix: ModuleType, said: str) -> None:
    found = matrix.MISSING.search(said)
    assert found is not None and (found[1] or found[2]).startswith("torch")


def test_a_conflict_of_builds_that_exist_is_no_missing_one(matrix: ModuleType) -> None:
    assert not matrix.MISSING.search("The user requested torch==2.13.0\nThe user requested (constraint) torch<=2.1\n")


def test_what_is_left_out_at_the_floors_is_there_under_its_name(matrix: ModuleType) -> None:
    assert [path for path in matrix.NOT_AT_FLOORS if not (matrix.ROOT / path).is_file()] == []
