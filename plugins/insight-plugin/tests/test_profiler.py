"""The profiler: a trace of spans, and how long the parts of a run took in sum, also in whole runs."""

import json
import os
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner
from parts import batches, trainer

from engine_core import Algorithm, AlgorithmMetadata, Callback, Engine, Logger, State
from engine_core.callbacks.loss_guard import LossGuard
from engine_core.cli import main
from engine_core.errors import ArgumentError, NonFiniteLossWarning
from engine_core.time import Timestamp
from insight_plugin import Profiler


class Alg(Algorithm):
    metadata = AlgorithmMetadata(events=("before_loss", "after_loss", "batch_end"))

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        if state.loss == "fails":
            raise ZeroDivisionError
        if state.loss == "takes long":
            with state.profiler.span("inside"):
                time.sleep(0.01)


class Cb(Callback):
    def batch_end(self, state, logger):
        pass


def make(tmp_path, **roles):
    profiler = Profiler(tmp_path / "trace.json")
    callbacks = [profiler, *roles.pop("callbacks", ())]
    engine = Engine(State(callbacks=callbacks, **roles), Logger())
    engine.run_event("init")
    return engine, profiler


def spans(tmp_path):
    """Return the names of the spans with the names of those around them, by their times, as they began."""
    written = json.loads((tmp_path / "trace.json").read_text())
    written.sort(key=lambda span: (span["ts"], -span["dur"]))
    return [
        " > ".join(s["name"] for s in written[: place + 1] if around(s, span)) for place, span in enumerate(written)
    ]


def around(outer, inner):
    end = inner["ts"] + inner["dur"] - 1e-6
    return outer["tid"] == inner["tid"] and outer["ts"] <= inner["ts"] and end <= outer["ts"] + outer["dur"]


STEP = ("batch_start", "before_loss", "after_loss", "batch_end")


def test_events_algorithms_and_callbacks_are_spans_in_one_another(tmp_path):
    engine, _ = make(tmp_path, algorithms=[Alg()], callbacks=[Cb()])
    for event in ("fit_start", *STEP, "fit_end"):
        engine.run_event(event)
    engine.close()
    assert spans(tmp_path) == [
        "event/fit",
        "event/fit > event/batch",
        "event/fit > event/batch > algorithm/Alg/before_loss",
        "event/fit > event/batch > event/loss",
        "event/fit > event/batch > algorithm/Alg/after_loss",
        "event/fit > algorithm/Alg/batch_end",
        "event/fit > callback/Cb/batch_end",
    ]


def test_what_is_written_is_chrome_trace_json_with_times_in_microseconds(tmp_path, monkeypatch):
    clock = iter([1_000_000, 3_500_000, 4_000_250])
    monkeypatch.setattr("insight_plugin.profiler.time.perf_counter_ns", lambda: next(clock))
    engine, profiler = make(tmp_path)
    with profiler.span('mine/of any "name"'):
        pass
    monkeypatch.undo()
    engine.close()
    (span,) = json.loads((tmp_path / "trace.json").read_text())
    place = {"pid": os.getpid(), "tid": threading.get_native_id()}
    assert span == {"name": 'mine/of any "name"', "cat": "mine", "ph": "X", "ts": 2500.0, "dur": 500.25, **place}


def test_a_marker_only_event_closes_the_pair_whose_second_half_does_not_fire(tmp_path):
    engine, _ = make(tmp_path)
    engine.run_event("epoch_start")
    engine.run_event("before_dataloader")
    engine.run_event("after_load")  # without a partner it is no span
    engine.run_marker_only_event("after_dataloader")
    engine.run_event("epoch_end")
    engine.run_marker_only_event("batch_checkpoint")
    engine.run_marker_only_event("eval_start")
    engine.run_marker_only_event("eval_end")
    engine.close()
    assert spans(tmp_path) == ["event/epoch", "event/epoch > event/dataloader", "event/eval"]


def test_what_is_open_at_close_or_begins_again_ends_there_and_what_is_not_open_has_no_end(tmp_path):
    engine, profiler = make(tmp_path)
    for _ in range(2):
        profiler.begin("event/batch")
        profiler.begin("event/loss")
    profiler.end("event/epoch")
    with pytest.raises(KeyError), profiler.span("mine"):
        engine.close()
        raise KeyError
    pair = ["event/batch", "event/batch > event/loss"]
    assert spans(tmp_path) == [*pair, *pair, "event/batch > event/loss > mine"]


