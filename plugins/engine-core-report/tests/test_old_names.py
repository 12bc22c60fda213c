"""What was at doors of the core is found there for one more minor version, with a warning."""

import importlib

import pytest

import engine_core_report
from engine_core_report import diff, pictures


@pytest.mark.parametrize(
    ("module", "name", "now"),
    [
        ("engine_core.report", "read_run", engine_core_report),
        ("engine_core.diff", "compare", diff),
        ("engine_core.explain", "to_svg", pictures),
    ],
)
def test_an_old_name_is_the_new_one_and_says_where_that_is(module, name, now):
    with pytest.warns(DeprecationWarning, match=rf"{module}\.{name} has moved: import it from {now.__name__}"):
        assert getattr(importlib.import_module(module), name) is getattr(now, name)
