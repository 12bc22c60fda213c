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


def test_a_callback_is_called_with_state_and_logger():
    class Curious(Callback):
        def batch_end(self, state, logger):
            state.outputs.append((type(state), type(logger)))

    assert heard(Curious()) == [(State, Logger)]


@pytest.mark.parametrize("event", [event for event in Event if event is not Event.INIT])
def test_a_callback_may_listen_to_any_event_by_a_method_of_its_name(event):
    callback = type("One", (Callback,), {event.value: lambda self, state, logger: state.outputs.append("heard")})()
    assert heard(callback, event) == ["heard"]


def test_an_unhashable_callback_works():
    class Unhashable(Listening):
        __hash__ = None

    assert heard(Unhashable()) == ["Unhashable"]


def test_a_callback_whose_comparison_raises_works():
    class Touchy(Listening):
        def __eq__(self, other):
            raise AssertionError

        __hash__ = None

    first, second = Touchy(), Touchy()
    state = State(callbacks=[first, second], outputs=[])
    with Engine(state, Logger()) as engine:
        engine.run_event("batch_end")
        engine.state.callbacks.append(Touchy())
        engine.run_event("batch_end")
    assert state.outputs == ["Touchy"] * 5


def test_a_callback_that_equals_everything_works():
    class Agreeable(Listening):
        def __eq__(self, other):
            return True

        __hash__ = None

    state = State(callbacks=[Agreeable(), Agreeable()], outputs=[])
    with Engine(state, Logger()) as engine:
        engine.run_event("batch_end")
    assert state.outputs == ["Agreeable", "Agreeable"]


def test_a_destination_that_equals_a_callback_is_not_taken_for_it():
    class Agreeable(LoggerDestination):
        def __eq__(self, other):
            return True

        __hash__ = None

        def batch_end(self, state, logger):
            state.outputs.append("heard")

    state = State(callbacks=[Agreeable()], outputs=[])
    with Engine(state, Logger([Agreeable()])) as engine:
        engine.run_event("batch_end")
    assert state.outputs == ["heard", "heard"]


def test_a_falsy_callback_works():
    class Empty(Listening):
        def __len__(self):
            return 0

    assert heard(Empty()) == ["Empty"]


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


def test_a_callback_with_slots_works():
    class Slotted:
        __slots__ = ("count",)

        def batch_end(self, state, logger):
            self.count = 1
            state.outputs.append(self.count)

    assert heard(Slotted()) == [1]


def test_a_class_that_is_not_a_callback_but_has_a_method_works():
    class Duck:
        def batch_end(self, state, logger):
            state.outputs.append("quack")

    assert heard(Duck()) == ["quack"]


def test_a_function_set_on_the_instance_is_called():
    callback = Callback()
    callback.batch_end = lambda state, logger: state.outputs.append("own")
    assert heard(callback) == ["own"]


def test_a_method_switched_off_on_the_instance_is_not_called():
    callback = Listening()
    callback.batch_end = None
    assert heard(callback) == []


def test_static_and_class_methods_work():
    class Static(Callback):
        @staticmethod
        def batch_end(state, logger):
            state.outputs.append("static")

        @classmethod
        def epoch_end(cls, state, logger):
            state.outputs.append(cls.__name__)

    assert (heard(Static()), heard(Static(), "epoch_end")) == (["static"], ["Static"])


def test_further_arguments_with_defaults_are_fine():
    class Roomy(Callback):
        def batch_end(self, state, logger, extra="default", *rest, **more):
            state.outputs.append((extra, rest, more))

    assert heard(Roomy()) == [("default", (), {})]


def test_a_callback_that_answers_to_every_name_is_asked_for_its_classes_methods_only():
    class Eager(Listening):
        def __getattr__(self, name):
            raise AssertionError(name)

    assert heard(Eager()) == ["Eager"]


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


def test_the_default_callback_does_nothing_and_saves_nothing():
    callback = Callback()
    assert heard(callback) == []
    assert (callback.state_dict(), callback.load_state_dict({}), callback.post_close()) == ({}, None, None)
