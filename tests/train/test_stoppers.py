"""When training is stopped by an evaluation result, which evaluations count, and that it is so in a resumed run."""

import contextlib
import logging
import math
import signal

import pytest

from engine_core import Engine, Logger, State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.callbacks.stoppers import EarlyStopper, ThresholdStopper
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core.time import Timestamp

from .parts import Memory, at, batches, rows, same, trainer
from .test_resume import all_of, checkpoints, loader
from .test_resume import run as whole_run

NAN, INF = math.nan, math.inf
ACCURACY, ERROR = "eval/accuracy", "min:eval/accuracy"


class Half:
    update = reset = lambda *_: None

    def compute(self):
        return 0.5


def finding(values, key=ACCURACY):
    """Return a callback by which the evaluation after batch n finds the nth of these values."""

    def find(state):
        if state.dataloader_label == key.partition("/")[0] and state.timestamp.batch:
            state.metrics[key] = values[state.timestamp.batch - 1]

    return at("eval_end", find)


def made(values, *callbacks, data=None, **settings):
    """Return a trainer that evaluates after each of its epochs of one batch, and finds these values."""
    given = {"max_duration": f"{len(values)}ba", "eval_dataloader": [rows(4)], **settings}
    return trainer(data or batches(8), callbacks=[finding(values), *callbacks], **given)


def ended_at(values, *callbacks, **settings):
    """Return after which batch a fit with these values ends."""
    with made(values, *callbacks, **settings) as run:
        run.fit()
    return run.state.timestamp.batch


@pytest.mark.parametrize(
    ("values", "arguments", "batch"),
    [
        ([0.1, 0.2, 0.2, 0.1, 0.3], {"patience": 2}, 4),
        ([0.5, 0.4, 0.6, 0.5, 0.6, 0.9], {"patience": 2}, 5),
        ([0.5, 0.4, 0.3, 0.2, 0.3, 0.2], {"metric": ERROR, "patience": 2}, 6),
        ([0.5, 0.75, 0.75, 1.0], {"patience": 2, "min_delta": 0.25}, 3),
        ([NAN, NAN, 0.1], {"patience": 2}, 2),
        ([NAN, 0.1, NAN, 0.2, NAN], {"patience": 2}, 5),
    ],
)
def test_it_stops_when_so_many_evaluations_in_a_row_are_not_better(values, arguments, batch):
    assert ended_at(values, EarlyStopper(**{"metric": ACCURACY, **arguments})) == batch


@pytest.mark.parametrize(
    ("values", "metric", "batch"),
    [([0.1, 0.5, 0.9], ACCURACY, 2), ([0.9, 0.8, 0.5, 0.1], ERROR, 3), ([NAN, INF, 0.4, 0.9], ACCURACY, 4)],
)
def test_it_stops_when_an_evaluation_is_good_enough(values, metric, batch):
    assert ended_at(values, ThresholdStopper(metric, 0.5)) == batch


def test_only_the_named_one_of_several_loaders_counts():
    loaders = {"small": [rows(4)], "eval": [rows(4)], "large": [rows(8)]}
    other = finding([0.1, 0.2, 0.3, 0.4], "large/accuracy")
    assert ended_at([0.4, 0.3, 0.2, 0.1], other, EarlyStopper(ACCURACY, 2), eval_dataloader=loaders) == 3
    assert ended_at([0.4, 0.3, 0.2, 0.1], other, EarlyStopper("large/accuracy", 2), eval_dataloader=loaders) == 4


def test_evaluations_that_nobody_scheduled_do_not_count_and_several_fits_are_counted_as_one():
    stopper, memory = EarlyStopper(ACCURACY, patience=2), Memory()
    evaluates = at("batch_end", lambda state: state.timestamp.batch == 2 and run.eval([rows(8)]))
    with made([0.5, 0.4, 0.6, 0.5, 0.4, 0.4], stopper, evaluates, loggers=memory) as run:
        run.eval([rows(8)])
        run.fit("1ba")
        run.fit("1ba")
        run.eval()
        run.eval()
        assert (stopper.best, stopper.waited) == (0.5, 1)
        run.fit()
        assert run.state.timestamp.batch == 5
    assert memory.values("early_stopper/waited/eval/accuracy") == [(1, 0), (2, 1), (3, 0), (4, 1), (5, 2)]


