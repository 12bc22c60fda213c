"""The files of a run: touched by no other, written whole, and read with care whatever stands in their places."""

import csv
import errno
import json
import os
import sys
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from engine_core import Callback
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import CheckpointError, DurationWarning
from engine_core.loggers.run_files import RunFiles

from .leaving import CONFIG, cli, read, train
from .parts import at, batches, linear, trainer

__all__ = ["cli", "train"]


def files_in(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", ["model.safetensors", "model-average.safetensors", "metrics.csv", "manifest.json"])
def test_a_file_that_no_run_wrote_is_named_and_everything_stays(train, tmp_path, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("7 billion weights")
    kept = CONFIG + "callbacks: [{name: checkpoint_saver, args: {folder: kept, interval: 1ba}}]\n"
    refused = [train(), train("--autoresume")]
    if name.startswith("model"):  # nor where a program's run has left its checkpoints
        assert train("--no-checkpoints", "--out", "made", config=kept).exit_code == 0
        refused.append(train("--no-checkpoints", "--autoresume", config=kept))
    for done in refused:
        assert done.exit_code == 2
        assert f"'out' is not the folder of a run, and holds '{name}', which is left as it is" in done.output
        assert files_in(tmp_path / "out") == {name: b"7 billion weights"}


def test_another_run_without_checkpoints_is_not_replaced_by_autoresume(train, tmp_path):
    assert train("--no-checkpoints").exit_code == 0
    before = files_in(tmp_path / "out")
    done = train("--autoresume", "--set", "optimizer.args.lr=0.5")
    assert (done.exit_code, "'out' holds another run" in done.output) == (2, True)
    assert files_in(tmp_path / "out") == before


@pytest.mark.filterwarnings("ignore:fit.. has nothing to do")
def test_a_finished_run_that_is_started_again_changes_nothing_and_makes_what_is_missing(train, tmp_path):
    assert train().exit_code == 0
    before = files_in(tmp_path / "out")
    assert train("--autoresume").exit_code == 0
    assert {name for name, data in files_in(tmp_path / "out").items() if before.get(name) != data} == set()
    for name in ("results.json", "model.safetensors", "metrics.csv"):  # as if it had been cut off before them
        (tmp_path / "out" / name).unlink()
    assert train("--autoresume").exit_code == 0
    after = files_in(tmp_path / "out")
    same = ("model.safetensors", "metrics.csv", "metrics.jsonl")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert read(tmp_path / "out" / "results.json")["batches"] == 8


@pytest.mark.parametrize("why", ["a stop", None])
def test_why_a_run_stopped_is_saved(tmp_path, why):
    stop = at("batch_end", lambda state: state.timestamp.batch == 2 and state.stop_training(why))
    for resumes in (False, True):
        made = trainer(batches(8, 8, 8), callbacks=[stop, CheckpointSaver(tmp_path, "2ba")], autoresume=resumes)
        with made, pytest.warns(DurationWarning) if resumes else nullcontext():
            made.fit()
        assert made.state.loop.stop_requested
        assert (made.state.loop.stop_reason, made.state.timestamp.batch) == (why, 2)


def saving(folder, logs, **settings):
    callbacks = [logs, CheckpointSaver(folder / "checkpoints", "2ba")]
    return trainer(batches(4, 4, 4, 4), callbacks=callbacks, loggers=RunFiles(folder), **settings)


def test_an_attempt_that_is_refused_touches_no_file_of_the_run(tmp_path):
    class Notes(Callback):
        def init(self, state, logger):
            logger.log_metrics({"model/parameters": 4})

    with saving(tmp_path, Notes()) as first:
        first.fit("3ba")
        before = files_in(tmp_path)
        for loading in ({"autoresume": True}, {"load_path": tmp_path / "checkpoints" / "ep0-ba2"}):
            second = saving(tmp_path, Notes(), **loading)
            with pytest.raises(CheckpointError, match="is in use by another run"), second:
                second.fit()
            assert files_in(tmp_path) == before
    before = files_in(tmp_path)
    with pytest.raises(CheckpointError, match="the weights are another model's"):
        saving(tmp_path, Notes(), model=nn.Linear(4, 2), autoresume=True)
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
HARMFUL = {"long": "x" * 200_000, "name \udc80": 1.5, "text": "\ud800 \x00", "step": "two", "seconds": "three"}
HARMFUL |= {"large": 10**5000, "sparse": torch.ones(2).to_sparse(), "pairs": {(1, 2): [float("nan"), 1.0]}}
HARMFUL |= {"norms": torch.tensor([float("nan"), float("inf"), 1.0])}


@pytest.mark.filterwarnings("ignore:fit.. has nothing to do")
def test_nothing_that_is_logged_harms_a_run(tmp_path):
    class Logs(Callback):
        def batch_end(self, state, logger):
            logger.log_metrics(HARMFUL)

    with saving(tmp_path, Logs()) as first:
        first.fit("3ba")
    with saving(tmp_path, Logs(), autoresume=True) as second:
        second.fit()
    text = (tmp_path / "metrics.jsonl").read_text()
    lines = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert [line["norms"] for line in lines if "norms" in line] == [[None, None, 1.0]] * 4
    assert {(type(line["step"]), type(line["seconds"])) for line in lines} == {(int, float)}
    assert [line["large"] for line in lines if "large" in line] == ["<int>"] * 4
    former = csv.field_size_limit(2**20)
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(line.replace("\0", "") for line in file))
    csv.field_size_limit(former)
    assert [int(row["step"]) for row in rows] == [0, 1, 2, 3, 4][-len(rows) :]
    assert {len(row) for row in rows} == {len(rows[0])}


def test_a_full_disk_at_the_start_is_one_line_and_leaves_nothing(train, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr("engine_core.files.sync", full)
    done = train("--out", "full")
    line = "Error: can't write to 'full': File too large; choose another folder\n"
    assert (done.exit_code, done.output, (tmp_path / "full").exists()) == (74, line, False)


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files as Linux does")
@pytest.mark.filterwarnings("ignore::engine_core.errors.DestinationWarning")
@pytest.mark.parametrize("moves", ["true", "false"])
def test_a_folder_that_goes_while_the_run_trains_is_reported(train, tmp_path, moves):
    done = train(config=f"{CONFIG}callbacks: [{{target: 'left:Goes', args: {{moves: {moves}}}}}]")
    says = "something took manifest.json and metrics.jsonl out of 'out'"
    assert (done.exit_code, says in done.output) == (74, True)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
def test_what_is_no_file_or_too_large_for_one_is_not_read(train, tmp_path, cli):
    assert train().exit_code == 0
    for name in ("results.json", "manifest.json"):
        file = tmp_path / "out" / name
        file.rename(tmp_path / "kept")
        for answer in (f"{name} is not a file", f"{name} is larger than 64 MiB"):
            if "not a file" in answer:
                os.mkfifo(file)
            else:
                file.touch()
                os.truncate(file, 2**33)
            assert answer in cli("diff", "out", "out").output
            assert train().exit_code == 2
            if name == "manifest.json":
                assert answer in cli("explain", "out").output
                assert answer in train("--autoresume").output
            file.unlink()
        (tmp_path / "kept").rename(file)


def test_a_model_that_could_not_be_loaded_again_is_refused_when_the_fit_begins(tmp_path):
    model = linear()
    model.register_buffer("mask", torch.ones(1).expand(3))
    made = trainer(batches(8), model, callbacks=CheckpointSaver(tmp_path))
    with made, pytest.raises(CheckpointError, match="'mask' is an expanded tensor"):
        made.fit()
