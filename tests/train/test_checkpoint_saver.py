"""When the saver saves, what it keeps, in which order its checkpoints are, and what it does when it can't."""

import errno
import os
import re
import threading
import time
from dataclasses import replace

import pytest
import torch

from engine_core import Engine, Logger, State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint import read_content, read_manifest, resolve, write_content
from engine_core.errors import CheckpointError, CheckpointWarning, EngineError

from .parts import at, batches, rows, trainer

WRITE = "engine_core.checkpoint.store.write_content"


def saved(folder):
    return sorted(path.name for path in folder.glob("ep*"))


def fitted(folder, *sizes, **settings):
    """Train on these batches for two epochs and return what is saved."""
    with trainer(batches(*sizes), max_duration="2ep", callbacks=[CheckpointSaver(folder, **settings)]) as made:
        made.fit()
    return saved(folder)


@pytest.mark.parametrize(
    ("interval", "names"),
    [
        ("1ep", ["ep1-ba3", "ep2-ba6"]),
        ("2ba", ["ep0-ba2", "ep1-ba4", "ep1-ba6", "ep2-ba6"]),
        ("16sp", ["ep0-ba2", "ep1-ba4", "ep1-ba6", "ep2-ba6"]),
        ("1h", ["ep2-ba6"]),
    ],
)
def test_it_saves_when_an_interval_has_passed_and_at_the_end(interval, names, tmp_path):
    assert fitted(tmp_path, 8, 8, 8, interval=interval, keep_last=None) == names
    assert resolve(tmp_path).name == "ep2-ba6"


def measure(metric, *values):
    given = iter(values)
    return at("epoch_checkpoint", lambda state: state.metrics.update({metric: next(given)}))


@pytest.mark.parametrize(
    ("metric", "best"), [("eval/accuracy", "ep2-ba2"), ("max:eval/accuracy", "ep2-ba2"), ("eval/loss", "ep1-ba1")]
)
def test_the_best_and_the_last_stay(metric, best, tmp_path):
    measures = measure(metric.removeprefix("max:"), 0.1, 0.9, 0.5, 0.6)
    saver = CheckpointSaver(tmp_path, keep_last=1, keep_best=1, metric=metric)
    with trainer(batches(8), max_duration="4ep", callbacks=[measures, saver]) as made:
        made.fit()
    assert saved(tmp_path) == [best, "ep4-ba4"]


def test_best_ones_that_were_ranked_the_other_way_round_are_ranked_anew(tmp_path):
    measures = measure("eval/accuracy", 0.5, 0.9, 0.7)
    for metric, end, best in (("max:eval/accuracy", "2ep", "ep2-ba2"), ("min:eval/accuracy", "3ep", "ep1-ba1")):
        saver = CheckpointSaver(tmp_path, keep_last=1, keep_best=2, metric=metric)
        with trainer(batches(8), max_duration=end, callbacks=[measures, saver], autoresume=True) as made:
            made.fit()
        assert (tmp_path / "best").read_text() == f"{best}\n"


def test_a_metric_that_is_never_measured_is_reported_as_missing(tmp_path):
    saver = CheckpointSaver(tmp_path, keep_best=1, metric="max:eval/acuracy")
    made = trainer(callbacks=[measure("eval/accuracy", 0.5), saver])
    says = "no evaluation has a result 'eval/acuracy'.*did you mean 'eval/accuracy'"
    with pytest.warns(CheckpointWarning, match=says), made:
        made.fit()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"interval": "soon"}, "interval='soon'|'soon' is not a length"),
        ({"keep_last": 0}, "keep_last=0 has to be within"),
        ({"keep_best": 1}, "belong together"),
        ({"on_error": "ignore"}, "on_error='ignore' has to be 'warn' or 'stop'"),
    ],
)
def test_arguments_are_checked_when_they_are_given(arguments, message, tmp_path):
    with pytest.raises((ValueError, TypeError), match=message):
        CheckpointSaver(tmp_path, **arguments)


