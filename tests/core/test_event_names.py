"""A string in a method that is nearly an event's name causes a warning at that method."""

import functools
import inspect

import pytest

from engine_core import Algorithm, AlgorithmMetadata, Callback, Engine, Logger, State
from engine_core.engine import misspelt_events
from engine_core.errors import EventNameWarning

DUE = "after_lss"


def of(match, apply=lambda self, event, state, logger: None):
    class Subject(Algorithm):
        metadata = AlgorithmMetadata(events=("after_loss",))

    Subject.match, Subject.apply = match, apply
    Subject.__abstractmethods__ = frozenset()
    return Subject


@pytest.mark.parametrize(
    "match",
    [
        lambda self, event, state: event == "after_lss",
        lambda self, event, state: "after_lss" == event,  # noqa: SIM300
        lambda self, event, state: event in ("init", "after_lss"),
        lambda self, event, state: event in {"init", "after_lss"},
        lambda self, event, state: any(event == name for name in ("after_lss",)),
    ],
    ids=["==", "reversed", "tuple", "set", "generator"],
)
def test_a_near_name_in_match_is_found(match):
    assert [message for _, message in misspelt_events(of(match))] == [
        "Subject.match mentions 'after_lss', and no event has that name; did you mean 'after_loss'?"
    ]


def test_the_warning_is_at_the_line_of_the_method():
    class Late(Algorithm):
        def match(self, event, state):
            return event == "afterloss"

        def apply(self, event, state, logger):
            return 1 if event == "befor_loss" else 0

    with pytest.warns(EventNameWarning) as caught, Engine(State(algorithms=[Late()]), Logger()) as engine:
        engine.run_event("after_loss")
    lines = [inspect.getsourcelines(method)[1] for method in (Late.match, Late.apply)]
    assert [(w.filename, w.lineno) for w in caught] == [(__file__, line) for line in lines]
    assert [str(w.message).partition(" mentions ")[2] for w in caught] == [
        "'afterloss', and no event has that name; did you mean 'after_loss'?",
        "'befor_loss', and no event has that name; did you mean 'before_loss'?",
    ]


def test_methods_of_a_callback_are_looked_at_too():
    class Watch(Callback):
        def batch_end(self, state, logger):
            return state.metrics.get("evalend")

        def _own(self):
            return "after_lss"

    with pytest.warns(EventNameWarning, match="Watch.batch_end mentions 'evalend'") as caught:
        Engine(State(callbacks=[Watch()]), Logger()).close()
    assert len(caught) == 1


def test_one_that_joins_later_is_looked_at_when_it_joins_and_no_other_one_again():
    first = of(lambda self, event, state: event == "after_lss")()
    with pytest.warns(EventNameWarning, match="after_lss"):
        engine = Engine(State(algorithms=[first]), Logger())
    engine.state.algorithms.append(of(lambda self, event, state: event == "fit_strt")())
    with pytest.warns(EventNameWarning, match="fit_start") as caught:
        engine.run_event("after_loss")
    assert len(caught) == 1
    engine.close()


def test_a_wrapped_method_is_looked_into():
    def match(self, event, state):
        return event == "after_lss"

    @functools.wraps(match)
    def wrapped(*given):
        return match(*given)

    assert len(list(misspelt_events(of(wrapped)))) == 1


@pytest.mark.parametrize(
    "text",
    ["after_loss", "eval_forward", "eval_batch", "after the loss", "After_lss", "int", "loss", "targets", "my_event"],
)
def test_what_is_an_event_or_a_pair_or_nothing_like_one_causes_no_warning(text):
    namespace = {}
    exec(f"def match(self, event, state):\n    return event == {text!r}", namespace)
    assert list(misspelt_events(of(namespace["match"]))) == []


@pytest.mark.parametrize(
    "text",
    [
        "afterloss",
        "afteer_loss",
        "after_lozs",
        "after_losss",
        "after_lsos",
        "aftre_loss",
        "after_los",
        "bfore_loss",
        "befor_loss",
        "val_start",
    ],
)
def test_one_slip_is_told(text):
    namespace = {}
    exec(f"def match(self, event, state):\n    return event == {text!r}", namespace)
    assert len(list(misspelt_events(of(namespace["match"])))) == 1


@pytest.mark.parametrize(
    "text",
    ["finite", "batch_mean", "batch_std", "batch_index", "batch_stats", "epoch_len", "eval_batch_size", "fit_state"],
)
def test_names_of_metrics_and_items_are_no_events_though_they_resemble_one(text):
    namespace = {}
    exec(f"def apply(self, event, state, logger):\n    logger.log_metrics({{{text!r}: 0.0}})", namespace)
    assert list(misspelt_events(of(lambda *_: True, namespace["apply"]))) == []


@pytest.mark.parametrize("method", [None, 3, property(lambda self: None), staticmethod(len), type])
def test_what_has_no_code_is_left_alone(method):
    assert list(misspelt_events(of(method))) == []


def test_a_name_from_elsewhere_is_not_looked_up_when_an_algorithm_joins():
    assert list(misspelt_events(of(lambda self, event, state: event == DUE))) == []
