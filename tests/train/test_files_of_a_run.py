"""The files of a run: touched by no other, written whole, and read with care whatever stands in their places."""

import csv
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

from engine_core import Callback
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import CheckpointError, DurationWarning
from engine_core.loggers.run_files import RunFiles

from .leaving import CONFIG, cli, read, train
from .parts import batches, linear, trainer

__all__ = ["cli", "train"]
linux = pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files as Linux does")


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class Notes(Callback):
    def init(self, state, logger):
        logger.log_metrics({"model/parameters": 4})


@pytest.mark.parametrize("name", ["model.safetensors", "model-average.safetensors", "metrics.csv", "manifest.json"])
@pytest.mark.parametrize("resumes", [[], ["--autoresume"]])
def test_a_file_that_no_run_wrote_is_named_and_everything_stays(train, tmp_path, name, resumes):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("7 billion weights")
    done = train(*resumes)
    assert done.exit_code == 2
    assert f"'out' is not the folder of a run, and holds '{name}', which is left as it is" in done.output
    assert files_in(tmp_path / "out") == {name: b"7 billion weights"}


def test_a_model_of_others_beside_the_checkpoints_of_a_program_stays(train, tmp_path):
    kept = "callbacks: [{name: checkpoint_saver, args: {folder: kept, interval: 1ba}}]\n"
    assert train("--no-checkpoints", config=CONFIG + kept).exit_code == 0
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "model.safetensors").write_text("7 billion weights")
    done = train("--no-checkpoints", "--autoresume", "--out", "elsewhere", config=CONFIG + kept)
    assert done.exit_code == 2
    assert "'elsewhere' is not the folder of a run, and holds 'model.safetensors'" in done.output
    assert files_in(tmp_path / "elsewhere") == {"model.safetensors": b"7 billion weights"}


def test_another_run_without_checkpoints_is_not_replaced_by_autoresume(train, tmp_path):
    assert train("--no-checkpoints").exit_code == 0
    before = files_in(tmp_path / "out")
    for options in (["--set", "optimizer.args.lr=0.5"], ["--max-duration", "1ep"]):
        done = train("--autoresume", *options)
        assert (done.exit_code, "'out' holds another run" in done.output) == (2, True)
    assert files_in(tmp_path / "out") == before


@pytest.mark.filterwarnings("ignore:fit.. has nothing to do")
def test_a_finished_run_that_is_started_again_changes_nothing(train, tmp_path):
    assert train().exit_code == 0
    before = files_in(tmp_path / "out")
    again = train("--autoresume")
    assert again.exit_code == 0
    assert {name for name, data in files_in(tmp_path / "out").items() if before.get(name) != data} == set()


@pytest.mark.filterwarnings("ignore:fit.. has nothing to do")
def test_one_that_was_cut_off_after_its_last_checkpoint_leaves_the_rest(train, tmp_path):
    assert train().exit_code == 0
    before = files_in(tmp_path / "out")
    for name in ("results.json", "model.safetensors", "metrics.csv"):
        (tmp_path / "out" / name).unlink()
    assert train("--autoresume").exit_code == 0
    after = files_in(tmp_path / "out")
    same = ("model.safetensors", "metrics.csv", "metrics.jsonl")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert read(tmp_path / "out" / "results.json")["batches"] == 8


@pytest.mark.filterwarnings("ignore::engine_core.errors.CheckpointWarning")
def test_each_attempt_has_a_manifest_and_the_latest_counts(train, tmp_path):
    assert train().exit_code == 0
    done = train("--autoresume", "--max-duration", "3ep", "--set", "eval_data.dev.args.batches=2")
    assert done.exit_code == 0
    told = [read(tmp_path / "out" / name)["config"] for name in ("manifest-0.json", "manifest.json")]
    assert [config["trainer"]["max_duration"] for config in told] == ["2ep", "3ep"]


@pytest.mark.filterwarnings("always::engine_core.errors.CheckpointWarning")
def test_other_evaluation_data_are_a_difference(train):
    assert train().exit_code == 0
    done = train("--autoresume", "--max-duration", "3ep", "--set", "eval_data.dev.args.batches=2")
    assert "warning: this run differs from the one that was saved: the config's eval_data is {'dev': " in done.output


@pytest.mark.parametrize("why", ["a stop", None])
def test_why_a_run_stopped_is_saved(tmp_path, why):
    class Stop(Callback):
        def batch_end(self, state, logger):
            if state.timestamp.batch == 2:
                state.stop_training(why)

    for resumes in (False, True):
        made = trainer(batches(8, 8, 8), callbacks=[Stop(), CheckpointSaver(tmp_path, "2ba")], autoresume=resumes)
        with made, pytest.warns(DurationWarning) if resumes else nullcontext():
            made.fit()
        assert (made.state.loop.stop_requested, made.state.loop.stop_reason, made.state.timestamp.batch) == (
            True,
            why,
            2,
        )