def test_what_the_end_adds_does_not_count_among_the_last_and_nothing_is_made_before_a_fit(tmp_path):
    trainer(callbacks=CheckpointSaver(tmp_path / "new")).close()
    assert not (tmp_path / "new").exists()
    assert fitted(tmp_path, 4, 4, 4, 4, 4, interval="4ba", keep_last=1) == ["ep1-ba8", "ep2-ba10"]


def test_a_folder_with_another_run_is_refused(tmp_path):
    fitted(tmp_path, 8)
    says = r"holds checkpoints of another run, such as ep2-ba2: .*autoresume=True"
    with trainer(callbacks=CheckpointSaver(tmp_path)) as made, pytest.raises(CheckpointError, match=says):
        made.fit()
    assert saved(tmp_path) == ["ep1-ba1", "ep2-ba2"]


def test_a_loop_without_snapshots_cannot_be_saved(tmp_path):
    state = State(callbacks=[CheckpointSaver(tmp_path)])
    with Engine(state, Logger()) as engine, pytest.raises(EngineError, match=r"needs state\.loop\.snapshot"):
        engine.run_event("fit_start")


def test_it_warns_at_the_start_about_a_loader_that_is_not_resumed_exactly(tmp_path):
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*rows(8)), batch_sampler=[[0, 1], [2, 3]])
    says = "can't be resumed exactly in the middle of an epoch: its sampler, a list"
    with trainer(loader, callbacks=CheckpointSaver(tmp_path)) as made, pytest.warns(CheckpointWarning, match=says):
        made.fit()


def test_what_is_written_is_reported_after_the_write_in_progress(tmp_path, monkeypatch):
    told = []
    saver = CheckpointSaver(tmp_path, "1ba", keep_last=2)

    def late(folder, content, *_):
        time.sleep(0.05)
        write_content(folder, content)

    monkeypatch.setattr(WRITE, late)
    asking = at("batch_checkpoint", lambda state: told.append([path.name for path in saver.written()]))
    with trainer(batches(8, 8, 8), callbacks=[saver, asking]) as made:
        made.fit()
    assert told == [["ep0-ba1"], ["ep0-ba1", "ep0-ba2"], ["ep0-ba2", "ep0-ba3"]]


def full(*args):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_is_full_does_not_stop_training_and_warns_once_with_a_count(tmp_path, monkeypatch):
    with trainer(batches(8, 8, 8, 8, 8), callbacks=CheckpointSaver(tmp_path, "1ba")) as made:
        made.fit("1ba")
        monkeypatch.setattr(WRITE, full)
        with pytest.warns(CheckpointWarning) as told:
            made.fit()
        assert made.state.timestamp.batch == 5
    assert resolve(tmp_path).name == "ep0-ba1"
    first, count = (str(warning.message) for warning in told)
    assert re.search(r"no checkpoint was written .*No space left.*; training continues", first)
    assert re.fullmatch(rf"\d checkpoints could not be written in '{tmp_path}'", count)


@pytest.mark.parametrize("asks", [False, True])
def test_a_full_disk_stops_training_if_on_error_is_stop(asks, tmp_path, monkeypatch):
    monkeypatch.setattr(WRITE, full)
    saver = CheckpointSaver(tmp_path, "1ba", on_error="stop")
    asking = at("batch_checkpoint", lambda state: asks and saver.written())
    made = trainer(batches(8, 8, 8), callbacks=[saver, asking])
    with pytest.raises(CheckpointError, match=r"no checkpoint was written .*No space left"), made:
        made.fit()
    assert made.state.timestamp.batch < (2 if asks else 3)


def test_training_continues_while_the_run_is_written_as_it_was(tmp_path, monkeypatch):
    """The write waits until training has moved on; if training waited for it, that would never happen."""
    further, weights = threading.Event(), {}

    def late(folder, content, *_):
        assert further.wait(20)
        write_content(folder, content)

    def look(state):
        weights[state.timestamp.batch] = state.model.weight.detach().clone()
        if state.timestamp.batch == 3:
            further.set()

    monkeypatch.setattr(WRITE, late)
    with trainer(batches(8, 8, 8), callbacks=[CheckpointSaver(tmp_path, "2ba"), at("batch_end", look)]) as made:
        made.fit()
    assert torch.equal(read_content(tmp_path / "ep0-ba2").model["weight"], weights[2])
    assert not torch.equal(weights[2], weights[3])


