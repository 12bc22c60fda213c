"""`engine-core diff`: what differs between two runs, from what they wrote; also where no run has written it."""

import itertools
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.cli import main
from engine_core_report.diff import compare, format_differences, who_moved

ALGORITHMS = ("A", "B", "C")
MANIFEST = {
    "schema": 1,
    "run_name": "first",
    "seed": 1,
    "started": "2020-01-01T00:00:00+0000",
    "command": ["/bin/engine-core", "train", "run.yaml", "--out", "first"],
    "device": "cpu",
    "precision": "fp32",
    "versions": {"python": "3.11.7", "some-plugin": "1.0"},
    "config_file": "run.yaml",
    "config": {"algorithms": [{"name": "a", "args": {"keep": 0.5}}], "trainer": {"seed": 1, "run_name": "first"}},
    "algorithms": [],
    "passes": [],
    "order": {"init": [{"algorithm": name, "name": name.lower(), "why": "list position"} for name in ALGORITHMS]},
    "steps": {},
}
RESULTS = {
    "train/loss": 0.25,
    "time/a/scoring_fraction": 0.5,
    "seconds": 1.5,
    "samples_per_second": 10.0,
    "algorithms": {"A/INIT": 1},
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("a")


def write(folder, results=RESULTS, **changes):
    Path(folder).mkdir()
    Path(folder, "manifest.json").write_text(json.dumps({**MANIFEST, **changes}))
    if results is not None:
        Path(folder, "results.json").write_text(json.dumps(results))


def run(*arguments, command="diff"):
    return CliRunner().invoke(main, [command, *arguments])


def differences(**changes):
    write("b", **changes)
    return [(d.section, d.key, d.a, d.b) for d in compare("a", "b")]


def test_a_run_equals_itself():
    result = run("a", "a/manifest.json")
    assert (result.exit_code, result.output) == (0, "")


def test_names_and_times_are_not_differences():
    assert (
        differences(
            run_name="second",
            started="2021-02-03T00:00:00+0000",
            command=["engine-core", "train", "other.yaml", "--out=second", "--profile", "trace.json"],
            config_file="other.yaml",
            config={**MANIFEST["config"], "trainer": {"seed": 1, "run_name": "second"}},
            results={**RESULTS, "seconds": 9.0, "samples_per_second": 1.0, "time/a/scoring_fraction": 0.6},
        )
        == []
    )


def test_settings_versions_and_results():
    assert differences(
        seed=2,
        device="cuda",
        precision="bf16",
        command=["engine-core", "train", "run.yaml", "--seed", "2"],
        versions={"python": "3.12.1", "other-plugin": "2.0"},
        results={**RESULTS, "train/loss": 0.5, "algorithms": {"A/INIT": 2}},
    ) == [
        ("setting", "seed", 1, 2),
        ("setting", "device", "cpu", "cuda"),
        ("setting", "precision", "fp32", "bf16"),
        ("setting", "command", "train", "train --seed 2"),
        ("versions", "python", "3.11.7", "3.12.1"),
        ("versions", "some-plugin", "1.0", None),
        ("versions", "other-plugin", None, "2.0"),
        ("results", "train/loss", 0.25, 0.5),
        ("results", "algorithms.A/INIT", 1, 2),
    ]


def test_the_config_by_key_path():
    config = {"algorithms": [{"name": "a", "args": {"keep": 0.3}}, {"name": "b"}], "trainer": {"seed": 1}, "order": {}}
    assert differences(config=config) == [
        ("config", "algorithms", ["a"], ["a", "b"]),
        ("config", "algorithms[a].args.keep", 0.5, 0.3),
        ("config", "order", None, {}),
    ]


def config_differences(a, b):
    write("one", config=a)
    write("other", config=b)
    return [(d.key, d.a, d.b) for d in compare("one", "other")]


def test_an_inserted_entry_does_not_shift_the_others():
    one, two = {"name": "one", "args": {"p": 1}}, {"target": "here:Two", "args": {"q": 2}}
    new = {"name": "new", "args": {"keep": 0.5}}
    assert config_differences({"algorithms": [one, two]}, {"algorithms": [new, one, two]}) == [
        ("algorithms", ["one", "here:Two"], ["new", "one", "here:Two"]),
        ("algorithms[new].args.keep", None, 0.5),
    ]


def test_entries_of_one_name_are_counted():
    first, second = {"name": "a", "args": {"p": 1}}, {"name": "a", "args": {"p": 2}}
    assert config_differences({"metrics": [first, second]}, {"metrics": [first, {**second, "args": {"p": 3}}]}) == [
        ("metrics[a-2].args.p", 2, 3)
    ]


def test_true_is_not_1_but_1_is_1_point_0():
    write("one", config={"x": 1, "y": 1})
    write("other", config={"x": True, "y": 1.0})
    assert [(d.key, d.a, d.b) for d in compare("one", "other")] == [("x", 1, True)]


def order(*names):
    return [{"algorithm": name, "name": name.lower(), "why": "another reason"} for name in names]


def test_the_order_at_each_event_and_what_moved():
    write("b", order={"init": order("C", "A", "B"), "fit_end": order("A")})
    assert [(d.key, d.a, d.b, d.moved) for d in compare("a", "b")] == [
        ("init", ["A", "B", "C"], ["C", "A", "B"], ("C",)),
        ("fit_end", None, ["A"], ()),
    ]


def test_results_are_compared_if_both_have_them(capsys):
    assert differences(results=None) == []
    with pytest.raises(SystemExit, match="0"):
        main(["diff", "a", "b"])
    assert tuple(capsys.readouterr()) == ("", "b has no results.json: results are not compared\n")


def test_as_text():
    write("b", seed=2, order={"init": order("B", "C", "D")}, results={**RESULTS, "train/loss": 0.5})
    result = run("a", "b")
    assert result.exit_code == 1
    assert result.output == (
        "--- a\n"
        "+++ b\n"
        "\n"
        "setting\n"
        "  seed  1 -> 2\n"
        "\n"
        "order\n"
        "  init  A, B, C -> B, C, D\n"
        "\n"
        "results\n"
        "  train/loss  0.25 -> 0.5\n"
    )


def test_as_json():
    write("b", seed=2, order={"init": order("C", "A", "B")})
    result = run("a", "b", "--json")
    assert result.exit_code == 1
    assert json.loads(result.output) == [
        {"section": "setting", "key": "seed", "a": 1, "b": 2},
        {"section": "order", "key": "init", "a": ["A", "B", "C"], "b": ["C", "A", "B"], "moved": ["C"]},
    ]


@pytest.mark.parametrize(
    ("run_b", "message"),
    [
        ("aa", "Error: 'aa' does not exist; did you mean 'a'?\n"),
        (".", "Error: '.' holds no manifest.json: it is not a run's folder\n"),
        ("a/results.json", "Error: 'a/results.json' is not a run's manifest: it has no schema number or no run_name\n"),
    ],
)
def test_anything_but_a_run_is_one_message_and_exit_code_2(run_b, message):
    result = run("a", run_b)
    assert (result.exit_code, result.output) == (2, message)


def test_entries_that_changed_places_differ_only_in_that():
    one, two = {"name": "one", "args": {"p": 1}}, {"name": "two", "args": {"p": 2}}
    assert config_differences({"callbacks": [one, two]}, {"callbacks": [two, one]}) == [
        ("callbacks", ["one", "two"], ["two", "one"])
    ]


def test_entries_without_a_name_are_matched_by_position():
    assert config_differences({"x": [1, {"name": "a"}]}, {"x": [2, {"name": "b"}]}) == [
        ("x[0]", 1, 2),
        ("x[1].name", "a", "b"),
    ]


@pytest.mark.parametrize(
    ("text", "fault"), [("{", ", it is not JSON: "), ("[" * 100_000, ": it is nested too deeply\n")]
)
def test_damaged_results_are_one_message_and_exit_code_2(text, fault):
    write("b")
    Path("b/results.json").write_text(text)
    result = run("a", "b")
    assert result.exit_code == 2
    assert result.output.startswith(f"Error: 'b/results.json' is damaged{fault}")


RECORD = {"algorithm": "A", "name": "a", "distribution": None, "version": None, "events": ["init"]}
ONE = {
    **MANIFEST,
    "algorithms": [RECORD],
    "order": {"init": MANIFEST["order"]["init"][:1]},
    "steps": {"init": {"given": ["A"]}},
}


def without(key):
    return json.dumps({k: v for k, v in ONE.items() if k != key})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "it is nested too deeply"),
        ("[" * 101 + "]" * 101, "it is nested deeper than 100"),
        (without("order"), "order: Field required"),
        (json.dumps({**ONE, "seed": "x" * 9999}), "seed: Input should be a valid integer, "),
        (json.dumps({**ONE, "versions": {"\x1b[31m": 1}}), r"versions.\x1b[31m: Input should be a valid string"),
        (
            json.dumps({**ONE, "steps": {"init": {"given": ["A", "B"]}}}),
            "steps of 'init': 'B' is not both among the algorithms and in an order",
        ),
        (
            json.dumps({**ONE, "steps": {"init": {"given": ["A"], "added": [{**RECORD, "algorithm": "C"}]}}}),
            "steps of 'init': 'C' is not both among the algorithms and in an order",
        ),
    ],
)
def test_a_damaged_manifest_is_one_short_message(text, message):
    Path("file.json").write_text(text)
    result = run("file.json", "file.json")
    assert (result.exit_code, len(result.output) < 200) == (2, True)
    assert result.output.startswith(f"Error: 'file.json' is damaged: {message}")


