"""The place of each algorithm has a reason: a sentence for people, and its parts for programs."""

import json
from importlib import import_module

from engine_core import Callback, Engine, Logger, State, algorithm_pass
from engine_core.explain import explain_algorithms

from .parts import A, Always, B, C, made, source_of

FIRST = made("First", before=("b",))
BY_FIRST = "declared by First (before='b')"


def told(event, *algorithms, algorithm_passes=None):
    """Return the algorithms at an event, each with the sentence and the parts of the reason."""
    records = json.loads(json.dumps(explain_algorithms(algorithms, algorithm_passes).records()))
    return [(place["algorithm"], place["why"], *place["reason"].values()) for place in records.get(event, [])]


def test_the_list_is_a_reason_as_if_every_algorithm_that_lists_the_event_matched():
    elsewhere = made("Elsewhere", events=("fit_end",))
    assert told("init", A(), elsewhere, B()) == [
        ("A", "before B: list position", "list", None, None),
        ("B", "after A: list position", "list", None, None),
    ]
    assert told("init", A()) == [("A", "runs alone", "only", None, None)]
    assert told("batch_end", elsewhere) == Engine(State(algorithms=[elsewhere]), Logger()).explain("BATCH_END") == []


def test_filo_is_a_reason():
    reason = ("FILO, the list is reversed on AFTER events", "filo", "set_filo_order", "engine-core")
    assert told("after_loss", A(), B()) == [
        ("B", f"before A: {reason[0]}", *reason[1:]),
        ("A", f"after B: {reason[0]}", *reason[1:]),
    ]


def test_a_declaration_is_a_reason_and_one_that_was_moved_with_others_is_where_the_list_has_it():
    assert told("init", FIRST, B(), A()) == [
        ("First", f"before B: {BY_FIRST}", "declared", "First", None),
        ("B", f"after First: {BY_FIRST}", "declared", "First", None),
        ("A", "after B: list position", "list", None, None),
    ]
    assert told("init", B(), C(), FIRST) == [
        ("C", "before First: list position", "list", None, None),
        ("First", "after C: list position", "list", None, None),
        ("B", f"after First: {BY_FIRST}", "declared", "First", None),
    ]


def test_a_chain_of_declarations_is_shown_link_by_link_and_attributed_to_the_first_that_declares():
    between = made("Between", after=("a",), before=("b",))

    @algorithm_pass(changes_members=True)
    def drop(algorithms, event):
        return [algorithm for algorithm in algorithms if algorithm is not between]

    chain = "declared by Between (after='a') and declared by Between (before='b')"
    assert told("init", B(), between, A(), algorithm_passes=drop) == [
        ("A", f"before B: {chain}", "declared", "Between", None),
        ("B", f"after A: {chain}", "declared", "Between", None),
    ]


def test_a_declaration_and_a_pass_of_a_distribution_name_it(install):
    text = source_of("Early", before=("a",)) + (
        "\n@algorithm_pass(stage='placement')\ndef turn_round(algorithms, event):\n    return algorithms[::-1]\n"
    )
    points = {"algorithms": {"early": "early_module:Early"}, "passes": {"turn_round": "early_module:turn_round"}}
    install("early-plugin", points, {"early_module": text}, version="2.1")
    early = import_module("early_module").Early()
    assert told("init", B(), early)[0][1:] == (
        "before B: pass 'turn_round' of early-plugin",
        *("pass", "turn_round", "early-plugin"),
    )
    back = algorithm_pass(stage="check", name="back")(lambda algorithms, event: algorithms[::-1])
    place = Engine(State(algorithms=[A(), early]), Logger(), back).explain("init")[0]
    declared = "before A: declared by Early (early-plugin 2.1, before='a')"
    assert place == ("Early", "early", declared, "early-plugin", "2.1")


def test_the_users_pass_is_a_reason_and_members_that_it_changed_are_shown():
    def mine(algorithms, event):
        return algorithms[::-1]

    assert told("init", A(), B(), algorithm_passes=mine) == [
        ("B", "before A: your pass 'mine'", "user", "mine", None),
        ("A", "after B: your pass 'mine'", "user", "mine", None),
    ]
    extra = C()

    @algorithm_pass(changes_members=True)
    def exchange(algorithms, event):
        return [algorithms[1], extra]

    added = "C was added by your pass 'exchange'"
    assert told("init", A(), B(), algorithm_passes=exchange) == [
        ("B", f"before C: {added}", "added", "exchange", None),
        ("C", f"after B: {added}", "added", "exchange", None),
    ]


def test_it_shows_what_a_run_then_does_and_after_the_end_opens_nothing():
    engine = Engine(State(algorithms=[Always(), made("Early", before=("always",)), Always()]), Logger())
    for event in ("before_loss", "after_loss", "init", "eval_after_forward"):
        explained = [place.algorithm for place in engine.explain(event)]
        assert explained == [trace.name for trace in engine.run_event(event).values()]
    engine.close()
    engine.state.callbacks.append(callback := Callback())
    assert len(engine.explain("init")) == 3
    Engine(State(callbacks=[callback]), Logger()).run_event("init")