def test_two_checkpoints_are_never_written_at_once(tmp_path, monkeypatch):
    is_free, alone = threading.Lock(), []

    def slow(folder, content, *_):
        alone.append(is_free.acquire(blocking=False))
        time.sleep(0.02)
        write_content(folder, content)
        is_free.release()

    monkeypatch.setattr(WRITE, slow)
    fitted(tmp_path, 4, 4, 4, interval="1ba")
    assert set(alone) == {True} and len(alone) >= 6


@pytest.fixture
def _clock_set_back(monkeypatch):
    """Let each checkpoint have an earlier time than all before it."""
    now = [1_000_000]

    def written(folder, content, *_):
        write_content(folder, content)
        now[0] -= 100
        os.utime(folder / "manifest.json", (now[0], now[0]))

    monkeypatch.setattr(WRITE, written)


def run(folder, *callbacks, keep_last=None, **settings):
    saver = CheckpointSaver(folder, "1ba", keep_last=keep_last)
    return trainer(batches(*[8] * 6), max_duration="1ep", callbacks=[*callbacks, saver], **settings)


def fit_for(folder, duration=None, **settings):
    with run(folder, **settings) as made:
        made.fit(duration)


def attempts(folder):
    return {name: read_manifest(folder / name)["attempt"] for name in saved(folder)}


@pytest.mark.usefixtures("_clock_set_back")
def test_a_run_resumed_from_before_others_keeps_its_own(tmp_path):
    fit_for(tmp_path, "5ba")
    seen = []
    look = at("batch_end", lambda state: (state.callbacks[1].written(), seen.append(saved(tmp_path))))
    with run(tmp_path, look, keep_last=2, load_path=tmp_path / "ep0-ba1") as made:
        made.fit("3ba")
    assert seen[1:] == [["ep0-ba1", "ep0-ba2"], ["ep0-ba2", "ep0-ba3"]]
    assert attempts(tmp_path) == {"ep0-ba3": 1, "ep0-ba4": 1}


def test_the_attempt_is_one_more_than_that_of_the_checkpoint_that_was_resumed_but_not_for_weights_alone(tmp_path):
    fit_for(tmp_path, "2ba")
    fit_for(tmp_path, "2ba", autoresume=True)
    fit_for(tmp_path, autoresume=True)
    assert [*attempts(tmp_path).values()] == [0, 0, 1, 1, 2, 2, 2]
    fit_for(tmp_path / "other", load_path=tmp_path / "ep0-ba4")
    assert attempts(tmp_path / "other") == {"ep0-ba5": 2, "ep0-ba6": 2, "ep1-ba6": 2}
    fit_for(tmp_path / "weights", "1ba", load_path=tmp_path, load_weights_only=True)
    assert attempts(tmp_path / "weights") == {"ep0-ba1": 0}


def changed(checkpoint, **manifest):
    content = read_content(checkpoint)
    kept = {name: value for name, value in content.manifest.items() if name != "attempt"}
    write_content(checkpoint, replace(content, manifest={**kept, **manifest}))


def test_a_checkpoint_from_before_attempts_were_counted_is_of_the_first_and_what_is_no_count_is_refused(tmp_path):
    fit_for(tmp_path, "2ba")
    for attempt in ("1", -1, True, 1.0, None, 10**30):
        changed(tmp_path / "ep0-ba2", attempt=attempt)
        with pytest.raises(CheckpointError, match=f"manifest has an invalid attempt: {attempt!r}"):
            run(tmp_path, autoresume=True)
    changed(tmp_path / "ep0-ba2")
    fit_for(tmp_path, "1ba", autoresume=True)
    assert "attempt" not in read_manifest(tmp_path / "ep0-ba2")
    assert read_manifest(tmp_path / "ep0-ba3")["attempt"] == 1
