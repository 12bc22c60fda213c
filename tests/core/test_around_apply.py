"""A callback with a method `around_apply` wraps each apply of each algorithm."""

from contextlib import contextmanager

import pytest

from engine_core import Algorithm, AlgorithmMetadata, Callback, Engine, Logger, State


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


def test_an_exception_of_the_algorithm_passes_through_it():
    class Raises(Shift):
        def apply(self, event, state, logger):
            raise ZeroDivisionError

    heard = []
    engine = Engine(State(algorithms=[Raises(heard)], callbacks=[Watcher(heard, "w")]), Logger())
    with pytest.raises(ZeroDivisionError) as caught:
        engine.run_event("before_loss")
    assert heard == ["w Raises Raises before_loss", "/w"]
    assert caught.value.__notes__ == ["raised by apply of algorithm Raises at BEFORE_LOSS"]


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
