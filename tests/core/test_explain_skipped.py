"""What plays no part in the order and why, and combinations that have none: `explain` says so for each event."""

import json
from importlib import import_module

import pytest

from engine_core import Engine, Logger, State, passes
from engine_core.cli import main
from engine_core.errors import EngineError, OrderError
from engine_core.explain import Unordered, explain_algorithms, format_skipped, why
from engine_core.passes import AlgorithmRecord

from .parts import Always, made, source_of

PLUGIN = f"""{source_of("Prune")}
@algorithm_pass(stage="placement", events=("fit_start", "fit_end"))
def prune_first(algorithms, event):
    return passes.sort_to_front(algorithms, Prune)

@algorithm_pass(stage="placement")
def prune_last(algorithms, event):
    return passes.sort_to_back(algorithms, Prune)
"""


def at_init(class_name, base=Always, /, **fields):
    return made(class_name, base, events=("init",), **fields)


AT_END = made("AtEnd", events=("fit_end",))


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


def test_a_disabled_pass_of_a_distribution_in_use_and_one_that_does_not_run_at_an_event(prune, monkeypatch):
    pruning = at_init("Prune", type(prune()))
    assert skipped([AT_END, pruning]) == [
        ("pass 'prune_first' of prune-plugin 1.0", "runs at fit_start and fit_end only", ("init",))
    ]
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "prune_last,prune_first")
    assert skipped([pruning]) == [
        (f"pass {name!r} of prune-plugin 1.0", "disabled: listed in ENGINE_CORE_DISABLE_PLUGINS", ("init",))
        for name in ("prune_first", "prune_last")
    ]
    assert skipped([at_init("A"), at_init("B")]) == []


def test_references_to_what_is_absent_or_never_there():
    a = at_init("A", before=("nobody", "@nothing"), after=("at_end", "b"))
    assert skipped([a, AT_END, at_init("B")]) == [
        ("A: before='nobody'", "no algorithm here has that name", ("init",)),
        ("A: before='@nothing'", "no algorithm here has that tag", ("init",)),
        ("A: after='at_end'", "AtEnd shares no event with it", ("init",)),
    ]


@pytest.mark.parametrize(("reference", "meant"), [("at-end", "at_end"), ("AtEnd", "at_end"), ("paddings", "@padding")])
def test_the_name_to_write_is_suggested(reference, meant):
    listed = [at_init("A", before=(reference,)), AT_END, at_init("Flip", tags=("padding",))]
    assert skipped(listed) == [
        (f"A: before={reference!r}", f"no algorithm here has that name; did you mean {meant!r}?", ("init",))
    ]


def test_names_in_an_explicit_order_that_are_not_there():
    table = passes.explicit_order({"init": ["at_end", "a", "c"]})
    assert skipped([at_init("A"), AT_END], table) == [
        ("your pass 'explicit_order'", "runs at init only", ("fit_end",)),
        ("your pass 'explicit_order': 'at_end' at init", "AtEnd does not list init", ("init",)),
        ("your pass 'explicit_order': 'c' at init", "no algorithm here has that name", ("init",)),
    ]


def test_as_text_it_is_a_paragraph():
    lonely = at_init("Lonely", before=("nobody",))
    (skipped,) = explain_algorithms([LAST, FIRST, lonely]).skipped  # beside a cycle
    assert format_skipped([skipped]) == "skipped\n  Lonely: before='nobody': no algorithm here has that name"
    assert format_skipped(()) == ""