def test_an_end_closes_what_an_exception_left_open_inside(tmp_path):
    engine, _ = make(tmp_path, algorithms=[Alg()])
    engine.state.loss = "fails"
    engine.run_event("fit_start")
    engine.run_event("batch_start")
    with pytest.raises(ZeroDivisionError):
        engine.run_event("before_loss")
    engine.run_event("fit_end")
    engine.run_event("epoch_start")
    engine.run_event("epoch_end")
    engine.close()
    assert spans(tmp_path) == [
        "event/fit",
        "event/fit > event/batch",
        "event/fit > event/batch > algorithm/Alg/before_loss",
        "event/epoch",
    ]


def test_each_thread_has_its_own_spans_of_which_the_sums_are_those_of_all(tmp_path):
    engine, profiler = make(tmp_path)

    def work():
        with profiler.span("outer"), profiler.span("inner"):
            pass

    engine.run_event("fit_start")
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.run_event("fit_end")
    engine.close()
    assert sorted(spans(tmp_path)) == ["event/fit", *["outer"] * 3, *["outer > inner"] * 3]
    assert {name: span["count"] for name, span in profiler.timing["spans"].items()}["outer"] == 3


def test_memory_is_bounded_and_the_file_is_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("insight_plugin.profiler.CHUNK", 10)
    engine, profiler = make(tmp_path)
    for _ in range(25):
        with profiler.span("a"):
            pass
    assert len(profiler._complete) == 5
    engine.close()
    assert len(json.loads((tmp_path / "trace.json").read_text())) == 25


def test_before_init_and_after_close_nothing_is_recorded_and_it_may_serve_one_run_after_another(tmp_path):
    profiler = Profiler(str(tmp_path / "new" / "mine" / "trace.json"))
    with profiler.span("early"):
        profiler.begin("early too")
    assert list(tmp_path.iterdir()) == []
    for name in ("first", "second"):
        with Engine(State(callbacks=[profiler]), Logger()) as engine:
            engine.run_event("init")
            assert engine.state.profiler is profiler
            profiler.begin(name)
        assert engine.state.profiler is None
    with profiler.span("late"):
        profiler.begin("late too")
        profiler.end("late too")
    assert spans(tmp_path / "new" / "mine") == ["second"]


def test_anything_but_a_path_where_a_file_can_be_is_refused_in_the_constructor(tmp_path):
    (tmp_path / "file").write_text("x")
    for wrong in (3, ["trace.json"]):
        with pytest.raises(TypeError, match=r"the profiler's path is .*give the name of a file such as 'trace\.json'"):
            Profiler(wrong)
    for wrong, reason in [
        (tmp_path, "is a folder"),
        ("", "is a folder"),
        (tmp_path / "file" / "t.json", "is not a writable folder"),
    ]:
        with pytest.raises(ValueError, match=reason):
            Profiler(wrong)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_disk_that_is_full_at_the_end_costs_the_trace_and_not_the_sums(tmp_path, monkeypatch):
    profiler = Profiler(str(tmp_path / "trace.json"))
    state = State(callbacks=[profiler], max_duration="1ba")
    engine = Engine(state, Logger())
    for event in ("init", "fit_start", "batch_start", "batch_end"):
        engine.run_event(event)

    def refuse():
        raise OSError(28, "No space left on device")

    real, profiler._file = profiler._file, SimpleNamespace(write=len, flush=lambda: None, close=refuse)
    engine.close()
    real.close()
    assert (state.profiler, profiler.timing["spans"]["event/batch"]["count"]) == (None, 1)


def test_spans_are_counted_and_their_times_added_up_with_and_without_those_inside(tmp_path):
    engine, profiler = make(tmp_path, algorithms=[Alg()], callbacks=[Cb()])
    engine.state.loss = "takes long"
    for event in ("fit_start", *STEP, *STEP, "fit_end"):
        engine.run_event(event)
    engine.close()
    timing = profiler.timing
    spans = timing.pop("spans")
    assert timing == {"schema": 1, "batches": 2, "resumed_at": None}
    events = dict.fromkeys(["event/batch", "event/loss", "callback/Cb/batch_end"], 2)
    algorithms = {f"algorithm/Alg/{event}": 2 for event in STEP[1:]}
    assert {name: span["count"] for name, span in spans.items()} == {
        **events,
        **algorithms,
        "event/fit": 1,
        "inside": 6,
    }
    inside, fit = spans["inside"], spans["event/fit"]
    taken_s = sum(spans[name]["seconds"] - spans[name]["own_seconds"] for name in algorithms)
    assert inside["own_seconds"] == inside["seconds"] >= 0.06
    assert taken_s == pytest.approx(inside["seconds"])
    assert sum(span["own_seconds"] for span in spans.values()) == pytest.approx(fit["seconds"])


