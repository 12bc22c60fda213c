import json
import os
import threading
from types import SimpleNamespace

import pytest

from engine_core import Algorithm, AlgorithmMetadata, Callback, Engine, Logger, State
from engine_core.engine.pipeline import Pipeline
from engine_core.registry import Registry
from insight_plugin.profiler import CHUNK, Profiler


class Alg(Algorithm):
    metadata = AlgorithmMetadata(events=("before_loss", "after_loss", "batch_end"))

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        if state.loss == "fails":
            raise ZeroDivisionError


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


def test_events_algorithms_and_callbacks_are_spans_in_one_another(tmp_path):
    engine, _ = make(tmp_path, algorithms=[Alg()], callbacks=[Cb()])
    for event in ("fit_start", "batch_start", "before_loss", "after_loss", "batch_end", "fit_end"):
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


def test_what_is_written_is_chrome_trace_json(tmp_path):
    engine, profiler = make(tmp_path)
    with profiler.span('mine/of any "name"'):
        pass
    engine.close()
    (span,) = json.loads((tmp_path / "trace.json").read_text())
    times = span.pop("ts"), span.pop("dur")
    assert span == {
        "name": 'mine/of any "name"',
        "cat": "mine",
        "ph": "X",
        "pid": os.getpid(),
        "tid": threading.get_native_id(),
    }
    assert all(isinstance(time, float) and time >= 0 for time in times)


def test_times_are_microseconds(tmp_path, monkeypatch):
    clock = iter([1_000_000, 3_500_000, 4_000_250])
    monkeypatch.setattr("insight_plugin.profiler.time.perf_counter_ns", lambda: next(clock))
    engine, profiler = make(tmp_path)
    with profiler.span("mine"):
        pass
    monkeypatch.undo()
    engine.close()
    (span,) = json.loads((tmp_path / "trace.json").read_text())
    assert (span["ts"], span["dur"]) == (2500.0, 500.25)


def test_a_marker_only_event_closes_the_pair_whose_second_half_does_not_fire(tmp_path):
    engine, _ = make(tmp_path)
    engine.run_event("epoch_start")
    engine.run_event("before_dataloader")
    engine.run_marker_only_event("after_dataloader")
    engine.run_event("epoch_end")
    engine.run_marker_only_event("eval_start")
    engine.run_marker_only_event("eval_end")
    engine.close()
    assert spans(tmp_path) == ["event/epoch", "event/epoch > event/dataloader", "event/eval"]


def test_events_without_a_partner_are_not_spans(tmp_path):
    engine, _ = make(tmp_path)
    for event in ("after_load", "batch_checkpoint", "epoch_checkpoint"):
        engine.run_event(event)
        engine.run_marker_only_event(event)
    engine.close()
    assert spans(tmp_path) == []


def test_what_is_open_at_close_ends_there(tmp_path):
    engine, profiler = make(tmp_path)
    engine.run_event("fit_start")
    engine.run_event("epoch_start")
    with profiler.span("mine"):
        engine.close()
    assert spans(tmp_path) == ["event/fit", "event/fit > event/epoch", "event/fit > event/epoch > mine"]


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


def test_a_pair_that_begins_again_ends_the_one_that_was_abandoned(tmp_path):
    engine, profiler = make(tmp_path)
    for _ in range(2):
        profiler.begin("event/batch")
        profiler.begin("event/loss")
    profiler.end("event/batch")
    engine.close()
    assert spans(tmp_path) == ["event/batch", "event/batch > event/loss"] * 2


def test_the_end_of_what_is_not_open_has_no_effect(tmp_path):
    engine, profiler = make(tmp_path)
    profiler.begin("event/fit")
    profiler.end("event/epoch")
    engine.run_event("batch_end")
    engine.close()
    assert spans(tmp_path) == ["event/fit"]


