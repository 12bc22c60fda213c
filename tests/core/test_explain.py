"""The place of each algorithm has a reason: a sentence for people, its parts for programs, kept in a run's manifest."""

import json
from importlib import import_module
from pathlib import Path

import pytest

from engine_core import Callback, Engine, Logger, State, algorithm_pass
from engine_core.errors import ArgumentError
from engine_core.explain import explain_algorithms, find_algorithm, format_pair, why
from engine_core.manifest import SCHEMA, read_manifest
from engine_core.registry import Registry

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


def tell(algorithms, one, other, event, algorithm_passes=None):
    return format_pair(why(explain_algorithms(algorithms, algorithm_passes), one, other, event)).splitlines()


VERSION = Registry.scan().version_of("engine-core")
FILO, DECLARED, CHECK = (
    f"pass {name!r} of engine-core {VERSION}"
    for name in ("set_filo_order", "apply_declared_order", "warn_if_multiple_loss_interpolation")
)


def row(by):
    return f"  {by.ljust(len(CHECK))}  "


def test_the_list_decides_where_nothing_else_does():
    assert tell([A(), B()], "B", "A", "init") == [
        "init: A runs before B, list position",
        row("your list") + "A before B",
        *(row(by) + "keeps this order" for by in (FILO, DECLARED, CHECK)),
        "  no constraint is declared between the two",
    ]


def test_each_pass_in_turn_says_what_it_did_to_the_two():
    def mine(algorithms, event):
        return algorithms[::-1]

    declared = "declared by First (before='b')"
    assert tell([made("First", before=("b",)), B()], "First", "B", "after_loss", mine) == [
        "after_loss: B runs before First, your pass 'mine'",
        row("your list") + "First before B",
        row(FILO) + "puts B before First: FILO, the list is reversed on AFTER events",
        row(DECLARED) + f"puts First before B: {declared}",
        row(CHECK) + "keeps this order",
        row("your pass 'mine'") + "puts B before First",
        f"  declared: First before B: {declared}",
    ]


def test_one_that_a_pass_took_out_or_added_is_reported_with_the_pass():
    extra = B()
    without_b = algorithm_pass(changes_members=True, name="without_b")(lambda algorithms, event: algorithms[:1])
    add = algorithm_pass(changes_members=True, name="add")(lambda algorithms, event: [extra, *algorithms])
    out = "B does not run at init: your pass 'without_b' takes it out"
    assert tell([A(), B()], "A", "B", "init", without_b) == [out]
    told = tell([A()], "A", "B", "init", add)
    assert (told[0], told[1], told[-2]) == (
        "init: B runs before A, B was added by your pass 'add'",
        row("your list") + "only A",
        row("your pass 'add'") + "adds B",
    )


def test_an_algorithm_is_found_by_its_unique_and_by_its_registered_name():
    explanation = explain_algorithms([A(), made("B", name="bee"), A()])
    assert [find_algorithm(explanation, name) for name in ("A-2", "A", "bee", "B")] == ["A-2", "A", "B", "B"]
    with pytest.raises(ArgumentError, match=r"^'A' and 'A' are the same algorithm$"):
        why(explanation, "A", "A", "init")
    for name, message in [
        ("bea", "'bea' is not one of the algorithms; did you mean 'bee'?"),
        ("zzz", "'zzz' is not one of the algorithms; known: A, A-2, B, a, bee"),
        ("a", "'a' names several algorithms: A, A-2; choose one"),
    ]:
        with pytest.raises(ValueError, match=r"is not one of|names several") as refusal:
            find_algorithm(explanation, name)
        assert str(refusal.value) == message


REST = {
    "schema": SCHEMA,
    "run_name": "run",
    "seed": 1,
    "device": "cpu",
    "precision": "fp32",
    "command": ["engine-core", "train"],
    "versions": {"python": "3.11"},
    "config_file": "run.yaml",
    "config": {},
}


@pytest.fixture
def kept(tmp_path):
    """Return `kept(explanation)`: what comes back from the manifest that holds it."""

    def keep(explanation):
        (tmp_path / "manifest.json").write_text(json.dumps({**REST, **explanation.to_json()}))
        return read_manifest(tmp_path).explanation()

    return keep


def test_everything_comes_back_and_the_reasons_for_a_pair_are_the_same(kept):
    extra, a = C(), made("A", after=("bee", "nobody"))

    @algorithm_pass(changes_members=True)
    def add_and_drop(algorithms, event):
        return [extra, *(algorithm for algorithm in algorithms[::-1] if not isinstance(algorithm, C))]

    explanation = explain_algorithms([a, C(), made("B", name="bee", events=("init", "after_loss"))], add_and_drop)
    again = kept(explanation)
    assert again == explanation
    assert dict(again) == dict(explanation)
    assert (len(again), again.skipped[0].what) == (26, "A: after='nobody'")
    for pair in (("A", "B"), ("B", "C"), ("C", "A")):
        for event in ("init", "after_loss", "fit_end"):
            assert why(again, *pair, event) == why(explanation, *pair, event)


def test_without_the_plugin(kept, install, monkeypatch):
    text = source_of("Gone") + (
        "\n@algorithm_pass(stage='placement')\ndef gone_first(algorithms, event):\n    return algorithms[::-1]\n"
    )
    points = {"algorithms": {"gone": "absent_module:Gone"}, "passes": {"gone_first": "absent_module:gone_first"}}
    install("gone-plugin", points, {"absent_module": text}, version="3.0")
    explanation = explain_algorithms([A(), import_module("absent_module").Gone()])
    monkeypatch.setenv("ENGINE_CORE_PLUGINS", "")
    again = kept(explanation)
    assert again["init"][0] == ("Gone", "gone", "before A: pass 'gone_first' of gone-plugin", "gone-plugin", "3.0")


def refusal_of(path):
    with pytest.raises(ValueError, match=path) as refusal:
        read_manifest(Path(path))
    return str(refusal.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "' holds no manifest.json: it is not a run's folder"),
        ("{", "/manifest.json' is damaged, it is not JSON: "),
        ("[]", "/manifest.json' is not a run's manifest: it has no schema number or no run_name"),
        ('{"schema": 1}', "/manifest.json' is not a run's manifest: it has no schema number or no run_name"),
        (
            '{"schema": 2, "run_name": "x"}',
            "/manifest.json' has schema 2, this engine-core reads schema 1; install the",
        ),
        ('{"schema": 1, "run_name": "x", "seed": "y"}', "/manifest.json' is damaged: algorithms: Field required"),
    ],
)
def test_anything_but_a_manifest_is_refused_in_one_message(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    if text is not None:
        Path("run/manifest.json").write_text(text)
    assert refusal_of("run").startswith(f"'run{message}")


def test_what_does_not_exist_is_refused_with_the_nearest_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("baseline").mkdir()
    assert refusal_of("basline") == "'basline' does not exist; did you mean 'baseline'?"
    assert refusal_of("x") == "'x' does not exist"
