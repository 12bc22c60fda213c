"""`diff` and `explain` on files that no run has written: one message, exit code 2, and no control characters."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine_core.cli import main
from engine_core_report.diff import compare, format_differences

PLACE = {"algorithm": "A", "name": "a", "why": "runs alone"}
RECORD = {"algorithm": "A", "name": "a", "distribution": None, "version": None, "events": ["init"]}
MANIFEST = {
    "schema": 1,
    "run_name": "first",
    "seed": 1,
    "command": ["engine-core", "train", "run.yaml"],
    "device": "cpu",
    "precision": "fp32",
    "versions": {},
    "config_file": "run.yaml",
    "config": {},
    "algorithms": [RECORD],
    "passes": [],
    "order": {"init": [PLACE]},
    "steps": {"init": {"given": ["A"]}},
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(folder, results=None, **changes):
    Path(folder).mkdir()
    Path(folder, "manifest.json").write_text(json.dumps({**MANIFEST, **changes}))
    if results is not None:
        Path(folder, "results.json").write_text(json.dumps(results))


def run(*arguments):
    return CliRunner().invoke(main, arguments)


def without(key):
    return json.dumps({k: v for k, v in MANIFEST.items() if k != key})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "it is nested too deeply"),
        ("[" * 101 + "]" * 101, "it is nested deeper than 100"),
        (without("order"), "order: Field required"),
        (json.dumps({**MANIFEST, "seed": "x" * 9999}), "seed: Input should be a valid integer, "),
        (json.dumps({**MANIFEST, "versions": {"\x1b[31m": 1}}), r"versions.\x1b[31m: Input should be a valid string"),
        (
            json.dumps({**MANIFEST, "steps": {"init": {"given": ["A", "B"]}}}),
            "steps of 'init': 'B' is not both among the algorithms and in an order",
        ),
        (
            json.dumps({**MANIFEST, "steps": {"init": {"given": ["A"], "added": [{**RECORD, "algorithm": "C"}]}}}),
            "steps of 'init': 'C' is not both among the algorithms and in an order",
        ),
    ],
)
def test_a_damaged_manifest_is_one_short_message(text, message):
    Path("file.json").write_text(text)
    result = run("diff", "file.json", "file.json")
    assert (result.exit_code, len(result.output) < 200) == (2, True)
    assert result.output.startswith(f"Error: 'file.json' is damaged: {message}")


def test_results_that_are_nested_too_deep():
    write("a", results={})
    Path("a/results.json").write_text("[" * 100_000)
    result = run("diff", "a", "a")
    assert (result.exit_code, result.output) == (2, "Error: 'a/results.json' is damaged: it is nested too deeply\n")


def test_json_has_no_bare_nan():
    write("a", results={"loss": float("nan"), "eval": 1.0})
    write("b", results={"loss": 1.0, "eval": float("-inf")})

    def refuse(constant):
        raise AssertionError(constant)

    assert json.loads(run("diff", "a", "b", "--json").output, parse_constant=refuse) == [
        {"section": "results", "key": "loss", "a": "NaN", "b": 1.0},
        {"section": "results", "key": "eval", "a": 1.0, "b": "-Infinity"},
    ]


def test_differences_are_shown_without_control_characters():
    write("a", config={"k\x1b[31m": "one\ntwo\x07"})
    write("b", config={"k\x1b[31m": 1}, order={"init": [{**PLACE, "algorithm": "B\x9b"}]})
    assert format_differences(compare("a", "b")) == (
        "config\n  k\\x1b[31m  one\\ntwo\\x07 -> 1\n\norder\n  init  A -> B\\x9b"
    )


def test_an_order_is_shown_without_control_characters():
    names = [{**RECORD, "algorithm": name} for name in ("A\x1b[31m", "\u202eB")]
    given = {"init": {"given": ["A\x1b[31m", "\u202eB"]}}
    skipped = [{"what": "x\x07", "why": "y", "events": ["init"]}]
    write("a", algorithms=names, steps=given, skipped=skipped, warnings=["w\x1b]0;"])
    explained = [["explain", "a", *more] for more in ([], ["--skipped"], ["--why", "A\x1b[31m", "\u202eB"])]
    for words in (*explained, ["picture", "a"], ["picture", "a", "--event", "init", "--svg"]):
        result = run(*words)
        assert (result.exit_code, set("\x1b\x07\u202e") & set(result.output)) == (0, set())
    assert run("explain", "a").output.splitlines()[:2] == [
        "init",
        "  1. A\\x1b[31m  before \\u202eB: list position",
    ]
