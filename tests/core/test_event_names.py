"""A string in a method that is nearly an event's name: what the conformance kit and the doctor say about it."""

import functools

import pytest

from engine_core import Algorithm, AlgorithmMetadata, Callback
from engine_core_author import misspelt_events

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
    assert list(misspelt_events(of(match))) == [
        "Subject.match mentions 'after_lss', and no event has that name; did you mean 'after_loss'?"
    ]


def test_methods_of_a_callback_are_looked_at_too():
    class Watch(Callback):
        def batch_end(self, state, logger):
            return state.metrics.get("evalend")

        def _own(self):
            return "after_lss"

    assert list(misspelt_events(Watch)) == [
        "Watch.batch_end mentions 'evalend', and no event has that name; did you mean 'eval_end'?"
    ]


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


def test_a_name_from_elsewhere_is_not_looked_up():
    assert list(misspelt_events(of(lambda self, event, state: event == DUE))) == []