def test_each_thread_has_its_own_spans(tmp_path):
    engine, profiler = make(tmp_path)

    def work():
        with profiler.span("outer"), profiler.span("inner"):
            pass

    with profiler.span("main"):
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    engine.close()
    assert sorted(spans(tmp_path)) == ["main", *["outer"] * 3, *["outer > inner"] * 3]


def test_memory_is_bounded_and_the_file_is_whole(tmp_path):
    engine, profiler = make(tmp_path)
    for _ in range(2 * CHUNK + 5):
        with profiler.span("a"):
            pass
    assert len(profiler._complete) == 5
    engine.close()
    assert len(json.loads((tmp_path / "trace.json").read_text())) == 2 * CHUNK + 5


def test_before_init_and_after_close_nothing_is_recorded(tmp_path):
    profiler = Profiler(tmp_path / "trace.json")
    with profiler.span("early"):
        profiler.begin("early too")
    assert list(tmp_path.iterdir()) == []
    engine = Engine(State(callbacks=[profiler]), Logger())
    engine.run_event("init")
    engine.close()
    with profiler.span("late"):
        profiler.begin("late too")
        profiler.end("late too")
    assert spans(tmp_path) == []


def test_it_sets_state_profiler_at_init_and_takes_it_back_at_close(tmp_path):
    engine, profiler = make(tmp_path)
    assert engine.state.profiler is profiler
    engine.close()
    assert engine.state.profiler is None


def test_a_profiler_may_serve_one_run_after_another(tmp_path):
    profiler = Profiler(tmp_path / "trace.json")
    for name in ("first", "second"):
        with Engine(State(callbacks=[profiler]), Logger()) as engine:
            engine.run_event("init")
            profiler.begin(name)
    assert spans(tmp_path) == ["second"]


def test_an_exception_passes_through_a_span(tmp_path):
    engine, profiler = make(tmp_path)
    with pytest.raises(KeyError), profiler.span("mine"):
        raise KeyError
    engine.close()
    assert spans(tmp_path) == ["mine"]


def test_missing_folders_are_made_at_init(tmp_path):
    profiler = Profiler(str(tmp_path / "runs" / "mine" / "trace.json"))
    with Engine(State(callbacks=[profiler]), Logger()) as engine:
        engine.run_event("init")
    assert json.loads((tmp_path / "runs" / "mine" / "trace.json").read_text()) == []


@pytest.mark.parametrize("path", [3, ["trace.json"]])
def test_anything_but_a_path_is_refused(path):
    with pytest.raises(TypeError, match=r"the profiler's path is .*give the name of a file such as 'trace\.json'"):
        Profiler(path)


def test_a_path_where_no_file_can_be_is_refused_in_the_constructor(tmp_path):
    (tmp_path / "file").write_text("x")
    for wrong, reason in (
        (tmp_path, "is a folder"),
        ("", "is a folder"),
        (tmp_path / "file" / "t.json", "is not a writable folder"),
    ):
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


def test_it_is_known_by_name():
    assert Registry.scan().load("callbacks", "profiler") is Profiler


def test_where_it_is_off_the_handlers_are_the_very_same_kind(tmp_path):
    def kinds(engine):
        for event in ("fit_start", "before_loss", "batch_end"):
            engine.run_event(event)
        return [getattr(engine._dispatch[e], "__qualname__", None) for e in ("fit_start", "before_loss", "batch_end")]

    engine, _ = make(tmp_path, algorithms=[Alg()], callbacks=[Cb()])
    assert kinds(engine) == ["spanning.<locals>.opening"] * 2 + ["spanning.<locals>.closing"]
    engine.close()
    off = Engine(State(algorithms=[Alg()], callbacks=[Cb()]), Logger())
    assert kinds(off) == ["Traces", Pipeline.run_alone.__qualname__, "with_algorithms.<locals>.algorithms_first"]
    (step,) = off._pipelines["before_loss"]._plans.values()
    assert step[0][0] is off.state.algorithms[0]
