"""Where the declared order has a cycle there is no order, and `explain` says so instead of leaving the event out."""

import json

import pytest

from engine_core.cli import main
from engine_core.explain import Unordered, explain_algorithms, why
from engine_core.passes import AlgorithmRecord

from .parts import made, source_of

PLUGINS = source_of("C1", events=("after_dataloader",), before=("c2",)) + source_of(
    "C2", events=("init", "after_dataloader"), before=("c1",)
)
CYCLE = (
    "the declared order has a cycle, remove one of these:\n"
    "  C1 before C2: declared by C1 (c-plugin 1.0, before='c2')\n"
    "  C2 before C1: declared by C2 (c-plugin 1.0, before='c1')"
)
PARAGRAPH = f"""\
after_dataloader
  no order: {CYCLE.splitlines()[0]}
    C1 before C2: declared by C1 (c-plugin 1.0, before='c2')
    C2 before C1: declared by C2 (c-plugin 1.0, before='c1')
  - C1
  - C2
"""


@pytest.fixture
def told(install, tmp_path, monkeypatch, capsys):
    """Return `told(*options)`: exit code and stdout of a command for two algorithms that each want to be first."""
    monkeypatch.chdir(tmp_path)
    names = {name: f"c_module:{name.upper()}" for name in ("c1", "c2")}
    install("c-plugin", {"algorithms": names}, {"c_module": PLUGINS})

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


def test_an_explanation_keeps_the_members():
    explanation = explain_algorithms([LAST, FIRST, OTHER])
    records = [AlgorithmRecord(name, name.lower(), None, None, ("init",)) for name in ("Last", "First")]
    records.append(AlgorithmRecord("Other", "other", None, None, ("init", "fit_end")))
    assert list(explanation) == ["fit_end"]
    assert explanation.unordered == {"init": Unordered(tuple(records), explanation.problems[0].rpartition("\n")[0])}
    assert why(explanation, "First", "Other", "fit_end") == "First does not run at fit_end; First lists init"


def test_references_to_nothing_are_reported_beside_a_cycle():
    (skipped,) = explain_algorithms([LAST, FIRST, made("Lonely", events=("init",), after=("nobody",))]).skipped
    assert (skipped.what, skipped.events) == ("Lonely: after='nobody'", ("init",))


def test_a_pass_that_returns_nonsense_leaves_no_order_and_is_reported_beside_a_conflict():
    alone = made("Alone", events=("init",), conflicts=("other",))
    explanation = explain_algorithms([alone, OTHER], lambda algorithms, event: algorithms * 2)
    said = "your pass 'lambda' returned Alone twice at INIT"
    assert explanation.unordered["init"].why == said
    assert said in explanation.problems
