"""Two algorithms that write one field at one event: what decides which comes first? A warning if only the list does."""

import time
import warnings
from importlib import import_module

import pytest

from engine_core import Engine, Event, Logger, State, algorithm_pass, passes
from engine_core.engine import doubts_about
from engine_core.errors import UnorderedWritersWarning
from engine_core.explain import explain_algorithms

from .parts import made, source_of


def writer(class_name, **fields):
    return made(class_name, **{"events": ("after_dataloader",), "writes": ("batch",), **fields})


A, B = writer("A"), writer("B")
C = writer("C", writes=())


def told(algorithms, algorithm_passes=None):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Engine(State(algorithms=algorithms), Logger(), algorithm_passes).close()
    return [str(w.message) for w in caught if w.category is UnorderedWritersWarning]


def test_two_that_cannot_run_together_need_no_order():
    explanation = explain_algorithms([writer("A", conflicts=("b",)), B, writer("C")])
    assert [warning.partition(" both ")[0] for warning in explanation.warnings] == ["A and C", "B and C"]


def test_the_warning_names_both_the_field_the_event_and_the_remedy_at_the_line_that_made_the_engine():
    def loud(algorithms, event):
        warnings.warn("not shown, as the engine only looks", UserWarning, stacklevel=1)
        return algorithms[::-1]  # which settles nothing: it mirrors the list

    for mirrors in (None, algorithm_pass(stage="placement")(loud)):
        with pytest.warns(UnorderedWritersWarning) as caught:
            Engine(State(algorithms=[A, B]), Logger(), mirrors).close()
        assert [(w.category, w.filename) for w in caught] == [(UnorderedWritersWarning, __file__)]
        assert str(caught[0].message).startswith("A and B both write batch at AFTER_DATALOADER, and only")
    (message,) = told([A, B])
    assert message == (
        "A and B both write batch at AFTER_DATALOADER, and only their positions in the list decide which runs first: "
        "declare before, after, around or within in the metadata of one, or set the order with "
        "explicit_order({'after_dataloader': ['b', 'a']}), in a config with `order:`"
    )


def test_the_remedy_that_it_shows_ends_it_and_keeps_the_order():
    table = passes.explicit_order({"after_dataloader": ["b", "a"]})
    assert told([A, B], table) == []
    for a_first in ([A, B], [B, A]):
        order = Engine(State(algorithms=a_first), Logger(), table).explain("after_dataloader")
        assert [explained.algorithm for explained in order] == ["B", "A"]


@pytest.mark.parametrize(
    "algorithms",
    [
        [A, C],
        [A, writer("B", writes=None)],
        [A, writer("B", writes=("loss",))],
        [A, writer("B", events=("before_dataloader",))],
        [A, type(A)()],  # which nothing could tell apart
        [writer("A", before=("b",)), B],
        [writer("A", around=("b",)), B],
        [writer("A", after=("@mix",)), writer("B", tags=("mix",))],
        [writer("A", before=("c",)), C, writer("B", after=("c",))],
    ],
)
def test_no_warning_where(algorithms):
    assert told(algorithms) == []


def test_a_pass_that_settles_it_ends_the_warning():
    def b_first(algorithms, event):
        return passes.sort_to_front(algorithms, type(B))

    assert told([A, B], b_first) == []
    (message,) = told([A, B, writer("C")], b_first)
    assert message.startswith("A and C both write batch")


def test_a_pass_of_a_plugin_that_settles_it_ends_the_warning_which_else_names_the_distribution(install, monkeypatch):
    text = source_of("Prune", events=("after_dataloader",), writes=("batch",)) + (
        "\n@algorithm_pass(stage='placement')\ndef prune_first(algorithms, event):\n"
        "    return passes.sort_to_front(algorithms, Prune)\n"
    )
    points = {"algorithms": {"prune": "prune_too:Prune"}, "passes": {"prune_first": "prune_too:prune_first"}}
    install("prune-plugin", points, {"prune_too": text}, version="0.3")
    prune = import_module("prune_too").Prune()
    assert told([A, prune]) == []
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "prune_first")
    (message,) = told([prune, A])
    assert message.startswith("Prune (prune-plugin 0.3) and A both write batch at AFTER_DATALOADER")


def test_a_third_that_drags_one_of_them_along_settles_nothing():
    algorithms = [A, B, writer("C", before=("a",), writes=())]
    assert len(told(algorithms)) == 1
    assert len(told(algorithms, lambda algorithms, event: algorithms)) == 1