def test_an_attempt_that_is_refused_touches_no_file_of_the_run(tmp_path):
    def made(**settings):
        saver = CheckpointSaver(tmp_path / "checkpoints", "2ba")
        return trainer(batches(4, 4, 4, 4), callbacks=[Notes(), saver], loggers=RunFiles(tmp_path), **settings)

    with made() as first:
        first.fit("3ba")
        before = files_in(tmp_path)
        with pytest.raises(CheckpointError, match="is in use by another run"), made(autoresume=True) as second:
            second.fit()
        assert files_in(tmp_path) == before
    before = files_in(tmp_path)
    with pytest.raises(CheckpointError, match="the weights are another model's"):
        made(model=nn.Linear(4, 2), autoresume=True)
    assert files_in(tmp_path) == before


HARMFUL = {
    "long": "x" * 200_000,
    "name \udc80": 1.5,
    "text": "\ud800 \x00",
    "step": "two",
    "seconds": "three",
    "large": 10**5000,
    "sparse": torch.ones(2).to_sparse(),
    "pairs": {(1, 2): [float("nan"), 1.0]},
    "norms": torch.tensor([float("nan"), float("inf"), 1.0]),
}
HARMFUL["itself"] = [HARMFUL]


@pytest.mark.filterwarnings("ignore:fit.. has nothing to do")
def test_nothing_that_is_logged_harms_a_run(tmp_path):
    class Logs(Callback):
        def batch_end(self, state, logger):
            logger.log_metrics(HARMFUL)

    def made(**settings):
        saver = CheckpointSaver(tmp_path / "checkpoints", "2ba")
        return trainer(batches(4, 4, 4, 4), callbacks=[Logs(), saver], loggers=RunFiles(tmp_path), **settings)

    with made() as first:
        first.fit("3ba")
    with made(autoresume=True) as second:
        second.fit()

    def refuse(name):
        raise ValueError(f"{name} is not JSON")

    text = (tmp_path / "metrics.jsonl").read_text()
    lines = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    assert [line["norms"] for line in lines if "norms" in line] == [[None, None, 1.0]] * 4
    assert {type(line["step"]) for line in lines} == {int}
    assert {type(line["seconds"]) for line in lines} == {float}
    assert [line["large"] for line in lines if "large" in line] == ["<int>"] * 4
    former = csv.field_size_limit(2**20)
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(line.replace("\0", "") for line in file))
    csv.field_size_limit(former)
    assert [int(row["step"]) for row in rows] == [0, 1, 2, 3, 4][-len(rows) :]
    assert {len(row) for row in rows} == {len(rows[0])}


@linux
def test_a_full_disk_at_the_start_is_one_line_and_leaves_nothing(train, tmp_path):
    (tmp_path / "run.yaml").write_text(CONFIG)
    train("--check")  # writes the module
    command = [
        sys.executable,
        "-B",
        "-m",
        "engine_core",
        "train",
        "run.yaml",
        "--out",
        "full",
    ]  # the limit would cut the bytecode of what is imported
    limited = ["bash", "-c", 'ulimit -f 1; exec "$@"', "limited", *command]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(limited, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (74, "")
    assert done.stderr == "Error: can't write to 'full': File too large; choose another folder\n"
    assert not (tmp_path / "full").exists()


@linux
@pytest.mark.filterwarnings("ignore::engine_core.errors.DestinationWarning")
@pytest.mark.parametrize("moves", [True, False])
def test_a_folder_that_goes_while_the_run_trains_is_reported(train, tmp_path, moves):
    gone = f"callbacks: [{{target: 'left:Goes', args: {{moves: {str(moves).lower()}}}}}]"
    done = train(config=CONFIG + gone)
    assert done.exit_code == 74
    assert "something took manifest.json and metrics.jsonl out of 'out'" in done.output


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
@pytest.mark.parametrize("name", ["manifest.json", "results.json"])
@pytest.mark.parametrize("kind", ["pipe", "sparse"])
def test_what_is_no_file_or_too_large_for_one_is_not_read(train, tmp_path, cli, kind, name):
    assert train().exit_code == 0
    file = tmp_path / "out" / name
    file.rename(tmp_path / "kept")
    if kind == "pipe":
        os.mkfifo(file)
    else:
        with file.open("wb") as opened:
            opened.truncate(2**33)
    answer = f"{name} is not a file" if kind == "pipe" else f"{name} is larger than 64 MiB"
    assert answer in cli("diff", "out", "out").output
    assert train().exit_code == 2
    if name == "manifest.json":
        assert answer in cli("explain", "out").output
        assert answer in train("--autoresume").output


def test_a_model_that_could_not_be_loaded_again_is_refused_when_the_fit_begins(tmp_path):
    model = linear()
    model.register_buffer("mask", torch.ones(1).expand(3))
    made = trainer(batches(8), model, callbacks=CheckpointSaver(tmp_path))
    with made, pytest.raises(CheckpointError, match="'mask' is an expanded tensor"):
        made.fit()
