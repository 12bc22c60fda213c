"""Callbacks as people write them, strange ones too: none of their oddities reaches pluggy."""

import pytest

from engine_core import Callback, Engine, Event, Logger, LoggerDestination, State


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
