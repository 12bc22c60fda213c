"""Runs beside each other: which one is the best, and what differs between them."""

import copy
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.errors import ArgumentError
from engine_core_report import RankedRun, Value, is_lower_better, rank_runs, read_run

from .left_runs import EVENTS, MANIFEST, RESULTS, write_run


def changed(path, value, of=MANIFEST):
    """Return a manifest with one value at a path such as `config.trainer.seed`."""
    manifest = copy.deepcopy(of)
    *above, last = path.split(".")
    place = manifest
    for key in above:
        place = place.setdefault(key, {})
    place[last] = value
    return manifest


def evaluated(folder, *values, name="eval/accuracy", manifest=MANIFEST):
    """Leave a run whose evaluations had these results."""
    lines = [{"step": step, "seconds": step, name: value} for step, value in enumerate(values, 1)]
    return read_run(write_run(folder, manifest=manifest, metrics=lines, events=None, results=None, timing=None))


def ranked(runs, by="eval/accuracy", **options):
    return [row.run for row in rank_runs(runs, by, **options)]


def test_a_run_has_the_last_and_the_best_of_each_value_and_what_differs(tmp_path):
    one = read_run(write_run(tmp_path / "one"))
    other = changed("config.optimizer.args.lr", 0.1, changed("seed", 2))
    other = read_run(
        write_run(tmp_path / "other", manifest=other, events=[], metrics=[{"step": 1, "seconds": 1, "train/loss": 3.0}])
    )
    assert rank_runs([one, other]) == [
        RankedRun(
            "one",
            "finished",
            {
                "train/loss": Value(0.5, None),
                "train/lr/0": Value(0.25, None),
                "eval/loss": Value(0.25, {"value": 0.125, "step": 2, "epoch": 1}),
            },
            {"seed": 1, "optimizer.args.lr": None},
        ),
        RankedRun(
            "other",
            "finished",
            {
                "train/loss": Value(3.0, None),
                "train/lr/0": Value(None, None),
                "eval/loss": Value(None, {"value": 0.125, "step": 2, "epoch": 1}),
            },
            {"seed": 2, "optimizer.args.lr": 0.1},
        ),
    ]


def test_what_differs_between_any_two_is_told_of_all(tmp_path):
    manifests = [changed("config.a.b", value) for value in (1, 1, True)]
    runs = [read_run(write_run(tmp_path / f"run{i}", manifest=m)) for i, m in enumerate(manifests)]
    assert [row.settings for row in rank_runs(runs)] == [{"a.b": 1}, {"a.b": 1}, {"a.b": True}]
    assert [row.settings for row in rank_runs(runs[:2])] == [{}, {}]
    newer = changed("order.init", [], changed("versions.python", "3.12.1"))
    newer = read_run(write_run(tmp_path / "newer", manifest=changed("command", ["engine-core", "train", "-q"], newer)))
    plain = read_run(write_run(tmp_path / "plain"))
    assert [row.settings for row in rank_runs([plain, newer])] == [{"command": "train"}, {"command": "train -q"}]
    assert rank_runs([]) == []


def test_the_best_value_ranks_and_the_last_where_there_is_no_best(tmp_path):
    early = evaluated(tmp_path / "early", 0.9, 0.1)
    late = evaluated(tmp_path / "late", 0.5, 0.6)
    assert ranked([late, early]) == ["early", "late"]
    falling = evaluated(tmp_path / "falling", 0.1, 0.9, name="train/accuracy")
    rising = evaluated(tmp_path / "rising", 1.0, 0.5, name="train/accuracy")
    assert ranked([rising, falling], "train/accuracy") == ["falling", "rising"]


@pytest.mark.parametrize(("name", "best"), [("eval/mse", "low"), ("eval/accuracy", "high")])
def test_the_name_says_what_is_better(tmp_path, name, best):
    runs = [evaluated(tmp_path / "low", 1.0, name=name), evaluated(tmp_path / "high", 2.0, name=name)]
    assert ranked(runs, name)[0] == best
    assert is_lower_better(runs, name) is (best == "low")


def test_a_config_overrules_the_name_and_an_argument_overrules_both(tmp_path):
    told = changed("config.results", {"higher": ["mse"]})
    runs = [evaluated(tmp_path / f"{v}", v, name="eval/mse", manifest=told) for v in (1, 3, 2)]
    assert ranked(runs, "eval/mse") == ["3", "2", "1"]
    assert ranked(runs, "eval/mse", lower=True) == ["1", "2", "3"]


