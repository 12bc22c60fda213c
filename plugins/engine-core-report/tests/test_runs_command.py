"""`engine-core runs`: which runs it finds, its table, JSON and CSV, and what it refuses."""

import copy
import csv
import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from engine_core.cli import main

from .left_runs import MANIFEST, RESULTS, write_run
from .test_report_hostile import HOSTILE


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Ended(NamedTuple):
    """What a command left; click's own runner gives stdout and stderr apart only since 8.2."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self):
        return self.stdout + self.stderr


def run(*arguments, columns=80):
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as end:
            main(["runs", *arguments], prog_name="engine-core")
    return Ended(end.value.code or 0, out.getvalue(), err.getvalue())


def leave(folder, *, seed=1, lr=0.1, **values):
    """Leave a run with these last values, `a__b` for `a/b`."""
    manifest = copy.deepcopy({**MANIFEST, "seed": seed})
    manifest["config"]["optimizer"] = {"target": "torch.optim.SGD", "args": {"lr": lr}}
    line = {"step": 4, "seconds": 4, **{name.replace("__", "/"): value for name, value in values.items()}}
    return write_run(folder, manifest=manifest, metrics=[line], events=None, results=None, timing=None)


def test_without_arguments_the_runs_in_runs_are_shown_by_name_and_the_rest_is_passed_over():
    leave("runs/b", eval__loss=0.25)
    leave("runs/a", eval__loss=0.5, seed=2)
    Path("runs/empty").mkdir()
    Path("runs/notes.txt").write_text("mine")
    Path("runs/link").symlink_to("a")
    Path("runs/nowhere").symlink_to("none")
    result = run()
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "                 eval/loss",
        "run  status      best       last  seed",
        "a    unfinished  0.5        0.5   2",
        "b    unfinished  0.25       0.25  1",
    ]


def test_a_run_in_runs_that_cannot_be_read_is_told_and_the_others_are_shown():
    leave("runs/a", eval__loss=0.5)
    write_run("runs/newer", manifest={**MANIFEST, "schema": 2})
    write_run("runs/damaged")
    Path("runs/damaged/manifest.json").write_text("{")
    result = run()
    assert result.exit_code == 0
    assert result.stdout.splitlines()[2:] == ["a    unfinished  0.5        0.5"]
    damaged, newer = result.stderr.splitlines()
    assert damaged.startswith("warning: left out: 'runs/damaged/manifest.json' is damaged")
    assert newer.startswith("warning: left out: 'runs/newer/manifest.json' has schema 2")


def test_runs_alike_are_told_apart_by_their_paths_and_stay_as_given():
    for folder in ("x/run", "y/run", "other"):
        leave(folder, eval__loss=0.5)
    lines = run("y/run", "other", "x/run/manifest.json", "x/run").stdout.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["y/run", "other", "x/run"]


def leave_many():
    leave("runs/best", seed=3, lr=0.5, eval__accuracy=0.98765432, eval__loss=0.25, train__loss=0.125)
    leave("runs/nan", seed=2, lr=0.5, eval__accuracy=None, eval__loss=0.5, train__loss=0.25)
    leave("runs/none", seed=1, lr=0.5, train__loss=0.25)
    leave("runs/second-with-quite-a-long-name-that-ends-in-1", seed=1, eval__accuracy=0.5, train__loss=12345)


def test_a_table_has_the_ranked_value_first_then_what_differs_and_the_columns_that_fit():
    leave_many()
    result = run("--by", "eval/accuracy")
    assert (result.exit_code, result.stdout.splitlines()) == (
        0,
        [
            "                                            eval/accuracy                 train/",
            "run                             status      best           last     seed  loss",
            "best                            unfinished  0.98765        0.98765  3     0.125",
            "second-with-qu...hat-ends-in-1  unfinished  0.5            0.5      1     12,345",
            "nan                             unfinished  -              NaN      2     0.25",
            "none                            unfinished  -              -        1     0.25",
        ],
    )
    assert result.stderr.splitlines() == [
        "ranked by eval/accuracy: higher is better, unless you say --lower",
        "2 more columns in --csv and --json: optimizer.args.lr and eval/loss",
    ]
    wide = run("--by", "eval/accuracy", columns=120)
    titles, labels, first = (line.split() for line in wide.stdout.splitlines()[:3])
    assert titles == ["eval/accuracy", "optimizer.args.", "eval/loss", "train/"]
    assert labels == ["run", "status", "best", "last", "seed", "lr", "best", "last", "loss"]
    assert first == ["best", "unfinished", "0.98765", "0.98765", "3", "0.5", "0.25", "0.25", "0.125"]
    assert len(wide.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("columns", "arguments", "first"),
    [(80, [], ["eval/score-0", "best"]), (120, ["--by", "own/value-3", "--higher"], ["own/", "value-3"])],
)
def test_thirty_runs_of_fifteen_values_fit_the_terminal_in_one_line_each(columns, arguments, first):
    for number in range(30):
        values = {f"own__value-{m}": number / 3 + m for m in range(5)}
        values |= {f"eval__score-{m}": number / 7 + m for m in range(10)}
        leave(f"runs/digits-20260101-0000{number:02}-1a2b", seed=number, lr=number / 10, **values)
    result = run(*arguments, columns=columns)
    lines = result.stdout.splitlines()
    assert len(lines) == 32
    assert max(map(len, [*lines, *result.stderr.splitlines()])) <= columns
    assert [lines[0].split()[0], lines[1].split()[2]] == first
    assert [line.split()[0] for line in lines[2:]] == sorted(
        (line.split()[0] for line in lines[2:]), reverse=bool(arguments)
    )


def test_json_has_this_form_ranked_and_with_null_for_what_is_missing():
    write_run("runs/one")
    leave("runs/nan", seed=2, eval__loss=None, train__loss=0.125)
    leave("runs/none", seed=2, train__loss=0.25)
    result = run("--by", "eval/loss", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    missing = {"last": None, "best": None}
    changed = {"optimizer.target": "torch.optim.SGD", "optimizer.args.lr": 0.1}
    assert json.loads(result.stdout, parse_constant=pytest.fail) == [
        {
            "run": "one",
            "status": "finished",
            "values": {
                "train/loss": {"last": 0.5, "best": None},
                "eval/loss": {"last": 0.25, "best": RESULTS["best"]["eval/loss"]},
                "train/lr/0": {"last": 0.25, "best": None},
            },
            "settings": {"seed": 1, **dict.fromkeys(changed)},
        },
        {
            "run": "nan",
            "status": "unfinished",
            "values": {
                "train/loss": {"last": 0.125, "best": None},
                "eval/loss": {"last": "NaN", "best": None},
                "train/lr/0": missing,
            },
            "settings": {"seed": 2, **changed},
        },
        {
            "run": "none",
            "status": "unfinished",
            "values": {"train/loss": {"last": 0.25, "best": None}, "eval/loss": missing, "train/lr/0": missing},
            "settings": {"seed": 2, **changed},
        },
    ]


def test_csv_has_a_column_for_the_best_and_the_last_of_each_value_with_all_digits():
    leave("runs/one", lr=[0.5, "a,b"], eval__loss=0.1234567890123, note='said "so", twice')
    leave("runs/two", lr=None, eval__loss=None)
    result = run("--csv")
    changed = ["optimizer.args.lr[0]", "optimizer.args.lr[1]", "optimizer.args.lr"]
    assert list(csv.reader(io.StringIO(result.stdout))) == [
        ["run", "status", "eval/loss best", "eval/loss last", "note best", "note last", *changed],
        ["one", "unfinished", "0.1234567890123", "0.1234567890123", "", 'said "so", twice', "0.5", "a,b", ""],
        ["two", "unfinished", "", "nan", "", "", "", "", ""],
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], "'none' does not exist"),
        (["empty"], "holds no manifest.json"),
        (["--by", "eval/los"], "none of the runs has a value 'eval/los'; did you mean 'eval/loss'?"),
        (["--by", "train/lr/0"], "neither a metric nor the name says which 'train/lr/0' is better: say --lower or"),
        (["--lower"], "--lower and --higher say how to rank: give --by NAME too"),
    ],
)
def test_what_cannot_be_is_refused_with_exit_code_2(arguments, message):
    write_run("runs/one")
    Path("empty").mkdir()
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


@pytest.mark.parametrize("inside", [None, [], ["junk"]])
def test_where_there_are_no_runs_it_says_so_with_exit_code_2(inside):
    for name in [] if inside is None else ["", *inside]:
        Path("runs", name).mkdir()
    result = run()
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: there are no runs ")
    assert "give the folders of runs" in result.stderr


@pytest.mark.parametrize("text", HOSTILE[-4:])
def test_hostile_names_and_values_are_escaped(text):
    encoding = sys.getfilesystemencoding()
    name = text.encode(encoding, "ignore").decode(encoding).replace("/", "-")
    for seed in (1, 2):
        manifest = {**MANIFEST, "seed": seed, "precision": f"{text}{seed}", "config": {text: {text: seed}}}
        line = {"step": 1, "seconds": 1, f"eval/{text}": seed, text: f"{text}\n"}
        write_run(f"runs/{name}{seed}", manifest=manifest, metrics=[line], events=None, results=None)
    for arguments in ([], ["--by", f"eval/{text}", "--lower"], ["--csv"], ["--json"], ["--by", f"{text}?"]):
        result = run(*arguments, columns=200)
        assert result.exit_code == (2 if arguments[-1:] == [f"{text}?"] else 0)
        assert all(character.isprintable() or character == "\n" for character in result.output)
    assert [" unfinished  " in line for line in run(columns=500).stdout.splitlines()][-3:] == [False, True, True]
    assert len(run("--csv").stdout.splitlines()) == 3


def test_wide_characters_are_as_wide_as_terminals_show_them():
    leave("runs/a", lr="日本語日本語", own__kept=1, own__more=3)
    leave("runs/b", lr="one", own__kept=2, own__more=4)
    assert run().stdout.splitlines()[-2:] == [
        "a    unfinished  1     日本語日本語     3",
        "b    unfinished  2     one              4",
    ]


def test_lower_and_higher_overrule_the_name():
    leave_many()
    first = [run("--by", "eval/accuracy", way).stdout.splitlines()[2].split()[0] for way in ("--lower", "--higher")]
    assert first == ["second-with-qu...hat-ends-in-1", "best"]
    told = run("--by", "eval/accuracy", "--lower").stderr.splitlines()[0]
    assert told == "ranked by eval/accuracy: lower is better, unless you say --higher"