def test_a_resumed_run_says_where_it_began_and_a_step_back_is_not_a_resume():
    state = State(callbacks=[profiler := Profiler()])
    with Engine(state, Logger()) as engine:
        engine.run_event("init")
        state.timestamp = Timestamp(batch=7)
        engine.run_event("after_load")
        for event in ("fit_start", "batch_start", "batch_end"):
            engine.run_event(event)
        state.timestamp = Timestamp(batch=3)
        engine.run_event("after_load")
        engine.run_event("fit_end")
    assert (profiler.timing["resumed_at"], profiler.timing["batches"]) == (7, 1)


CONFIG = """
model: {target: "torch.nn:Linear", args: {in_features: 4, out_features: 3}}
data: {target: "own:loader"}
loss: {target: "torch.nn:CrossEntropyLoss"}
optimizer: {target: "torch.optim:SGD", args: {lr: 0.1}}
trainer: {max_duration: 2ep, device: cpu, seed: 1}
"""
OWN = """
import torch
from engine_core import Callback

def loader():
    return [(torch.zeros(2, 4), torch.zeros(2).long())] * 3

class Crash(Callback):
    def epoch_end(self, state, logger):
        raise ZeroDivisionError
"""


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Return a function that trains with some options, and gives its result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "run.yaml").write_text(CONFIG)
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.delitem(sys.modules, "own", raising=False)
    return lambda *options: CliRunner().invoke(main, ["train", "run.yaml", "--quiet", "--out", "out", *options])


def test_the_span_of_an_exhausted_loader_is_closed_before_the_epoch_is(tmp_path):
    path = tmp_path / "trace.json"
    with trainer(batches(8), callbacks=Profiler(path)) as made:
        made.fit()
    spans = [span for span in json.loads(path.read_text()) if span["name"].startswith("event/")]
    ends = [span["ts"] + span["dur"] for span in spans if span["name"] == "event/dataloader"]
    (epoch,) = [span["ts"] + span["dur"] for span in spans if span["name"] == "event/epoch"]
    assert len(ends) == 2
    assert max(ends) < epoch


def test_a_step_that_is_skipped_has_no_span_of_the_optimizer():
    bad = (torch.full((4, 4), float("nan")), torch.zeros(4).long())
    made = trainer([*batches(4, 4), bad], callbacks=[LossGuard(), profiler := Profiler()])
    with made, pytest.warns(NonFiniteLossWarning):
        made.fit("1ep")
    timing = profiler.timing
    assert (timing["batches"], timing["spans"]["optimizer"]["count"]) == (3, 2)


def test_it_overwrites_nothing_but_its_own_files(tmp_path):
    file = tmp_path / "t.json"
    file.write_text('{"a": 1}')
    with pytest.raises(ArgumentError, match="is left as it is"):
        Profiler(file)
    assert file.read_text() == '{"a": 1}'
    file.unlink()
    for _ in range(2):
        with trainer(batches(8), callbacks=Profiler(file)) as made:
            made.fit()


def test_a_profiler_of_two_runs_has_the_sums_of_the_latter():
    profiler = Profiler()
    for count in (2, 3):
        with trainer(batches(*[8] * count), callbacks=profiler) as made:
            made.fit("1ep")
    assert profiler.timing["batches"] == 3


def test_train_writes_a_trace_and_implies_the_sums(train, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    done = train("--profile", "~/trace.json")
    assert done.exit_code == 0, done.output
    assert "event/fit" in {span["name"] for span in json.loads((tmp_path / "trace.json").read_text())}
    assert "event/fit" in json.loads((tmp_path / "out" / "results.json").read_text())["timing"]["spans"]


def test_train_adds_up_the_parts_of_a_step_the_optimizers_among_them(train, tmp_path):
    assert train("--timing").exit_code == 0
    timing = json.loads((tmp_path / "out" / "results.json").read_text())["timing"]
    assert timing["batches"] == timing["spans"]["event/batch"]["count"] == timing["spans"]["optimizer"]["count"] == 6


def test_a_run_that_did_not_finish_tells_how_long_its_parts_took(train, tmp_path):
    assert train("--timing", "--set", "callbacks+={target: 'own:Crash'}").exit_code == 1
    lines = map(json.loads, (tmp_path / "out" / "metrics.jsonl").read_text().splitlines())
    told = {line["kind"]: line for line in lines}
    assert [*told][-2:] == ["timing", "fail"]
    assert told["timing"]["spans"]["event/batch"]["count"] == 3


def test_a_trial_leaves_no_trace(train, tmp_path):
    done = train("--check", "--set", "callbacks+={name: profiler, args: {path: trace.json}}")
    assert (done.exit_code, (tmp_path / "trace.json").exists()) == (0, False)