def test_runs_that_disagree_on_what_is_better_are_not_ranked_without_a_word(tmp_path):
    told = changed("config.results", {"higher": ["mse"]})
    runs = [evaluated(tmp_path / "a", 1, name="eval/mse", manifest=told), evaluated(tmp_path / "b", 2, name="eval/mse")]
    with pytest.raises(ArgumentError, match="disagree on which 'eval/mse' is better: say --lower or --higher"):
        rank_runs(runs, "eval/mse")
    assert ranked(runs, "eval/mse", lower=True) == ["a", "b"]
    other = evaluated(tmp_path / "c", 2, name="eval/loss")
    assert ranked([runs[0], other], "eval/mse") == ["a", "c"]  # who has no such value is not asked


def test_a_value_without_a_direction_has_no_best_and_ranks_only_once_one_is_given(tmp_path):
    runs = [evaluated(tmp_path / f"{v}", v, v + 1, name="eval/gap") for v in (2, 1)]
    assert rank_runs(runs)[0].values["eval/gap"] == Value(3, None)
    with pytest.raises(ArgumentError, match=r"neither a metric nor the name says which 'eval/gap' .*: say --lower or"):
        rank_runs(runs, "eval/gap")
    assert ranked(runs, "eval/gap", lower=True) == ["1", "2"]
    assert rank_runs(runs, "eval/gap", lower=True)[0].values["eval/gap"].best["value"] == 1
    own = changed("higher_is_better", {"gap": False})
    own = evaluated(tmp_path / "own", 1.5, 4, name="eval/gap", manifest=own)
    assert ranked([*runs, own], "eval/gap") == ["1", "own", "2"]  # older runs did not ask the metric


def test_where_the_rule_is_overruled_the_best_is_found_anew_with_all_digits(tmp_path):
    run = evaluated(tmp_path / "run", 0.3, 0.123456789, None, 0.2)
    assert rank_runs([run])[0].values["eval/accuracy"].best == {"value": 0.3, "step": 1, "epoch": None}
    anew = {"value": 0.123456789, "step": 2, "epoch": None}
    assert rank_runs([run], "eval/accuracy", lower=True)[0].values["eval/accuracy"].best == anew
    noted = read_run(write_run(tmp_path / "noted"))
    assert rank_runs([noted], "eval/loss", lower=True)[0].values["eval/loss"].best == RESULTS["best"]["eval/loss"]
    lost = read_run(write_run(tmp_path / "lost", metrics=None))
    assert rank_runs([lost], "eval/loss", lower=False)[0].values["eval/loss"] == Value(None, None)


def test_an_unknown_name_is_refused_with_the_nearest(tmp_path):
    runs = [evaluated(tmp_path / "run", 0.5)]
    for lower in (None, True):
        with pytest.raises(ArgumentError, match="has a value 'eval/acuracy'; did you mean 'eval/accuracy'"):
            rank_runs(runs, "eval/acuracy", lower=lower)


def test_the_latest_evaluation_of_a_run_that_trains_has_its_best(tmp_path):
    best = {"eval/loss": {"value": 0.125, "step": 2, "epoch": 1}, "eval/f1": None}
    told = {"kind": "evaluation", "step": 2, "epoch": 1, "seconds": 2, "best": best}
    run = read_run(write_run(tmp_path / "run", results=None, events=[*EVENTS[:2], told]))
    (row,) = rank_runs([run])
    assert (row.status, row.values["eval/loss"].best) == ("unfinished", best["eval/loss"])


RESULT = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False, width=32), st.sampled_from([None, math.inf, "missing"])
)


def place_of(result):
    """Return where a result belongs: numbers, then what is not one, then nothing."""
    return 2 if result == "missing" else 1 if result in (None, math.inf) else 0


@settings(max_examples=25, deadline=None)
@given(results=st.lists(RESULT, min_size=1, max_size=6).filter(lambda found: found != ["missing"] * len(found)))
def test_a_ranking_is_a_total_order_whose_reverse_turns_numbers_round_and_nothing_else(results):
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            evaluated(Path(folder, f"{i}"), 0.0, name="eval/other")
            if result == "missing"
            else evaluated(Path(folder, f"{i}"), result)
            for i, result in enumerate(results)
        ]
        ascending, descending = (list(map(int, ranked(runs, lower=lower))) for lower in (True, False))
        backwards = list(map(int, ranked(runs[::-1], lower=True)))
    numbers = [i for i in ascending if place_of(results[i]) == 0]
    assert sorted(ascending) == sorted(descending) == list(range(len(results)))
    for order in (ascending, descending, backwards):
        places = [place_of(results[i]) for i in order]
        assert places == sorted(places)
    assert [results[i] for i in numbers] == sorted(results[i] for i in numbers)
    assert [results[i] for i in descending[: len(numbers)]] == [results[i] for i in reversed(numbers)]
    assert descending[len(numbers) :] == ascending[len(numbers) :]
    assert [results[i] for i in backwards[: len(numbers)]] == [results[i] for i in numbers]  # whatever is given first
