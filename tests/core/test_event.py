import functools
import inspect
import pickle

import pytest

from engine_core import Algorithm, AlgorithmMetadata, Callback, Event, hookspecs
from engine_core_author import misspelt_events

# name, canonical name, half of a pair ("before"/"after"), partner, fired by evaluation; in the order of the contract
TABLE = [
    ("INIT", "init", None, None, False),
    ("AFTER_LOAD", "load", None, None, False),
    ("FIT_START", "fit", "before", "FIT_END", False),
    ("EPOCH_START", "epoch", "before", "EPOCH_END", False),
    ("BEFORE_DATALOADER", "dataloader", "before", "AFTER_DATALOADER", False),
    ("AFTER_DATALOADER", "dataloader", "after", "BEFORE_DATALOADER", False),
    ("BATCH_START", "batch", "before", "BATCH_END", False),
    ("BEFORE_TRAIN_BATCH", "train_batch", "before", "AFTER_TRAIN_BATCH", False),
    ("BEFORE_FORWARD", "forward", "before", "AFTER_FORWARD", False),
    ("AFTER_FORWARD", "forward", "after", "BEFORE_FORWARD", False),
    ("BEFORE_LOSS", "loss", "before", "AFTER_LOSS", False),
    ("AFTER_LOSS", "loss", "after", "BEFORE_LOSS", False),
    ("BEFORE_BACKWARD", "backward", "before", "AFTER_BACKWARD", False),
    ("AFTER_BACKWARD", "backward", "after", "BEFORE_BACKWARD", False),
    ("AFTER_TRAIN_BATCH", "train_batch", "after", "BEFORE_TRAIN_BATCH", False),
    ("BATCH_END", "batch", "after", "BATCH_START", False),
    ("BATCH_CHECKPOINT", "batch_checkpoint", None, None, False),
    ("EPOCH_END", "epoch", "after", "EPOCH_START", False),
    ("EPOCH_CHECKPOINT", "epoch_checkpoint", None, None, False),
    ("FIT_END", "fit", "after", "FIT_START", False),
    ("EVAL_START", "eval", "before", "EVAL_END", True),
    ("EVAL_BATCH_START", "eval_batch", "before", "EVAL_BATCH_END", True),
    ("EVAL_BEFORE_FORWARD", "eval_forward", "before", "EVAL_AFTER_FORWARD", True),
    ("EVAL_AFTER_FORWARD", "eval_forward", "after", "EVAL_BEFORE_FORWARD", True),
    ("EVAL_BATCH_END", "eval_batch", "after", "EVAL_BATCH_START", True),
    ("EVAL_END", "eval", "after", "EVAL_START", True),
]


def test_there_are_these_26_events_in_this_order_and_each_knows_its_pair():
    assert [event.name for event in Event] == [row[0] for row in TABLE]
    for name, canonical, half, partner, is_eval in TABLE:
        event = Event[name]
        known = (event.value, event.canonical_name, event.is_before_event, event.is_after_event, event.is_eval)
        assert known == (name.lower(), canonical, half == "before", half == "after", is_eval)
        assert event.partner is (Event[partner] if partner else None)


def test_only_the_after_halves_of_before_after_pairs_undo():
    undo = ["AFTER_DATALOADER", "AFTER_FORWARD", "AFTER_LOSS", "AFTER_BACKWARD", "AFTER_TRAIN_BATCH"]
    assert [event.name for event in Event if event.is_undo] == [*undo, "EVAL_AFTER_FORWARD"]


def test_an_event_is_found_by_its_name_in_any_case_and_survives_pickling_as_itself():
    for event in Event:
        found = [Event(name) for name in (event, event.name, event.value, event.value.title())]
        assert {id(each) for each in (*found, pickle.loads(pickle.dumps(event)))} == {id(event)}


def test_an_unknown_name_is_a_value_error_that_suggests_the_nearest_and_anything_else_a_type_error():
    for name, hint in [
        ("befor_loss", "'befor_loss' is not an event; did you mean 'before_loss'?"),
        ("EPOCH_STOP", "'EPOCH_STOP' is not an event; did you mean 'epoch_start'?"),
        ("", "'' is not an event; known: after_backward, after_dataloader"),
    ]:
        with pytest.raises(ValueError, match="is not an event") as refusal:
            Event(name)
        assert str(refusal.value).startswith(hint)
    for value in (3, None, b"init", ["init"]):
        with pytest.raises(TypeError) as refused:
            Event(value)
        assert str(refused.value) == f"an event is named by a string or an Event, not by {value!r}"


def test_an_event_is_its_value_as_a_string_and_the_same_key():
    assert (str(Event.BATCH_END), f"{Event.BATCH_END}", "%s" % Event.BATCH_END) == ("batch_end",) * 3  # noqa: UP031
    assert Event.BATCH_END == "batch_end"
    assert ({Event.BATCH_END: 1}["batch_end"], {"batch_end": 1}[Event.BATCH_END]) == (1, 1)


SPECS = {name: thing for name, thing in vars(hookspecs).items() if hasattr(thing, "engine_core_spec")}


def test_there_is_one_spec_for_each_event_in_the_same_order():
    assert list(SPECS) == [event.value for event in Event]


def test_a_spec_takes_event_state_logger_and_traces_all_typed_and_says_when_it_fires_and_nothing_else():
    typed = "(event: 'Event', state: 'State', logger: 'Logger', traces: 'Traces') -> 'None'"
    assert {str(inspect.signature(spec)) for spec in SPECS.values()} == {typed}
    assert [name for name, spec in SPECS.items() if not spec.__doc__.startswith("Fire ")] == []
    assert {inspect.getsource(spec).split('"""')[-1].strip() for spec in SPECS.values()} == {""}


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
    names = "finite batch_mean batch_std batch_index batch_stats epoch_len eval_batch_size fit_state"
    for text in names.split():
        namespace = {}
        exec(f"def apply(self, event, state, logger):\n    logger.log_metrics({{{text!r}: 0.0}})", namespace)
        assert list(misspelt_events(of(lambda *_: True, namespace["apply"]))) == []
