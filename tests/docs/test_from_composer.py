"""The page about Composer: its right side is the signatures and names of the code, its left side all of Composer's."""

import ast
import inspect
import json
import pkgutil
import re
import runpy
from pathlib import Path

import pytest

from engine_core import Algorithm, Engine, Event, Trainer

from .conftest import DOCS

PAGE = DOCS / "authors" / "from-composer.md"
COMPOSER = json.loads((Path(__file__).parent / "composer.json").read_text())
"""Arguments with defaults, methods and events of Composer, in the version that the page names."""

RENAMED = {
    "FusedLayerNorm": "LowPrecisionLayerNorm",
    "SequenceWarmup": "SeqLengthWarmup",
}
PAIRS = runpy.run_path(str(DOCS / "pairs.py"))
ALGORITHMS = {type(made).__name__: type(made) for made in map(PAIRS["make"], PAIRS["algorithm_names"]())}
CALLED = {
    **ALGORITHMS, "Engine": Engine, "Trainer": Trainer, "Trainer.fit": Trainer.fit, "Trainer.eval": Trainer.eval,
    "Trainer.predict": Trainer.predict,
}  # fmt: skip
NAMED = {"Event": Event, "Engine": Engine, "Algorithm": Algorithm, "Trainer": Trainer}


def rows_of(section, columns):
    """Return the rows of the tables with so many columns in a section, without their heads."""
    text = PAGE.read_text()
    begin = re.search(rf"^##+ {re.escape(section)}\n", text, re.MULTILINE)
    assert begin, f"{PAGE.name} has no section {section}"
    body = re.split(r"^##+ ", text[begin.end() :], maxsplit=1, flags=re.MULTILINE)[0]
    cells = [[cell.strip() for cell in line.strip("|").split(" |")] for line in body.splitlines() if line[:1] == "|"]
    return [row for row in cells if len(row) == columns and row[0] != "Composer" and not row[0].startswith("---")]


def named(cells):
    return sorted(cell.strip("`") for cell in cells if cell)


@pytest.mark.parametrize("section", CALLED)
def test_arguments_and_defaults_are_those_of_our_signature_and_of_composers(section):
    parameters = [p for p in inspect.signature(CALLED[section]).parameters.values() if p.name != "self"]
    rows = rows_of(section, 5)
    ours = {name.strip("`"): default for _, _, name, default, _ in rows if name}
    theirs = {name.strip("`"): default.strip("`") for name, default, *_ in rows if name}
    assert theirs == COMPOSER["arguments"].get(RENAMED.get(section, section), {})
    assert sorted(ours) == sorted(parameter.name for parameter in parameters)
    for parameter in parameters:
        default = ours[parameter.name]
        expected = inspect.Parameter.empty if default == "required" else ast.literal_eval(default.strip("`"))
        assert expected == parameter.default, f"{section}: {parameter}"


@pytest.mark.parametrize("section", NAMED)
def test_each_public_name_of_ours_and_of_composers_is_there_once(section):
    owner, rows = NAMED[section], rows_of(section, 3)
    names = vars(owner) if section == "Event" else dir(owner)  # of an event, not the methods of a string
    assert named([row[1] for row in rows]) == sorted(name for name in names if not name.startswith("_"))
    assert named([row[0] for row in rows]) == sorted(COMPOSER["methods"][section])


def test_what_is_left_out_has_a_reason_and_what_has_another_name_says_so():
    tables = [row for section in {**CALLED, **NAMED} for width in (5, 3) for row in rows_of(section, width)]
    theirs, ours = [row[0] for row in tables], [row[len(row) // 2] for row in tables]
    texts = [row[-1] for row in tables]
    assert len(ALGORITHMS) == 36
    assert [t for t, o, text in zip(theirs, ours, texts, strict=True) if not o and not text] == []
    assert [t for t, o, text in zip(theirs, ours, texts, strict=True) if t and o and t != o and not text] == []


def test_the_functions_exist():
    functions = [row[1].strip("`") for row in rows_of("Functions", 3)]
    assert len(functions) == 20
    assert [name for name in functions if not callable(pkgutil.resolve_name(name))] == []
