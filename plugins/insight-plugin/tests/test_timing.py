"""How long the parts of a run took in sum."""

import json
import threading
import time

import pytest

from engine_core import Algorithm, AlgorithmMetadata, Callback, Engine, Logger, State
from engine_core.time import Timestamp
from insight_plugin.profiler import Profiler

STEP = ("batch_start", "before_loss", "after_loss", "batch_end")


class Sleeps(Algorithm):
    metadata = AlgorithmMetadata(events=("before_loss",))

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        with state.profiler.span("inside"):
            time.sleep(0.01)


class Cb(Callback):
    def batch_end(self, state, logger):
        pass


def run(tmp_path, *events, callbacks=(), **files):
    """Run events with a profiler; return its sums, or None without."""
    profiler = Profiler(**files)
    with Engine(State(callbacks=[profiler, *callbacks], algorithms=[Sleeps()]), Logger()) as engine:
        for event in ("init", *events):
            engine.run_event(event)
    return profiler.timing


def test_spans_are_counted_and_their_times_added_up_with_and_without_those_inside(tmp_path):
    timing = run(tmp_path, "fit_start", *STEP, *STEP, "fit_end", callbacks=[Cb()])
    spans = timing.pop("spans")
    assert timing == {"schema": 1, "batches": 2, "resumed_at": None}
    assert {name: span["count"] for name, span in spans.items()} == {
        "algorithm/Sleeps/before_loss": 2,
        "callback/Cb/batch_end": 2,
        "event/batch": 2,
        "event/fit": 1,
        "event/loss": 2,
        "inside": 2,
    }
    inside, apply, fit = (spans[name] for name in ("inside", "algorithm/Sleeps/before_loss", "event/fit"))
    assert inside["own_seconds"] == inside["seconds"] >= 0.02
    assert apply["seconds"] - apply["own_seconds"] == pytest.approx(inside["seconds"])
    assert sum(span["own_seconds"] for span in spans.values()) == pytest.approx(fit["seconds"])


def test_nothing_is_written_by_a_run_that_did_not_train(tmp_path):
    assert run(tmp_path) is None
    assert [*tmp_path.iterdir()] == []


def test_the_trace_and_the_sums_can_both_be_had(tmp_path):
    timing = run(tmp_path, "fit_start", "fit_end", path=tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert [span["name"] for span in trace] == [*timing["spans"]] == ["event/fit"]
    assert trace[0]["dur"] / 1e6 == pytest.approx(timing["spans"]["event/fit"]["seconds"], abs=1e-6)


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


def test_spans_of_all_threads_are_added_up():
    profiler = Profiler()

    def work():
        with profiler.span("work"):
            pass

    with Engine(State(callbacks=[profiler]), Logger()) as engine:
        engine.run_event("init")
        engine.run_event("fit_start")
        for _ in range(3):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        work()
        engine.run_event("fit_end")
    assert profiler.timing["spans"]["work"]["count"] == 4


def test_sums_take_no_more_memory_the_longer_a_run_is():
    profiler = Profiler()
    with Engine(State(callbacks=[profiler]), Logger()) as engine:
        engine.run_event("init")
        for _ in range(1000):
            with profiler.span("often"):
                pass
        assert profiler._complete == []
