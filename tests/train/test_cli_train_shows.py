"""What `engine-core train` prints: where, how much, as text or as JSON lines."""

import inspect
import json
import logging
import re

import pytest
from click.testing import CliRunner

from engine_core.cli import main
from engine_core.cli.train import result_lines
from engine_core.run import RunResults

from .leaving import DOZES, cli

__all__ = ["cli"]
pytestmark = pytest.mark.filterwarnings("default:warned")

CONFIG = DOZES + "metrics: {nan: {target: 'left:Nan'}}\n"
TALKS = CONFIG + "callbacks: [{target: 'left:Talk'}]\n"
HEADER = """\
model       Linear
parameters  15 trainable, 15 in all
device      cpu
precision   fp32
data        ? samples, 6 batches
eval eval   ? samples, 1 batch
algorithms  Doze (left-plugin 1.2)
optimizer   SGD (lr 0.1)
duration    12 steps (2ep)
seed        7
folder      out
"""


@pytest.fixture
def run(cli, tmp_path, monkeypatch):
    """Return `run(*options, config=...)`, the command with its two streams apart."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    # click 8.1 mixes the streams unless it is told not to, and later ones know no such argument
    separate = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}

    def run(*options, config=CONFIG):
        (tmp_path / "run.yaml").write_text(config)
        return CliRunner(**separate).invoke(main, ["train", "run.yaml", "--out", "out", *options])

    return run


def plain(text):
    """Return the text with `#` for each number that depends on the machine."""
    return re.sub(r"\d+\.\d+|\d+:\d\d|(?<=samples/s  )[\d,]+", "#", text)


def test_header_and_rows_go_to_stderr_and_the_table_to_stdout_as_plain_text(run):
    result = run()
    assert result.stderr.startswith(HEADER)
    assert plain(result.stderr.removeprefix(HEADER)).replace("*", "") == (
        "epoch 1/2  train/loss #  eval/loss #  eval/nan nan  #\nepoch 2/2  train/loss #  eval/loss #  eval/nan nan  #\n"
    )
    table = re.sub(r"# +best #  epoch \d, batch \d+", "#  best #  epoch E, batch B", plain(result.stdout))
    assert table[: table.index("load it")] == (
        "results\n"
        "  eval/loss         #  best #  epoch E, batch B\n"
        "  eval/nan          nan\n"
        "  train/loss        #\n"
        "  train/loss_epoch  #\n"
        "  train/lr/0        #\n"
        "algorithms\n"
        "  Doze  2 events  7x\n"
        "time\n"
        "  trained    2 epochs, 12 batches, 96 samples\n"
        "  time       # s\n"
        "  samples/s  #\n"
        "model: out/model.safetensors\n"
    )
    assert "\x1b" not in result.output
    assert "\r" not in result.output


def test_the_results_have_commas_in_large_numbers_no_plural_of_one_and_no_control_characters():
    results = RunResults(
        *("out", {"eval/loss": 0.5, "[red]\x1b[2J": 3}, 75.4, 1, 1200, 1, 6400.0),
        algorithms={"MixUp/AFTER_DATALOADER": 300, "MixUp/BEFORE_LOSS": 76, "Freeze/BATCH_START": 1, "Doze": 0},
        finished=["Freeze"],
        best={"eval/loss": {"value": 0.125, "step": 12_000, "epoch": 1000}},
    )
    assert result_lines(results) == [
        "results",
        "  [red]\\x1b[2J  3",
        "  eval/loss     0.5  best 0.125  epoch 1,000, batch 12,000",
        "algorithms",
        "  MixUp   2 events  376x",
        "  Freeze  1 event   1x    finished",
        "  Doze    0 events  0x",
        "time",
        "  trained    1 epoch, 1,200 batches, 1 sample",
        "  time       1:15",
        "  samples/s  6,400",
    ]


def test_quiet_leaves_stdout_empty_and_shows_warnings_only(run):
    result = run("--quiet", config=TALKS)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "printed\nwarning: warned\n"


ALL_OF_IT = ["warning: warned", *(f"{level}: own: said at {level}" for level in ("debug", "info", "error"))]


@pytest.mark.parametrize(
    ("level", "said"), [("debug", ALL_OF_IT), ("warning", [ALL_OF_IT[0], ALL_OF_IT[3]]), ("error", ALL_OF_IT[3:])]
)
def test_the_log_level_decides_what_stderr_shows(run, level, said):
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    result = run("--log-level", level, config=TALKS)
    lines = result.stderr.splitlines()
    assert [line for line in lines if line in ALL_OF_IT] == said
    assert (HEADER in result.stderr, len(lines) > len(said)) == (level == "debug", level == "debug")
    assert result.stdout.startswith("printed\nresults\n")
    assert (root.level, list(root.handlers)) == before


def facts(result):
    return [json.loads(line, parse_constant=pytest.fail) for line in result.stdout.splitlines()]


def test_json_prints_one_object_a_line_and_no_text(run):
    result = run("--json", config=TALKS)
    start, first, last, end = facts(result)
    assert [list(fact)[:4] for fact in (start, first, last, end)] == [["kind", "step", "epoch", "seconds"]] * 4
    plain = {"kind": "start", "step": 0, "epoch": 0, "model": "Linear", "device": "cpu", "precision": "fp32"}
    plain |= {"ranks": None, "seed": 7, "folder": "out"}
    assert {name: value for name, value in start.items() if name != "seconds"} == {
        **plain,
        "parameters": {"trainable": 15, "all": 15},
        "data": {"samples": None, "batches": 6},
        "eval": {"eval": {"samples": None, "batches": 1}},
        "algorithms": [{"algorithm": "Doze", "distribution": "left-plugin", "version": "1.2"}],
        "optimizer": [{"name": "SGD", "lr": [0.1]}],
        "duration": {"max_duration": "2ep", "epochs": 2, "steps": 12},
    }
    assert list(first) == ["kind", "step", "epoch", "seconds", "train_loss", "metrics", "best", "improved"]
    assert (first["kind"], first["step"], first["epoch"], first["metrics"]["eval/nan"]) == ("evaluation", 6, 1, None)
    assert first["best"] == {"eval/loss": {"value": first["metrics"]["eval/loss"], "step": 6, "epoch": 1}}
    assert last["step"] == 12
    ended = {"kind": "end", "step": 12, "epoch": 2, "status": "finished", "exit_code": 0, "folder": "out"}
    assert {name: end[name] for name in ended} == ended
    assert end["results"]["eval/loss"] == {"last": last["metrics"]["eval/loss"], "best": last["best"]["eval/loss"]}
    assert (end["model"], end["average"], end["resume"]) == ("out/model.safetensors", None, None)
    assert end["checkpoint"].endswith("out/checkpoints/ep2-ba12")
    assert result.stderr == "printed\nwarning: warned\n"


def test_json_says_that_a_run_failed(run):
    result = run("--json", config=CONFIG + "callbacks: [{target: 'left:Bad', args: {at: 1}}]\n")
    start, end = facts(result)
    assert (type(result.exception), start["kind"]) == (ZeroDivisionError, "start")
    assert [end[name] for name in ("kind", "step", "status", "exit_code")] == ["fail", 1, "failed", 1]


def test_quiet_and_json_contradict_each_other(run, tmp_path):
    result = run("--quiet", "--json")
    assert (result.exit_code, (tmp_path / "out").exists()) == (2, False)
    assert "give either --quiet, which leaves stdout empty, or --json, not both" in result.stderr


@pytest.mark.parametrize(("given", "is_shown"), [("false", False), ("lines", True)])
def test_a_config_may_have_no_progress(run, given, is_shown):
    result = run(config=CONFIG.replace("seed: 7", f"seed: 7, progress_bar: {given}"))
    assert (result.stderr.startswith(HEADER), bool(result.stderr)) == (is_shown, is_shown)
