"""A string in a method that is nearly an event's name: what the conformance kit and the doctor say about it."""

import functools

from engine_core import Algorithm, AlgorithmMetadata, Callback
from engine_core_author import misspelt_events


def of(match, apply=lambda self, event, state, logger: None):
    class Subject(Algorithm):
        metadata = AlgorithmMetadata(events=("after_loss",))

    Subject.match, Subject.apply = match, apply
    Subject.__abstractmethods__ = frozenset()
    return Subject


def test_a_near_name_in_match_is_found_however_it_is_compared():
    def match(self, event, state):
        return event == "after_lss"

    @functools.wraps(match)
    def wrapped(*given):
        return match(*given)

    for way in (
        *(match, wrapped),
        lambda self, event, state: event in ("init", "after_lss"),
        lambda self, event, state: event in {"init", "after_lss"},
        lambda self, event, state: any(event == name for name in ("after_lss",)),
    ):
        (said,) = misspelt_events(of(way))
        assert said.endswith("match mentions 'after_lss', and no event has that name; did you mean 'after_loss'?")


def test_methods_of_a_callback_are_looked_at_too():
    class Watch(Callback):
        def batch_end(self, state, logger):
            return state.metrics.get("evalend")

        def _own(self):
            return "after_lss"

    assert list(misspelt_events(Watch)) == [
        "Watch.batch_end mentions 'evalend', and no event has that name; did you mean 'eval_end'?"
    ]


def told_of(text):
    namespace = {}
    exec(f"def match(self, event, state):\n    return event == {text!r}", namespace)
    return list(misspelt_events(of(namespace["match"])))


def test_one_slip_is_told_and_what_is_an_event_a_pair_or_nothing_like_one_is_not():
    slips = (
        "afterloss afteer_loss after_lozs after_losss after_lsos aftre_loss after_los bfore_loss befor_loss val_start"
    )
    assert [text for text in slips.split() if len(told_of(text)) != 1] == []
    fine = "after_loss eval_forward eval_batch After_lss int loss targets my_event"
    assert [text for text in (*fine.split(), "after the loss") if told_of(text)] == []
    for method in (None, 3, property(lambda self: None), staticmethod(len), type):  # without code
        assert list(misspelt_events(of(method))) == []


def test_names_of_metrics_and_items_are_no_events_though_they_resemble_one():
    for text in [
        "finite",
        "batch_mean",
        "batch_std",
        "batch_index",
        "batch_stats",
        "epoch_len",
        "eval_batch_size",
        "fit_state",
    ]:
        namespace = {}
        exec(f"def apply(self, event, state, logger):\n    logger.log_metrics({{{text!r}: 0.0}})", namespace)
        assert list(misspelt_events(of(lambda *_: True, namespace["apply"]))) == []