def test_it_comes_once_per_engine_and_for_newcomers_when_they_come():
    engine = Engine(State(algorithms=[A]), Logger())
    engine.state.algorithms.append(B)
    with pytest.warns(UnorderedWritersWarning, match="A and B both"):
        engine.run_event("init")
    engine.state.algorithms.append(C)
    assert "A/AFTER_DATALOADER" in engine.run_event("after_dataloader")


def test_a_pass_that_fails_while_it_looks_fails_in_the_run_only():
    def careless(algorithms, event):
        raise KeyError(event)

    engine = Engine(State(algorithms=[A, B]), Logger(), careless)
    with pytest.raises(KeyError):
        engine.run_event("after_dataloader")


def test_looking_at_ten_takes_less_than_50_ms_of_cpu_and_grows_no_faster_than_the_square_of_how_many():
    took_s = []
    for count, pairs in ((10, 9), (40, 744)):
        engine = Engine(State(), Logger())
        chain = [writer(f"W{n}", after=(f"w{n - 1}",) if 0 < n < 9 else ()) for n in range(count)]
        engine.state.algorithms.extend(chain)
        with pytest.warns(UnorderedWritersWarning):
            lineup = engine.members, engine.passes
        assert len(doubts_about(*lineup)) == pairs
        times_s = []
        for _ in range(5):
            started_s = time.process_time()
            doubts_about(*lineup)
            times_s.append(time.process_time() - started_s)
        took_s.append(min(times_s))
    assert took_s[0] < 0.05
    assert took_s[1] / took_s[0] < 32  # 16 is the square, 64 the cube


def writing(class_name, events, *writes):
    return made(class_name, events=events, writes=writes)


def judged_at(field):
    found = set()
    for event in Event:
        if told([writing(name, (event,), field) for name in "AB"]):
            found.add(event.value)
    return found


STEP = [
    "after_dataloader", "batch_start", "before_train_batch", "before_forward", "after_forward", "before_loss",
    "after_loss", "before_backward", "after_backward", "after_train_batch", "batch_end",
]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "events"),
    [
        ("batch", [*STEP, "eval_batch_start", "eval_before_forward", "eval_after_forward", "eval_batch_end"]),
        ("outputs", [*STEP[4:], "eval_after_forward", "eval_batch_end"]),
        ("loss", [*STEP[6:], "eval_batch_end"]),
        ("metrics", ["eval_end", "batch_checkpoint", "epoch_checkpoint", "fit_end"]),
        *((field, map(str, Event)) for field in ("model", "optimizers", "schedulers", "loss_fn")),
    ],
)
def test_what_is_made_anew_counts_while_it_is_there_and_what_lasts_at_each_event(field, events):
    assert judged_at(field) == set(events)


DECLARE = (
    "and only their positions in the list decide which runs first: declare before, after, around or within in the "
    "metadata of one, or set the order with explicit_order("
)


def test_each_field_is_named_with_its_own_events():
    both = ("init", "before_forward", "after_forward"), "batch", "outputs", "model"
    (message,) = told([writing(name, *both) for name in "AB"])
    assert message == (
        "A and B both write model at INIT, and batch and model at BEFORE_FORWARD, and batch and model and outputs "
        f"at AFTER_FORWARD, {DECLARE}"
        "{'init': ['a', 'b'], 'before_forward': ['a', 'b'], 'after_forward': ['b', 'a']}), in a config with `order:`"
    )


def test_two_that_list_no_events_are_named_in_one_warning_that_stays_short():
    (message,) = told([writing(name, None, "outputs") for name in "AB"])
    assert message == (
        f"A and B both write outputs at AFTER_FORWARD, BEFORE_LOSS, AFTER_LOSS and 6 more, {DECLARE}"
        "{'after_forward': ['b', 'a'], 'before_loss': ['a', 'b'], 'after_loss': ['b', 'a'], ...}), in a config with "
        "`order:`; A lists no events, which counts as all of them; B lists no events, which counts as all of them"
    )
    (message,) = told([writing("A", None, "batch"), writing("B", ("init", "after_dataloader"), "batch")])
    assert message.startswith("A and B both write batch at AFTER_DATALOADER, and only")
    assert message.endswith(
        "{'after_dataloader': ['b', 'a']}), in a config with `order:`; A lists no events, which counts as all of them"
    )
