"""What the engine refuses, by name and with the remedy, and the notes on an exception that passes through it."""

import re
import traceback

import pytest

from engine_core import Algorithm, Callback, Engine, Logger, State
from engine_core.errors import EngineError, HookNameWarning

from .parts import A


class Cb(Callback):
    def batch_end(self, state, logger):
        pass


def test_state_and_logger_have_to_be_what_they_are_called():
    with pytest.raises(TypeError, match=r"Engine\(state, logger\) takes a State and a Logger"):
        Engine(Logger(), State())


def test_what_is_not_an_event_is_refused_with_the_nearest_name():
    engine = Engine(State(), Logger())
    with pytest.raises(ValueError, match="'batch_stop' is not an event; did you mean 'batch_start'"):
        engine.run_event("batch_stop")
    for event in (3, None, []):
        with pytest.raises(TypeError, match="an event is named by a string or an Event"):
            engine.run_event(event)


def test_an_algorithm_and_a_callback_may_be_listed_once():
    algorithm, callback = A(), Cb()
    with pytest.raises(ValueError, match=r"algorithm 2 .* is listed twice; make a second instance instead"):
        Engine(State(algorithms=[algorithm, A(), algorithm]), Logger())
    with pytest.raises(ValueError, match=r"callback 1 \(Cb\) is listed twice"):
        Engine(State(callbacks=[callback, callback]), Logger())


class Wrong(A):
    metadata = {"events": ["init"]}  # noqa: RUF012

    def __repr__(self):
        return "<Wrong>"


def altered(**members):
    return type("Wrong", (A, Callback), members)()


def generates(self, event, state):
    yield


async def waits(self, state, logger): ...


NOT_ALGORITHMS = [
    ("mixup", "1 ('mixup' of type str) has no match and no apply; an algorithm has match(event"),
    (
        type("NoApply", (), {"match": A.match, "__repr__": Wrong.__repr__})(),
        "1 (<Wrong> of type NoApply) has no apply;",
    ),
    (A, "1 is the class A; write A()"),
    (altered(match=lambda self, event: True), "Wrong.match has to take (event, state): too many positional arguments"),
    (altered(match=generates), "Wrong.match is a generator function, so calling it runs nothing; write it without"),
    (Wrong(), "Wrong.metadata is {'events': ['init']}; it has to be an AlgorithmMetadata"),
]
NOT_CALLBACKS = [
    (Cb, "0 is the class Cb; write Cb()"),
    ("profiler", "0 ('profiler' of type str) has no method named after an event"),
    (altered(batch_end=lambda self, state: None), "Wrong.batch_end has to take (state, logger): too many positional"),
    (altered(batch_end=waits), "Wrong.batch_end is an async function, which the engine can't await; "),
]


@pytest.mark.parametrize(("wrong", "message"), NOT_ALGORITHMS)
def test_anything_but_an_algorithm_is_refused_when_the_engine_is_made(wrong, message):
    with pytest.raises(TypeError, match=re.escape(message)) as refusal:
        Engine(State(algorithms=[A(), wrong]), Logger())
    assert isinstance(refusal.value, EngineError)


@pytest.mark.parametrize(("wrong", "message"), NOT_CALLBACKS)
def test_anything_but_a_callback_is_refused_when_the_engine_is_made(wrong, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        Engine(State(callbacks=[wrong]), Logger())


def listens_at(name):
    return type("Watching", (Callback,), {name: lambda self, state, logger: None})()


def test_a_public_method_whose_name_is_nearly_an_events_is_warned_about_once():
    for name, near in (("batch_ends", "batch_end"), ("on_epoch_start", "epoch_start")):
        with pytest.warns(HookNameWarning, match=f"Watching.{name} is never called.* did you mean '{near}'"):
            engine = Engine(State(callbacks=[listens_at(name)]), Logger())
        engine.state.algorithms.append(A())
        engine.run_event("init")
    for name in ("_batch_ends", "train_batch", "state_dict"):
        Engine(State(callbacks=[listens_at(name)]), Logger())


def test_a_run_without_a_seed_gets_one_and_a_given_one_stays():
    drawn, given, zero = State(), State(seed=5), State(seed=0)
    for state in (drawn, given, zero):
        Engine(state, Logger())
    assert (type(drawn.seed), given.seed, zero.seed) == (int, 5, 0)


def raising(error):
    class Raising(Algorithm, Callback):
        def match(self, event, state):
            if event == "fit_start":
                raise error
            return True

        def apply(self, event, state, logger):
            if event == "fit_end":
                raise error

        def validate(self, state):
            raise error

        def batch_end(self, state, logger):
            raise error

    return Raising()


@pytest.mark.parametrize(
    ("event", "role", "note", "error"),
    [
        ("fit_start", "algorithms", "raised by match of algorithm Raising at FIT_START", ZeroDivisionError("in it")),
        ("fit_end", "algorithms", "raised by apply of algorithm Raising at FIT_END", KeyboardInterrupt()),
        (
            "after_dataloader",
            "algorithms",
            "raised by validate of algorithm Raising at AFTER_DATALOADER",
            SystemExit(2),
        ),
        ("batch_end", "callbacks", "raised by callback Raising at BATCH_END", KeyboardInterrupt()),
    ],
)
def test_what_is_raised_comes_through_with_its_traceback_and_a_note(event, role, note, error):
    error.__notes__ = ["mine"]
    engine = Engine(State(**{role: [raising(error)]}, batch="x"), Logger())
    with pytest.raises(type(error)) as failure:
        engine.run_event(event)
    assert failure.value is error
    assert error.__notes__ == ["mine", note]
    assert traceback.extract_tb(error.__traceback__)[-1].line == "raise error"
