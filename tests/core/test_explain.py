from importlib import import_module

import pytest

from engine_core import Algorithm, AlgorithmMetadata, Callback, Engine, Event, Logger, State, algorithm_pass


class A(Algorithm):
    def match(self, event, state):
        return False

    def apply(self, event, state, logger):
        raise AssertionError


class B(A):
    metadata = AlgorithmMetadata(name="bee")


class C(A):
    pass


def explain(event, algorithms, algorithm_passes=None):
    engine = Engine(State(algorithms=algorithms), Logger(), algorithm_passes)
    return [tuple(explained[:3]) for explained in engine.explain(event)]


def test_it_shows_the_order_as_if_every_algorithm_that_lists_the_event_matched():
    class Elsewhere(A):
        metadata = AlgorithmMetadata(events=("fit_end",))

    assert explain("init", [A(), Elsewhere(), B()]) == [
        ("A", "a", "before B: list position"),
        ("B", "bee", "after A: list position"),
    ]
    assert explain("batch_end", [Elsewhere()]) == []


def test_one_alone_has_no_neighbours():
    assert explain("INIT", [A()]) == [("A", "a", "runs alone")]


def test_filo_is_a_reason():
    assert explain("after_loss", [A(), B()]) == [
        ("B", "bee", "before A: FILO, the list is reversed on AFTER events"),
        ("A", "a", "after B: FILO, the list is reversed on AFTER events"),
    ]


def test_a_declaration_is_a_reason_and_says_whose():
    class First(A):
        metadata = AlgorithmMetadata(before=("bee",))

    assert explain("init", [B(), First()]) == [
        ("First", "first", "before B: declared by First (before='bee')"),
        ("B", "bee", "after First: declared by First (before='bee')"),
    ]


def test_an_algorithm_that_was_moved_with_others_says_so():
    class First(A):
        metadata = AlgorithmMetadata(before=("bee",))

    assert explain("init", [B(), C(), First()]) == [
        ("C", "c", "before First: list position"),
        ("First", "first", "after C: list position"),
        ("B", "bee", "after First: declared by First (before='bee')"),
    ]


def test_a_chain_of_declarations_is_shown_link_by_link():
    class Between(A):
        metadata = AlgorithmMetadata(after=("first",), before=("last",))

    class First(A):
        pass

    class Last(A):
        pass

    engine = Engine(State(algorithms=[Last(), Between(), First()]), Logger(), lambda algorithms, event: algorithms)
    derivation = engine.passes.derivation(engine.members, Event.INIT)
    assert derivation.final == ("First", "Between", "Last")
    assert derivation.reason("First", "Last").text == (
        "declared by Between (after='first') and declared by Between (before='last')"
    )


def test_a_declaration_names_the_distribution_and_its_version(install):
    text = """
        from engine_core import Algorithm, AlgorithmMetadata

        class Early(Algorithm):
            metadata = AlgorithmMetadata(before=("a",))
            match = apply = lambda self, *arguments: None
    """
    install("early-plugin", {"algorithms": {"early": "early_module:Early"}}, {"early_module": text}, version="2.1")
    engine = Engine(State(algorithms=[A(), import_module("early_module").Early()]), Logger())
    assert engine.explain("init")[0] == (
        "Early",
        "early",
        "before A: declared by Early (early-plugin 2.1, before='a')",
        "early-plugin",
        "2.1",
    )


def test_the_users_pass_is_a_reason():
    def mine(algorithms, event):
        return algorithms[::-1]

    assert explain("init", [A(), B()], mine) == [
        ("B", "bee", "before A: your pass 'mine'"),
        ("A", "a", "after B: your pass 'mine'"),
    ]


def test_members_that_a_pass_changed_are_shown():
    extra = C()

    @algorithm_pass(changes_members=True)
    def exchange(algorithms, event):
        return [algorithms[1], extra]

    assert explain("init", [A(), B()], exchange) == [
        ("B", "bee", "before C: C was added by your pass 'exchange'"),
        ("C", "c", "after B: C was added by your pass 'exchange'"),
    ]


def test_it_shows_what_a_run_then_does():
    class Running(A):
        def match(self, event, state):
            return True

        def apply(self, event, state, logger):
            return None

    class Early(Running):
        metadata = AlgorithmMetadata(before=("running",))

    engine = Engine(State(algorithms=[Running(), Early(), Running()]), Logger())
    for event in ("before_loss", "after_loss", "init", "eval_after_forward"):
        told = [explained.algorithm for explained in engine.explain(event)]
        assert told == [trace.name for trace in engine.run_event(event).values()]


def test_an_unknown_event_is_refused():
    with pytest.raises(ValueError, match="did you mean 'after_loss'"):
        explain("afterloss", [A()])


def test_a_closed_engine_still_explains_and_opens_nothing():
    callback = Callback()
    engine = Engine(State(algorithms=[A()]), Logger())
    engine.run_event("init")
    engine.close()
    engine.state.callbacks.append(callback)
    assert [e[:3] for e in engine.explain("init")] == [("A", "a", "runs alone")]
    Engine(State(callbacks=[callback]), Logger()).run_event("init")