def test_a_stopper_of_an_earlier_run_begins_again_and_a_fit_after_a_stop_has_as_much_patience_as_the_first():
    stopper = EarlyStopper(ACCURACY, patience=2)
    assert ended_at([0.9, 0.8, 0.8], stopper) == 3
    assert ended_at([0.5, 0.6, 0.7, 0.8], stopper) == 4
    with made([0.5, 0.4, 0.4, 0.4, 0.4, 0.4], stopper) as run:
        run.fit()
        assert run.state.timestamp.batch == 3
        run.fit()
        assert (run.state.timestamp.batch, stopper.best) == (5, 0.5)


def test_the_reason_for_the_end_is_in_the_log(caplog):
    ended_at([0.5, 0.25, 0.25], EarlyStopper(ACCURACY, patience=2))
    ended_at([NAN], EarlyStopper(ACCURACY, patience=1))
    ended_at([0.25, 0.75], ThresholdStopper(ACCURACY, 0.5))
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert [record.getMessage().partition(" ends training at ")[::2] for record in caplog.records] == [
        ("EarlyStopper", "batch 3: eval/accuracy has not improved on 0.5 for 2 evaluations in a row"),
        ("EarlyStopper", "batch 1: eval/accuracy has not been finite for 1 evaluation in a row"),
        ("ThresholdStopper", "batch 2: eval/accuracy is 0.75 and reaches 0.5"),
    ]