def test_json_has_no_bare_nan():
    write("b", results={"loss": float("nan"), "eval": 1.0})
    write("c", results={"loss": 1.0, "eval": float("-inf")})
    assert json.loads(run("b", "c", "--json").output, parse_constant=pytest.fail) == [
        {"section": "results", "key": "loss", "a": "NaN", "b": 1.0},
        {"section": "results", "key": "eval", "a": 1.0, "b": "-Infinity"},
    ]


def test_differences_are_shown_without_control_characters():
    write("b", config={"k\x1b[31m": "one\ntwo\x07"})
    write("c", config={"k\x1b[31m": 1}, order={"init": order("B\x9b")})
    assert format_differences(compare("b", "c")) == (
        "config\n  k\\x1b[31m  one\\ntwo\\x07 -> 1\n\norder\n  init  A, B, C -> B\\x9b"
    )


def test_an_order_is_shown_without_control_characters():
    names = [{**RECORD, "algorithm": name} for name in ("A\x1b[31m", "\u202eB")]
    given = {"init": {"given": ["A\x1b[31m", "\u202eB"]}}
    skipped = [{"what": "x\x07", "why": "y", "events": ["init"]}]
    write("b", **{**ONE, "algorithms": names, "steps": given}, skipped=skipped, warnings=["w\x1b]0;"])
    explained = [["b", *more] for more in ([], ["--skipped"], ["--why", "A\x1b[31m", "\u202eB"])]
    pictures = [["b"], ["b", "--event", "init", "--svg"]]
    for command, words in [("explain", words) for words in explained] + [("picture", words) for words in pictures]:
        result = run(*words, command=command)
        assert (result.exit_code, set("\x1b\x07\u202e") & set(result.output)) == (0, set())
    assert run("b", command="explain").output.splitlines()[:2] == [
        "init",
        "  1. A\\x1b[31m  before \\u202eB: list position",
    ]


@settings(max_examples=60)
@given(st.lists(st.sampled_from("abcdef"), unique=True), st.lists(st.sampled_from("abcdef"), unique=True))
def test_as_few_as_possible_moved_and_the_rest_kept_their_order(before, after):
    moved = who_moved(before, after)
    common = [name for name in after if name in before]
    assert set(moved) <= set(common)
    stayed = [name for name in common if name not in moved]
    assert stayed == [name for name in before if name in stayed]
    kept = [
        size
        for size in range(len(common) + 1)
        for some in itertools.combinations(common, size)
        if list(some) == [name for name in before if name in some]
    ]
    assert len(stayed) == max(kept)


def test_of_two_neighbours_the_one_that_came_forward_has_moved():
    assert who_moved(["a", "b", "c"], ["b", "a", "c"]) == ["b"]
