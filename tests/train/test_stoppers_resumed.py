"""A run that is resumed stops where it would have, and a custom loop can be stopped too."""

import signal
from pathlib import Path
from typing import Any

import pytest

from engine_core import Engine, Logger, State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.callbacks.stoppers import EarlyStopper, ThresholdStopper
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core.time import Timestamp

from .parts import Memory, at, rows, same
from .test_resume import all_of, checkpoints, loader, run
from .test_stoppers import ACCURACY, made

pytestmark = pytest.mark.filterwarnings("ignore:fit.. has nothing to do")  # resumed at its end

STOPPERS = {
    "early": (lambda: EarlyStopper(patience=2, min_delta=0.06), "1ep"),
    "early, in batches": (lambda: EarlyStopper(patience=4), "2ba"),
    "threshold": (lambda: ThresholdStopper("max:eval/loss", 1.25), "3ba"),
}


@pytest.mark.full
@pytest.mark.parametrize("name", STOPPERS)
def test_it_stops_at_the_same_batch_wherever_the_run_is_resumed(name: str, tmp_path: Path) -> None:
    stopper, interval = STOPPERS[name]
    settings = {"max_duration": "6ep", "eval_interval": interval}
    whole, logged = run([stopper(), CheckpointSaver(tmp_path, "1ba", keep_last=None)], **settings)
    with whole:
        whole.fit()
    assert 0 < whole.state.timestamp.batch < 6 * len(loader())
    for path in checkpoints(tmp_path):
        rest, then = run([stopper()], load_path=path, **{**settings, "seed": None})
        with rest:
            rest.fit()
        assert same(all_of(rest), all_of(whole)), path.name
        assert rest.state.callbacks[2].state_dict() == whole.state.callbacks[2].state_dict()
        assert then.metrics == logged.metrics[len(logged.metrics) - len(then.metrics) :], path.name


@pytest.mark.parametrize("values", [[0.5, 0.4, 0.4, 0.4], [0.1, 0.5, 0.4, 0.4, 0.4]])
def test_an_evaluation_that_a_signal_broke_off_is_counted_once(values: list[float], tmp_path: Path) -> None:
    def ask(state: State) -> None:
        if state.timestamp.batch == 2 and state.dataloader_label == "more":
            signal.raise_signal(signal.SIGTERM)

    def after(*callbacks: Any, **settings: Any) -> Any:
        stopper, memory = EarlyStopper(ACCURACY, patience=2), Memory()
        loaders = {"eval": [rows(4)], "more": [rows(4), rows(3)]}
        return made(values, stopper, *callbacks, eval_dataloader=loaders, loggers=memory, **settings), stopper, memory

    whole, stopper, logged = after()
    with whole:
        whole.fit()
    saver = {"folder": tmp_path, "interval": "1h"}
    parted, broken_off, _ = after(at("eval_batch_end", ask), ("checkpoint_saver", saver))
    with pytest.raises(SystemExit), parted:
        parted.fit()
    assert broken_off.state_dict()["counted_at"] == 2
    rest, resumed, then = after(("checkpoint_saver", saver), autoresume=True)
    with rest:
        rest.fit()
    assert resumed.state_dict() == stopper.state_dict()
    assert rest.state.timestamp.batch == whole.state.timestamp.batch
    assert then.metrics == logged.metrics[len(logged.metrics) - len(then.metrics) :]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "the state of EarlyStopper lacks 'best', 'counted_at' and 'waited'"),
        ({"best": "low", "waited": 0, "counted_at": 1}, r"best='low' \(str\) has to be a number"),
        ({"best": float("nan"), "waited": 0, "counted_at": 1}, "best=nan has to be a finite number"),
        ({"best": 0.5, "waited": -1, "counted_at": 1}, r"waited=-1 has to be within .* in the state of EarlyStopper"),
        ({"best": 0.5, "waited": None, "counted_at": 1}, "waited=None"),
        ({"best": 0.5, "waited": 0, "counted_at": 1.5}, r"counted_at=1\.5"),
        ({"best": 0.5, "waited": 0, "counted_at": True}, "counted_at=True"),
    ],
)
def test_a_state_that_no_stopper_has_saved_is_refused_and_changes_nothing(state: Any, message: str) -> None:
    stopper, own = EarlyStopper(), {"best": 0.25, "waited": 1, "counted_at": 7}
    stopper.load_state_dict(own)
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        stopper.load_state_dict(state)
    assert stopper.state_dict() == own


def losses_until_the_end(stopper: Any, losses: list[float]) -> list[float]:
    """Run a custom loop that evaluates after each batch, and return what it has found until it was stopped."""
    state = State(callbacks=[stopper], evaluators={"eval": []}, max_duration="1h")
    found: list[float] = []
    with Engine(state, Logger()) as engine:
        engine.run_event("fit_start")
        for number, loss in enumerate(losses):
            state.timestamp = Timestamp(batch=number + 1)
            for label, value in (("test", 0.0), ("eval", loss)):
                state.dataloader_label, state.metrics = label, {f"{label}/loss": value}
                engine.run_event("eval_end")
            found.append(loss)
            if state.loop.stop_requested:
                break
        engine.run_event("fit_end")
        state.timestamp, state.loop.stop_requested = Timestamp(batch=99), False
        engine.run_event("eval_end")
        assert not state.loop.stop_requested
    return found


def test_a_custom_loop_is_stopped_too() -> None:
    assert losses_until_the_end(EarlyStopper(patience=2), [0.5, 0.4, 0.6, 0.5, 0.3]) == [0.5, 0.4, 0.6, 0.5]
    assert losses_until_the_end(ThresholdStopper("eval/loss", 0.4), [0.5, 0.4, 0.3]) == [0.5, 0.4]


def test_a_stopper_that_joins_in_the_middle_of_a_fit_stops_it() -> None:
    def join(state: State) -> None:
        if state.timestamp.batch == 2:
            state.callbacks.append(ThresholdStopper(ACCURACY, 0.5))

    with made([0.9, 0.9, 0.9, 0.9], at("batch_end", join)) as trained:
        trained.fit()
    assert trained.state.timestamp.batch < 4


@pytest.mark.filterwarnings("ignore:fit.. has nothing to do")
def test_a_run_that_was_stopped_has_ended_also_when_it_is_loaded(tmp_path: Path) -> None:
    values = [0.5, 0.4, 0.4, 0.4, 0.4]
    saver = ("checkpoint_saver", {"folder": tmp_path})
    for expected in ([3, 5], [5, 5]):
        with made(values, EarlyStopper(ACCURACY, patience=2), saver, autoresume=True) as trained:
            trained.fit()
            first = trained.state.timestamp.batch
            if first < 5:
                trained.fit()
            assert [first, trained.state.timestamp.batch] == expected