@pytest.mark.parametrize("stopper", [EarlyStopper("max:eval/acuracy"), ThresholdStopper("max:eval/acuracy", 1)])
def test_a_result_that_is_never_measured_is_an_error_at_the_first_evaluation(stopper):
    run = made([0.5, 0.5], stopper)
    with pytest.raises(ArgumentError, match="no result 'eval/acuracy'; did you mean 'eval/accuracy'"), run:
        run.fit()
    assert run.state.timestamp.batch == 1


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (None, "nothing is evaluated, so there is no 'eval/accuracy' to watch: give eval_dataloader"),
        ({"evil": [rows(4)]}, "no evaluation loader is called 'eval', .*did you mean 'evil'"),
    ],
)
@pytest.mark.parametrize("stopper", [EarlyStopper(ACCURACY), ThresholdStopper(ACCURACY, 1)])
def test_without_the_loader_training_does_not_begin(stopper, loader, message):
    with pytest.raises(ArgumentError, match=message), made([0.5], stopper, eval_dataloader=loader) as run:
        run.fit()
    assert run.state.timestamp.batch == 0


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("early_stopper", {}), ("threshold_stopper", {"threshold": 1}), ("checkpoint_saver", {"keep_best": 1})],
)
def test_what_has_no_direction_is_refused_when_the_trainer_is_made(name, arguments, tmp_path):
    given = {"folder": tmp_path, **arguments} if name == "checkpoint_saver" else arguments
    told = r"metric='eval/{0}': neither .* write 'min:eval/{0}' if it is the lower one, or 'max:eval/{0}'{1}(\n|$)"
    with pytest.raises(ArgumentError, match=told.format("gap", "")):
        made([0.5], (name, {"metric": "eval/gap", **given}), metrics={"gap": Half()})
    with pytest.raises(ArgumentError, match=told.format("los", r"; did you mean 'eval/loss'\?")):
        made([0.5], (name, {"metric": "eval/los", **given}))
    own = Half()
    own.higher_is_better = True
    for metric in ("eval/gap", "min:eval/gap"):
        made([0.5], (name, {"metric": metric, **given}), metrics={"gap": own}).close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EarlyStopper("loss"), "metric='loss' has to be the label"),
        (lambda: EarlyStopper(patience=0), "patience=0 has to be within"),
        (lambda: EarlyStopper(patience=1.5), r"patience=1\.5 \(float\) has to be a whole number"),
        (lambda: EarlyStopper(min_delta=-0.1), r"min_delta=-0\.1 has to be within"),
        (lambda: EarlyStopper(min_delta=NAN), "min_delta=nan has to be a finite number"),
        (lambda: ThresholdStopper("accuracy", 0.5), "metric='accuracy' has to be the label"),
        (lambda: ThresholdStopper(ACCURACY, "90%"), r"threshold='90%' \(str\) has to be a number"),
        (lambda: ThresholdStopper(ACCURACY, INF), "threshold=inf has to be a finite number"),
    ],
)
def test_arguments_are_checked_when_they_are_given(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


STOPPERS = {
    "early": (lambda: EarlyStopper(patience=2, min_delta=0.06), "1ep"),
    "early, in batches": (lambda: EarlyStopper(patience=4), "2ba"),
    "threshold": (lambda: ThresholdStopper("max:eval/loss", 1.25), "3ba"),
}


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:fit.. has nothing to do")  # resumed at its end
@pytest.mark.parametrize("name", STOPPERS)
def test_it_stops_at_the_same_batch_wherever_the_run_is_resumed(name, tmp_path):
    stopper, interval = STOPPERS[name]

    def fitted(callbacks, **settings):
        run, logged = whole_run(callbacks, max_duration="6ep", eval_interval=interval, **settings)
        with run:
            run.fit()
        return run, run.state.callbacks[2].state_dict(), logged.metrics

    whole, *kept, logged = fitted([stopper(), CheckpointSaver(tmp_path, "1ba", keep_last=None)])
    assert 0 < whole.state.timestamp.batch < 6 * len(loader())
    for path in checkpoints(tmp_path):
        rest, *again, then = fitted([stopper()], load_path=path, seed=None)
        assert same(all_of(rest), all_of(whole)), path.name
        assert (again, then) == (kept, logged[len(logged) - len(then) :]), path.name


@pytest.mark.parametrize("values", [[0.5, 0.4, 0.4, 0.4], [0.1, 0.5, 0.4, 0.4, 0.4]])
def test_an_evaluation_that_a_signal_broke_off_is_counted_once(values, tmp_path):
    def ask(state):
        if state.timestamp.batch == 2 and state.dataloader_label == "more":
            signal.raise_signal(signal.SIGTERM)

    def fitted(*callbacks, ends=None, **settings):
        stopper, memory = EarlyStopper(ACCURACY, patience=2), Memory()
        loaders = {"eval": [rows(4)], "more": [rows(4), rows(3)]}
        with (
            ends or contextlib.nullcontext(),
            made(values, stopper, *callbacks, eval_dataloader=loaders, loggers=memory, **settings) as run,
        ):
            run.fit()
        return (stopper.state_dict(), run.state.timestamp.batch), memory.metrics

    whole, logged = fitted()
    saver = ("checkpoint_saver", {"folder": tmp_path, "interval": "1h"})
    (broken_off, _), _ = fitted(at("eval_batch_end", ask), saver, ends=pytest.raises(SystemExit))
    assert broken_off["counted_at"] == 2
    rest, then = fitted(saver, autoresume=True)
    assert rest == whole
    assert then == logged[len(logged) - len(then) :]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "the state of EarlyStopper lacks 'best', 'counted_at' and 'waited'"),
        ({"best": "low", "waited": 0, "counted_at": 1}, r"best='low' \(str\) has to be a number"),
        ({"best": float("nan"), "waited": 0, "counted_at": 1}, "best=nan has to be a finite number"),
        ({"best": 0.5, "waited": -1, "counted_at": 1}, r"waited=-1 has to be within .* in the state of EarlyStopper"),
        ({"best": 0.5, "waited": 0, "counted_at": True}, "counted_at=True"),
    ],
)
def test_a_state_that_no_stopper_has_saved_is_refused_and_changes_nothing(state, message):
    stopper, own = EarlyStopper(), {"best": 0.25, "waited": 1, "counted_at": 7}
    stopper.load_state_dict(own)
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        stopper.load_state_dict(state)
    assert stopper.state_dict() == own


def test_a_custom_loop_is_stopped_too_and_evaluations_after_it_do_not_count():
    state = State(callbacks=[EarlyStopper(patience=2)], evaluators={"eval": []}, max_duration="1h")
    found = []
    with Engine(state, Logger()) as engine:
        engine.run_event("fit_start")
        for loss in (0.5, 0.4, 0.6, 0.5, 0.3):
            if not state.loop.stop_requested:
                state.timestamp = Timestamp(batch=len(found) + 1)
                state.dataloader_label, state.metrics = "eval", {"eval/loss": loss}
                engine.run_event("eval_end")
                found.append(loss)
        engine.run_event("fit_end")
        state.timestamp, state.loop.stop_requested = Timestamp(batch=99), False
        engine.run_event("eval_end")
        assert not state.loop.stop_requested
    assert found == [0.5, 0.4, 0.6, 0.5]
