"""What the engine refuses, by name and with the remedy, and the notes on an exception that passes through it."""

import re
import traceback

import pytest

from engine_core import Algorithm, Callback, Engine, Logger, State
from engine_core.errors import EngineError, HookNameWarning


class Alg(Algorithm):
    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        return None


class Cb(Callback):
    def batch_end(self, state, logger):
        pass


def test_state_and_logger_have_to_be_what_they_are_called():
    with pytest.raises(TypeError, match=r"Engine\(state, logger\) takes a State and a Logger"):
        Engine(Logger(), State())


def test_an_unknown_event_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="'batch_stop' is not an event; did you mean 'batch_start'"):
        Engine(State(), Logger()).run_event("batch_stop")


@pytest.mark.parametrize("event", [3, None, []])
def test_an_event_that_is_not_a_string_is_refused(event):
    with pytest.raises(TypeError, match="an event is named by a string or an Event"):
        Engine(State(), Logger()).run_event(event)


class NoApply:
    def match(self, event, state):
        return True

    def __repr__(self):
        return "<NoApply>"


class WrongMatch(Alg):
    def match(self, event):
        return True


class WrongApply(Alg):
    def apply(self, event, state):
        return None


class WrongMetadata(Alg):
    metadata = {"events": ["init"]}  # noqa: RUF012


ALGORITHMS = {
    "name": ("mixup", "algorithm 1 ('mixup' of type str) has no match and no apply; an algorithm has match(event"),
    "number": (3, "algorithm 1 (3 of type int) has no match and no apply"),
    "no apply": (NoApply(), "algorithm 1 (<NoApply> of type NoApply) has no apply; an algorithm has match(event"),
    "class": (Alg, "algorithm 1 is the class Alg; write Alg()"),
    "match": (WrongMatch(), "WrongMatch.match has to take (event, state): too many positional arguments"),
    "apply": (WrongApply(), "WrongApply.apply has to take (event, state, logger): too many positional arguments"),
    "metadata": (WrongMetadata(), "WrongMetadata.metadata is {'events': ['init']}; it has to be an AlgorithmMetadata"),
}


@pytest.mark.parametrize(("wrong", "message"), ALGORITHMS.values(), ids=ALGORITHMS)
def test_anything_but_an_algorithm_is_refused_when_the_engine_is_made(wrong, message):
    with pytest.raises(TypeError, match=re.escape(message)) as refusal:
        Engine(State(algorithms=[Alg(), wrong]), Logger())
    assert isinstance(refusal.value, EngineError)


def test_an_algorithm_may_be_listed_once():
    algorithm = Alg()
    with pytest.raises(ValueError, match=r"algorithm 2 .* is listed twice; make a second instance instead"):
        Engine(State(algorithms=[algorithm, Alg(), algorithm]), Logger())


class WrongMethod(Callback):
    def batch_end(self, state):
        pass


CALLBACKS = {
    "class": (Cb, "callback 0 is the class Cb; write Cb()"),
    "name": ("profiler", "callback 0 ('profiler' of type str) has no method named after an event"),
    "number": (3, "callback 0 (3 of type int) has no method named after an event"),
    "method": (WrongMethod(), "WrongMethod.batch_end has to take (state, logger): too many positional arguments"),
}


@pytest.mark.parametrize(("wrong", "message"), CALLBACKS.values(), ids=CALLBACKS)
def test_anything_but_a_callback_is_refused_when_the_engine_is_made(wrong, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        Engine(State(callbacks=[wrong]), Logger())


def test_a_callback_may_be_listed_once():
    callback = Cb()
    with pytest.raises(ValueError, match=r"callback 1 \(Cb\) is listed twice"):
        Engine(State(callbacks=[callback, callback]), Logger())


@pytest.mark.parametrize(("name", "near"), [("batch_ends", "batch_end"), ("on_epoch_start", "epoch_start")])
def test_a_public_method_whose_name_is_nearly_an_events_is_warned_about_once(name, near):
    callback = type("Watching", (Callback,), {name: lambda self, state, logger: None})()
    with pytest.warns(HookNameWarning, match=f"Watching.{name} is never called.* did you mean '{near}'"):
        engine = Engine(State(callbacks=[callback]), Logger())
    engine.state.algorithms.append(Alg())
    engine.run_event("init")


def test_private_helpers_and_the_contract_itself_cause_no_warning():
    class Fine(Callback):
        def _batch_ends(self):
            pass

        def train_batch(self):
            pass

        def state_dict(self):
            return {}

    Engine(State(callbacks=[Fine()]), Logger())


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
    ("event", "role", "note"),
    [
        ("fit_start", "algorithms", "raised by match of algorithm Raising at FIT_START"),
        ("fit_end", "algorithms", "raised by apply of algorithm Raising at FIT_END"),
        ("after_dataloader", "algorithms", "raised by validate of algorithm Raising at AFTER_DATALOADER"),
        ("batch_end", "callbacks", "raised by callback Raising at BATCH_END"),
    ],
)
@pytest.mark.parametrize("error", [ZeroDivisionError("in a plugin"), KeyboardInterrupt(), SystemExit(2)], ids=repr)
def test_what_is_raised_comes_through_with_its_traceback_and_a_note(event, role, note, error):
    error = type(error)(*error.args)
    engine = Engine(State(**{role: [raising(error)]}, batch="x"), Logger())
    with pytest.raises(type(error)) as failure:
        engine.run_event(event)
    assert failure.value is error
    assert error.__notes__ == [note]
    assert traceback.extract_tb(error.__traceback__)[-1].line == "raise error"


def test_notes_of_others_stay():
    error = ValueError("x")
    error.__notes__ = ["mine"]
    engine = Engine(State(algorithms=[raising(error)]), Logger())
    with pytest.raises(ValueError, match="x"):
        engine.run_event("fit_end")
    assert error.__notes__ == ["mine", "raised by apply of algorithm Raising at FIT_END"]


def test_an_async_method_is_refused():
    class Waits(Algorithm):
        def match(self, event, state):
            return True

        async def apply(self, event, state, logger): ...

    with pytest.raises(TypeError, match=r"^Waits\.apply is an async function, which the engine can't await; "):
        Engine(State(algorithms=[Waits()]), Logger())


def test_a_callback_method_whose_call_runs_nothing_is_refused():
    class Yields(Callback):
        def batch_end(self, state, logger):
            yield

    with pytest.raises(TypeError, match=r"^Yields\.batch_end is a generator function, so calling it runs nothing; "):
        Engine(State(callbacks=[Yields()]), Logger())
