"""A first SIGINT or SIGTERM ends a fit, an evaluation or a prediction after its batch; a second one acts at once."""

import code
import contextlib
import io
import signal

import pytest
import torch

from engine_core.signals import SignalGuard
from engine_core.trainer import is_between_batches

from .parts import at, batches, linear, same, trainer

ENDS = {
    "fit": lambda made: made.fit(),
    "eval": lambda made: made.eval(),
    "predict": lambda made: list(made.predict(batches(3, 3, 3))),
}
SIGNALS = [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]


def made_with(event, call):
    return trainer(batches(8, 8, 8), eval_dataloader=batches(3, 3, 3), callbacks=at(event, call))


def handlers():
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.parametrize("what", ENDS)
@pytest.mark.parametrize(("number", "error"), SIGNALS)
def test_the_first_signal_ends_it_after_the_batch_and_all_is_as_before(what, number, error):
    done, before, prefix = [], handlers(), "" if what == "fit" else "eval_"
    made = made_with(f"{prefix}after_forward", lambda _: signal.raise_signal(number))
    made.state.callbacks.append(at(f"{prefix}batch_end", lambda _: done.append("batch")))
    with pytest.raises(error) as raised:
        ENDS[what](made)
    assert (type(raised.value), done, handlers()) == (error, ["batch"], before)
    assert (made.state.timestamp.batch, made.state.loop.interrupted_by) == (int(what == "fit"), None)
    assert made.state.model.training and torch.is_grad_enabled()
    if what != "fit":
        assert same(dict(made.state.model.state_dict()), dict(linear().state_dict()))
        assert made.state.metrics == {}
    made.state.callbacks.clear()
    made.fit()
    assert made.state.timestamp.batch == 3


@pytest.mark.parametrize("what", ENDS)
def test_the_second_acts_at_once(what):
    came = []

    def interrupt(_):
        signal.raise_signal(signal.SIGINT)
        came.append("first")
        signal.raise_signal(signal.SIGINT)
        came.append("second")

    made = made_with("after_forward" if what == "fit" else "eval_after_forward", interrupt)
    with pytest.raises(KeyboardInterrupt) as raised:
        ENDS[what](made)
    assert raised.value.args == ()
    assert came == ["first"]


@pytest.mark.parametrize(("what", "event"), [("fit", "fit_end"), ("eval", "eval_end"), ("predict", "eval_end")])
def test_one_that_comes_after_the_last_batch_arrives(what, event):
    with pytest.raises(KeyboardInterrupt, match="ended after batch"):
        ENDS[what](made_with(event, lambda _: signal.raise_signal(signal.SIGINT)))


@pytest.mark.parametrize(
    ("what", "event"), [("fit", "after_forward"), ("eval", "eval_batch_end"), ("predict", "eval_end")]
)
def test_it_arrives_where_it_has_ended_the_workers_of_a_loader_too(what, event):
    def lose(_):
        signal.raise_signal(signal.SIGTERM)
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated.")

    made = made_with(event, lose)
    with pytest.raises(SystemExit) as raised:
        ENDS[what](made)
    assert raised.value.code == 143
    assert is_between_batches(raised.value) is (what == "eval")  # else a step, or a batch, may be half done
    assert made.state.model.training


def test_between_two_outputs_of_a_prediction_it_acts_at_once():
    outputs = trainer().predict(batches(3, 3))
    next(outputs)
    with pytest.raises(KeyboardInterrupt) as raised:
        signal.raise_signal(signal.SIGINT)
    assert raised.value.args == ()
    assert len(list(outputs)) == 1


def test_what_ignores_a_signal_goes_on_to():
    former = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with SignalGuard(lambda _: pytest.fail("it was heard")):
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, former)


def test_in_a_notebook_the_cell_ends_and_the_next_one_goes_on():
    made = made_with("batch_end", lambda state: state.timestamp.batch == 2 and signal.raise_signal(signal.SIGINT))
    notebook = code.InteractiveInterpreter({"trainer": made, "done": []})
    with contextlib.redirect_stderr(io.StringIO()) as shown:
        for cell in ("trainer.fit(); done.append('first')", "trainer.fit(); done.append('second')"):
            notebook.runsource(cell)
    assert shown.getvalue().splitlines()[-1] == "KeyboardInterrupt: ended after batch 2"
    assert notebook.locals["done"] == ["second"]
    assert made.state.timestamp.batch == 3
