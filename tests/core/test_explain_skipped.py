"""What plays no part in the order and why, and combinations that every engine refuses."""

from importlib import import_module

import pytest

from engine_core import Algorithm, AlgorithmMetadata, Engine, Logger, State, passes
from engine_core.errors import EngineError, OrderError
from engine_core.explain import explain_algorithms, format_skipped
from engine_core.registry import Registry

PLUGIN = """
    from engine_core import Algorithm, algorithm_pass, passes

    class Prune(Algorithm):
        match = apply = lambda self, *arguments: None

    @algorithm_pass(stage="placement", events=("fit_start", "fit_end"))
    def prune_first(algorithms, event):
        return passes.sort_to_front(algorithms, Prune)

    @algorithm_pass(stage="placement")
    def prune_last(algorithms, event):
        return passes.sort_to_back(algorithms, Prune)
"""


class Quiet(Algorithm):
    metadata = AlgorithmMetadata(events=("init",))

    def match(self, event, state):
        return False

    def apply(self, event, state, logger):
        raise AssertionError


class A(Quiet):
    pass


class B(Quiet):
    pass


class AtEnd(Quiet):
    metadata = AlgorithmMetadata(events=("fit_end",))


def declaring(cls, **fields):
    return type(cls.__name__, (cls,), {"metadata": AlgorithmMetadata(events=("init",), **fields)})()


def skipped(algorithms, algorithm_passes=None):
    return [(s.what, s.why, s.events) for s in explain_algorithms(algorithms, algorithm_passes).skipped]


@pytest.fixture
def prune(install):
    points = {
        "algorithms": {"prune": "prune_three:Prune"},
        "passes": {name: f"prune_three:{name}" for name in ("prune_first", "prune_last")},
    }
    install("prune-plugin", points, {"prune_three": PLUGIN})
    return lambda: import_module("prune_three").Prune()


def test_nothing_is_skipped_where_all_plays_a_part():
    assert skipped([A(), B()]) == []


def test_a_disabled_pass_of_a_distribution_in_use(prune, monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "prune_last,prune_first")
    pruning = declaring(type(prune()))
    assert skipped([pruning]) == [
        (f"pass {name!r} of prune-plugin 1.0", "disabled: listed in ENGINE_CORE_DISABLE_PLUGINS", ("init",))
        for name in ("prune_first", "prune_last")
    ]


def test_a_pass_that_does_not_run_at_an_event(prune):
    at_end = AtEnd()
    assert skipped([at_end, declaring(type(prune()))]) == [
        ("pass 'prune_first' of prune-plugin 1.0", "runs at fit_start and fit_end only", ("init",))
    ]


def test_passes_of_a_distribution_that_is_not_in_use_are_not_listed(prune, monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "prune_last")
    assert {"prune_first", "prune_last"} <= {record.name for record in Registry.scan().records}
    assert skipped([A()]) == []


def test_references_to_what_is_absent_or_never_there():
    assert skipped([declaring(A, before=("nobody", "@nothing"), after=("at_end", "b")), AtEnd(), B()]) == [
        ("A: before='nobody'", "no algorithm here has that name", ("init",)),
        ("A: before='@nothing'", "no algorithm here has that tag", ("init",)),
        ("A: after='at_end'", "AtEnd shares no event with it", ("init",)),
    ]


def test_names_in_an_explicit_order_that_are_not_there():
    table = passes.explicit_order({"init": ["at_end", "a", "c"]})
    assert skipped([A(), AtEnd()], table) == [
        ("your pass 'explicit_order'", "runs at init only", ("fit_end",)),
        ("your pass 'explicit_order': 'at_end' at init", "AtEnd does not list init", ("init",)),
        ("your pass 'explicit_order': 'c' at init", "no algorithm here has that name", ("init",)),
    ]


def test_as_text_it_is_a_paragraph():
    assert format_skipped(explain_algorithms([declaring(A, before=("nobody",))]).skipped) == (
        "skipped\n  A: before='nobody': no algorithm here has that name"
    )
    assert format_skipped(()) == ""


def rivals():
    return [
        declaring(A, conflicts=("b",), requires=("none_has", "@needed")),
        declaring(B, conflicts=("a",), before=("c",)),
        type("C", (Quiet,), {"metadata": AlgorithmMetadata(events=("init", "fit_end"), before=("b",))})(),
    ]


PROBLEMS = [
    (
        "the declared order has a cycle, remove one of these:\n"
        "  B before C: declared by B (before='c')\n"
        "  C before B: declared by C (before='b')\n"
        "at INIT"
    ),
    "'a' (A) can't run together with 'b' (B): it declares conflicts='b'; leave one of them out",
    (
        "'a' (A) requires 'none_has', and no such algorithm is listed; no installed distribution ships it; install one "
        "that does, and add it"
    ),
    "'a' (A) requires '@needed', and no such algorithm is listed; add one with that tag",
]


def test_all_problems_are_listed_and_the_rest_is_explained():
    explanation = explain_algorithms(rivals())
    assert list(explanation.problems) == PROBLEMS
    assert {event: [e.algorithm for e in order] for event, order in explanation.items()} == {"fit_end": ["C"]}


def test_an_engine_refuses_with_all_problems_at_once():
    with pytest.raises(EngineError) as refusal:
        Engine(State(algorithms=rivals()), Logger())
    told = str(refusal.value)
    assert told.startswith("4 things are wrong with this combination:\n- the declared order has a cycle")
    assert [told.count(problem.replace("\n", "\n  ")) for problem in PROBLEMS] == [1, 1, 1, 1]
    assert type(refusal.value) is EngineError


def test_cycles_alone_stay_an_order_error_that_says_at_which_events():
    both = [declaring(A, before=("b",)), declaring(B, before=("a",))]
    for algorithm in both:
        type(algorithm).metadata = algorithm.metadata.model_copy(update={"events": None})
    with pytest.raises(OrderError, match="the declared order has a cycle") as refusal:
        Engine(State(algorithms=both), Logger())
    assert refusal.value.__notes__ == ["at INIT, AFTER_LOAD, FIT_START and 23 more"]


def test_distributions_are_named_on_both_sides_and_so_is_the_one_that_ships_what_is_missing(prune, install):
    text = """
        from engine_core import Algorithm, AlgorithmMetadata

        class Needy(Algorithm):
            metadata = AlgorithmMetadata(conflicts=("prune",), requires=("other",))
            match = apply = lambda self, *arguments: None

        class Other(Needy):
            metadata = AlgorithmMetadata()
    """
    points = {"needy": "needy_module:Needy", "other": "needy_module:Other"}
    install("needy-plugin", {"algorithms": points}, {"needy_module": text}, version="0.4")
    assert list(explain_algorithms([import_module("needy_module").Needy(), prune()]).problems) == [
        (
            "'needy' (Needy of needy-plugin 0.4) can't run together with 'prune' (Prune of prune-plugin 1.0): it "
            "declares conflicts='prune'; leave one of them out"
        ),
        (
            "'needy' (Needy of needy-plugin 0.4) requires 'other', and no such algorithm is listed; "
            "add it, it is in needy-plugin 0.4"
        ),
    ]


def test_a_plugins_pass_that_breaks_a_constraint_is_a_problem(prune):
    after = type("After", (Quiet,), {"metadata": AlgorithmMetadata(events=("init",), after=("prune",))})()
    (problem,) = explain_algorithms([prune(), after]).problems
    assert problem == (
        "pass 'prune_last' of prune-plugin puts After before Prune at INIT, but After (after='prune') "
        "declares the opposite; disable that pass or fix its distribution"
    )
