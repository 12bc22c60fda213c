"""The callback `memory`: what is measured, in which units, when, and on several ranks."""

import sys
from pathlib import Path

import pytest
import torch
from parts import at

from engine_core import Logger, State
from engine_core_author import RecordingDestination, ThreadRanks
from insight_plugin import Memory, memory

PROCESS = ["memory/process_mb", "memory/process_peak_mb"]
on_linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells what is in RAM now")


def measured(state=None):
    seen, callback, state = RecordingDestination(), Memory(), state or State()
    callback.init(state, Logger([seen]))
    callback.after_train_batch(state, Logger([seen]))
    ((_, metrics),) = seen.metrics
    return metrics


@on_linux
def test_the_size_of_the_process_grows_by_what_it_takes_in_millions_of_bytes():
    before = measured()["memory/process_mb"]
    taken = torch.ones(50_000_000, dtype=torch.uint8)
    after = measured()
    assert after["memory/process_mb"] - before == pytest.approx(50, abs=5)
    assert after["memory/process_peak_mb"] >= after["memory/process_mb"] - 1
    del taken


def test_the_system_tells_the_peak_where_there_is_no_proc(monkeypatch):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(memory, "Path", lambda _: Path("there is no such file"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert measured() == {PROCESS[1]: pytest.approx(peak * (1 if sys.platform == "darwin" else 1024) / 1e6, abs=1)}


def test_a_gpu_has_three_values_and_other_devices_none(monkeypatch):
    for name, value in (("memory_allocated", 1e6), ("max_memory_allocated", 2e6), ("memory_reserved", 4e6)):
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value if device.index == 1 else 0)
    found = measured(State(device="cuda:1"))
    assert {name: value for name, value in found.items() if "device" in name} == {
        "memory/device_mb": 1.0,
        "memory/device_peak_mb": 2.0,
        "memory/device_reserved_mb": 4.0,
    }
    assert [name for name in measured(State(model=torch.nn.Linear(1, 1))) if "device" in name] == []


@on_linux
def test_it_logs_in_the_first_step_of_each_interval_and_at_the_end_but_not_at_a_pause(run):
    _, seen = run(callbacks=Memory("3ba"))
    assert [step for step, _ in seen.values("memory/process_mb")] == [0, 3, 6, 8]
    pause = at("batch_end", lambda state: state.timestamp.batch == 5 and state.pause_training())
    _, paused = run(callbacks=[Memory("3ba"), pause])
    assert [step for step, _ in paused.values("memory/process_mb")] == [0, 3]
    assert seen.names("memory") == PROCESS


@on_linux
def test_on_several_ranks_each_value_is_the_highest(monkeypatch):
    def program(ranks):
        seen, callback, state = RecordingDestination(), Memory(), State(ranks=ranks)
        logger = Logger([] if ranks.rank else [seen])
        monkeypatch.setattr(memory, "_process", lambda: (1e6 + ranks.rank * 1e6, 9e6 - ranks.rank * 1e6))
        callback.init(state, logger)
        callback.fit_start(state, logger)
        monkeypatch.setattr(memory, "_process", lambda: (1e6 + ranks.rank * 1e6, 9e6 - ranks.rank * 1e6))
        callback.after_train_batch(state, logger)
        return [metrics for _, metrics in seen.metrics]

    assert ThreadRanks.run(program) == [[{"memory/process_mb": 2.0, "memory/process_peak_mb": 9.0}], []]


def test_a_logger_that_comes_later_leaves_no_rank_waiting():
    def program(ranks):
        seen, callback, state, logger = RecordingDestination(), Memory(), State(ranks=ranks), Logger()
        callback.init(state, logger)
        callback.fit_start(state, logger)
        logger.destinations.extend([] if ranks.rank else [seen])
        callback.after_train_batch(state, logger)
        return len(seen.metrics)

    assert ThreadRanks.run(program) == [0, 0]
