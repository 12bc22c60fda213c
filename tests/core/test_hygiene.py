"""Nothing that the project promises hangs on an assert: `python -O` leaves them out."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [*ROOT.glob("engine_core/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")]


def checks_in(code):
    """Return the lines of the asserts that do more than tell mypy that a value is not None."""
    asserts = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Assert)]
    return [node.lineno for node in asserts if not (node.msg is None and ast.unparse(node).endswith(" is not None"))]


def test_an_assert_outside_of_the_tests_only_narrows_a_type():
    assert len(SOURCES) > 200
    found = {str(file.relative_to(ROOT)): checks_in(file.read_text(encoding="utf-8")) for file in SOURCES}
    assert {file: lines for file, lines in found.items() if lines} == {}


@pytest.mark.parametrize("check", ["assert x", "assert x is not None, f()", "if y:\n  assert x > 0"])
def test_an_assert_that_does_more_is_found(check):
    assert len(checks_in(f"assert x is not None\n{check}")) == 1