def rivals():
    return [
        at_init("A", conflicts=("b",), requires=("none_has", "@needed")),
        at_init("B", conflicts=("a",), before=("c",)),
        made("C", events=("init", "fit_end"), before=("b",)),
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


def test_all_problems_are_listed_and_the_rest_is_explained_and_an_engine_refuses_with_all_at_once():
    explanation = explain_algorithms(rivals())
    assert list(explanation.problems) == PROBLEMS
    assert {event: [e.algorithm for e in order] for event, order in explanation.items()} == {"fit_end": ["C"]}
    with pytest.raises(EngineError) as refusal:
        Engine(State(algorithms=rivals()), Logger())
    told = str(refusal.value)
    assert told.startswith("4 things are wrong with this combination:\n- the declared order has a cycle")
    assert [told.count(problem.replace("\n", "\n  ")) for problem in PROBLEMS] == [1, 1, 1, 1]
    assert type(refusal.value) is EngineError


def test_distributions_are_named_on_both_sides_and_so_is_the_one_that_ships_what_is_missing(prune, install):
    text = source_of("Needy", conflicts=("prune",), requires=("other",)) + source_of("Other")
    points = {"needy": "needy_module:Needy", "other": "needy_module:Other"}
    install("needy-plugin", {"algorithms": points}, {"needy_module": text}, version="0.4")
    needy = import_module("needy_module").Needy()
    conflict, missing = explain_algorithms([needy, prune()]).problems
    assert conflict == (
        "'needy' (Needy of needy-plugin 0.4) can't run together with 'prune' (Prune of prune-plugin 1.0): it "
        "declares conflicts='prune'; leave one of them out"
    )
    assert missing == (
        "'needy' (Needy of needy-plugin 0.4) requires 'other', and no such algorithm is listed; "
        "add it, it is in needy-plugin 0.4"
    )


def test_a_plugins_pass_that_breaks_a_constraint_is_a_problem(prune):
    (problem,) = explain_algorithms([prune(), at_init("After", after=("prune",))]).problems
    assert problem == (
        "pass 'prune_last' of prune-plugin puts After before Prune at INIT, but After (after='prune') "
        "declares the opposite; disable that pass or fix its distribution"
    )


TWO = source_of("C1", events=("after_dataloader",), before=("c2",)) + source_of(
    "C2", events=("init", "after_dataloader"), before=("c1",)
)
CYCLE = (
    "the declared order has a cycle, remove one of these:\n"
    "  C1 before C2: declared by C1 (c-plugin 1.0, before='c2')\n"
    "  C2 before C1: declared by C2 (c-plugin 1.0, before='c1')"
)
INDENTED = CYCLE.replace("\n", "\n  ")
PARAGRAPH = f"after_dataloader\n  no order: {INDENTED}\n  - C1\n  - C2\n"


@pytest.fixture
def told(install, tmp_path, monkeypatch, capsys):
    """Return `told(*options)`: exit code and stdout of a command for two algorithms that each want to be first."""
    monkeypatch.chdir(tmp_path)
    names = {name: f"c_module:{name.upper()}" for name in ("c1", "c2")}
    install("c-plugin", {"algorithms": names}, {"c_module": TWO})

    def tell(*options, command="explain"):
        with pytest.raises(SystemExit) as end:
            main([command, "--algorithms", "c1", "c2", *options])
        out, err = capsys.readouterr()
        assert "these algorithms can't run together" in err
        return end.value.code, out

    return tell


def test_the_event_is_shown_without_an_order_after_those_that_have_one(told):
    assert told() == (2, f"init: C2 runs alone\n\n{PARAGRAPH}")
    assert told("--why", "c1", "c2") == (2, f"C1 and C2 have no order at after_dataloader: {CYCLE}\n")
    assert told("--event", "after_dataloader", command="picture") == (2, "")


def test_in_json_its_members_say_that_there_is_none(told):
    origin = {"distribution": "c-plugin", "version": "1.0"}
    none = {"why": f"no order: {CYCLE}", **origin, "reason": {"kind": "none", "by": None, "distribution": None}}
    places = [{"algorithm": name, "name": name.lower(), **none} for name in ("C1", "C2")]
    code, out = told("--json", "--event", "after_dataloader")
    assert (code, json.loads(out)) == (2, {"after_dataloader": places})
    code, out = told("--skipped", "--json")
    problems = [f"{CYCLE}\nat AFTER_DATALOADER"]
    assert (code, json.loads(out)) == (2, {"skipped": [], "problems": problems, "warnings": []})


FIRST, LAST = made("First", events=("init",), before=("last",)), made("Last", events=("init",), before=("first",))
OTHER = made("Other", events=("init", "fit_end"))


def test_an_explanation_of_a_cycle_keeps_the_members_and_the_error_says_at_which_events():
    explanation = explain_algorithms([LAST, FIRST, OTHER])
    records = [AlgorithmRecord(name, name.lower(), None, None, ("init",)) for name in ("Last", "First")]
    records.append(AlgorithmRecord("Other", "other", None, None, ("init", "fit_end")))
    assert list(explanation) == ["fit_end"]
    assert explanation.unordered == {"init": Unordered(tuple(records), explanation.problems[0].rpartition("\n")[0])}
    assert why(explanation, "First", "Other", "fit_end") == "First does not run at fit_end; First lists init"
    with pytest.raises(OrderError, match="the declared order has a cycle") as refusal:
        Engine(State(algorithms=[made("A", before=("b",)), made("B", before=("a",))]), Logger())
    assert refusal.value.__notes__ == ["at INIT, AFTER_LOAD, FIT_START and 23 more"]


def test_a_pass_that_returns_nonsense_leaves_no_order_and_is_reported_beside_a_conflict():
    alone = made("Alone", events=("init",), conflicts=("other",))
    explanation = explain_algorithms([alone, OTHER], lambda algorithms, event: algorithms * 2)
    said = "your pass 'lambda' returned Alone twice at INIT"
    assert explanation.unordered["init"].why == said
    assert said in explanation.problems
