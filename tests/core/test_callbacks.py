"""Callbacks as people write them, strange ones too, and those that wrap each apply of each algorithm."""

from contextlib import contextmanager

import pytest

from engine_core import Algorithm, AlgorithmMetadata, Callback, Engine, Event, Logger, LoggerDestination, State


def heard(callback, event="batch_end"):
    """Return what a callback puts into `state.outputs` at an event, and check that it can be closed."""
    state = State(callbacks=[callback], outputs=[])
    with Engine(state, Logger()) as engine:
        engine.run_event("init")
        engine.run_event(event)
    return state.outputs


class Listening(Callback):
    def batch_end(self, state, logger):
        state.outputs.append(type(self).__name__)


def test_a_callback_may_listen_to_any_event_by_a_method_of_its_name():
    def hear(self, state, logger):
        state.outputs.append((type(state), type(logger)))

    for event in set(Event) - {Event.INIT}:
        callback = type("One", (Callback,), {event.value: hear})()
        assert heard(callback, event) == [(State, Logger)]


class Touchy(Listening):
    """Can't be compared, hashed, measured, or asked for more than the methods of its class."""

    __hash__ = None

    def __eq__(self, other):
        raise AssertionError

    def __len__(self):
        return 0

    def __getattr__(self, name):
        raise AssertionError(name)


class Slotted:
    __slots__ = ("count",)

    def batch_end(self, state, logger, extra="default", *rest, **more):
        self.count = 1
        state.outputs.append((extra, rest, more))


class Static(Callback):
    @staticmethod
    def batch_end(state, logger):
        state.outputs.append("static")

    @classmethod
    def epoch_end(cls, state, logger):
        state.outputs.append(cls.__name__)


def test_a_callback_may_be_hard_to_handle_or_no_callback_at_all():
    assert heard(Touchy()) == ["Touchy"]
    assert heard(Slotted()) == [("default", (), {})]
    assert (heard(Static()), heard(Static(), "epoch_end")) == (["static"], ["Static"])


def test_several_whose_comparison_raises_are_heard_each():
    state = State(callbacks=[Touchy(), Touchy()], outputs=[])
    with Engine(state, Logger()) as engine:
        engine.run_event("batch_end")
        engine.state.callbacks.append(Touchy())
        engine.run_event("batch_end")
    assert state.outputs == ["Touchy"] * 5


def test_who_equals_everything_is_not_taken_for_another():
    class Agreeable(LoggerDestination):
        __hash__ = None

        def __eq__(self, other):
            return True

        def batch_end(self, state, logger):
            state.outputs.append("heard")

    state = State(callbacks=[Agreeable(), Agreeable()], outputs=[])
    with Engine(state, Logger([Agreeable()])) as engine:
        engine.run_event("batch_end")
    assert state.outputs == ["heard"] * 3


def test_properties_are_not_touched():
    class Guarded(Listening):
        @property
        def secret(self):
            raise AssertionError

        @property
        def epoch_start(self):
            raise AssertionError

    assert heard(Guarded(), "epoch_start") == []
    assert heard(Guarded()) == ["Guarded"]


def test_a_method_of_the_instance_counts_before_that_of_the_class():
    callback = Listening()
    callback.batch_end = lambda state, logger: state.outputs.append("own")
    assert heard(callback) == ["own"]
    callback.batch_end = None
    assert heard(callback) == []


def test_two_of_one_class_are_told_apart_in_notes():
    class Failing(Callback):
        def __init__(self, fails):
            self.fails = fails

        def batch_end(self, state, logger):
            if self.fails:
                raise ValueError("second")

    with pytest.raises(ValueError, match="second") as failure:
        Engine(State(callbacks=[Failing(False), Failing(True)]), Logger()).run_event("batch_end")
    assert failure.value.__notes__ == ["raised by callback Failing-2 at BATCH_END"]


class Shift(Algorithm):
    metadata = AlgorithmMetadata(events=("before_loss", "after_loss"))

    def __init__(self, heard):
        self.heard = heard

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        self.heard.append("apply")
        return 3


class Watcher(Callback):
    def __init__(self, heard, sign):
        self.heard, self.sign = heard, sign

    @contextmanager
    def around_apply(self, algorithm, name, event, state):
        self.heard.append(f"{self.sign} {type(algorithm).__name__} {name} {event}")
        try:
            yield
        finally:
            self.heard.append(f"/{self.sign}")


def test_it_wraps_each_apply_from_when_it_joins_and_the_first_is_the_outermost():
    heard = []
    engine = Engine(State(algorithms=[Shift(heard), Shift(heard)], callbacks=[Watcher(heard, "a")]), Logger())
    traces = engine.run_event("before_loss")
    assert heard == ["a Shift Shift before_loss", "apply", "/a", "a Shift Shift-2 before_loss", "apply", "/a"]
    assert [trace.exit_code for trace in traces.values()] == [3, 3]
    heard.clear()
    engine.state.callbacks.append(Watcher(heard, "b"))
    engine.run_event("before_loss")
    assert heard[:5] == ["a Shift Shift before_loss", "b Shift Shift before_loss", "apply", "/b", "/a"]


def test_it_wraps_the_apply_that_undoes_after_an_exception_too():
    heard = []
    engine = Engine(State(algorithms=[Shift(heard)], callbacks=[Watcher(heard, "w")]), Logger())
    with pytest.raises(ZeroDivisionError), engine.restoring():
        engine.run_event("before_loss")
        raise ZeroDivisionError
    assert heard[3:] == ["w Shift Shift after_loss", "apply", "/w"]


class Fails(Callback):
    """Raises before or after the apply that it wraps, at one event."""

    def __init__(self, where, event):
        self.where, self.event = where, event

    @contextmanager
    def around_apply(self, algorithm, name, event, state):
        if (self.where, event) == ("before", self.event):
            raise ZeroDivisionError
        yield
        if (self.where, event) == ("after", self.event):
            raise ZeroDivisionError


@pytest.mark.parametrize(
    ("where", "event", "applied"),
    [
        ("before", "before_loss", []),
        ("after", "before_loss", ["before_loss", "after_loss"]),
        ("before", "after_loss", ["before_loss", "after_loss"]),
        ("after", "after_loss", ["before_loss", "after_loss"]),
    ],
)
def test_one_that_raises_itself_is_blamed_and_the_algorithm_undoes_what_it_did(where, event, applied):
    class Tell(Shift):
        def apply(self, event, state, logger):
            self.heard.append(str(event))

    heard = []
    watchers = [Watcher([], "w"), Fails(where, event)]
    engine = Engine(State(algorithms=[Tell(heard)], callbacks=watchers), Logger())
    with pytest.raises(ZeroDivisionError) as caught, engine.restoring():
        engine.run_event("before_loss")
        engine.run_event("after_loss")
    assert heard == applied
    blame = f"raised by around_apply of callback Fails around algorithm Tell at {event.upper()}"
    assert caught.value.__notes__[0] == blame
