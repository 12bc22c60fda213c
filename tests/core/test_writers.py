"""Two algorithms that write one field at one event: what decides which comes first? A warning if only the list does."""

import time
import warnings
from importlib import import_module

import pytest

from engine_core import Algorithm, AlgorithmMetadata, Engine, Logger, State, algorithm_pass, passes
from engine_core.engine import doubts_about
from engine_core.errors import UnorderedWritersWarning
from engine_core.explain import explain_algorithms


class Writer(Algorithm):
    metadata = AlgorithmMetadata(events=("after_dataloader",), writes=("batch",))

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        return None


class A(Writer):
    pass


class B(Writer):
    pass


class C(Writer):
    metadata = AlgorithmMetadata(events=("after_dataloader",), writes=())


def of(cls, **fields):
    """Return an instance of a class like `cls` that declares more."""
    given = {"events": ("after_dataloader",), "writes": ("batch",), **fields}
    return type(cls.__name__, (cls,), {"metadata": AlgorithmMetadata(**given)})()


def told(algorithms, algorithm_passes=None):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Engine(State(algorithms=algorithms), Logger(), algorithm_passes).close()
    return [str(w.message) for w in caught if w.category is UnorderedWritersWarning]


def test_two_that_cannot_run_together_need_no_order():
    explanation = explain_algorithms([of(A, conflicts=("b",)), B(), of(C)])
    assert [warning.partition(" both ")[0] for warning in explanation.warnings] == ["A and C", "B and C"]


def test_the_warning_names_both_the_field_the_event_and_the_remedy():
    (message,) = told([A(), B()])
    assert message == (
        "A and B both write batch at AFTER_DATALOADER, and only their positions in the list decide which runs first: "
        "declare before, after, around or within in the metadata of one, or set the order with "
        "explicit_order({'after_dataloader': ['b', 'a']}), in a config with `order:`"
    )


def test_the_remedy_that_it_shows_ends_it_and_keeps_the_order():
    table = passes.explicit_order({"after_dataloader": ["b", "a"]})
    assert told([A(), B()], table) == []
    for a_first in ([A(), B()], [B(), A()]):
        order = Engine(State(algorithms=a_first), Logger(), table).explain("after_dataloader")
        assert [explained.algorithm for explained in order] == ["B", "A"]


def test_several_fields_and_events_are_named_in_one_warning():
    both = {"events": ("before_forward", "after_forward"), "writes": ("batch", "model")}
    (message,) = told([of(A, **both), of(B, **both)])
    assert "both write batch and model at BEFORE_FORWARD and AFTER_FORWARD, and" in message
    assert "explicit_order({'before_forward': ['a', 'b'], 'after_forward': ['b', 'a']})" in message


def test_distributions_are_named_with_their_versions(install):
    text = """
        from engine_core import Algorithm, AlgorithmMetadata

        class Flip(Algorithm):
            metadata = AlgorithmMetadata(events=("after_dataloader",), writes=("batch",))
            match = apply = lambda self, *arguments: None
    """
    install("flip-plugin", {"algorithms": {"flip": "flip_module:Flip"}}, {"flip_module": text}, version="0.3")
    (message,) = told([import_module("flip_module").Flip(), A()])
    assert message.startswith("Flip (flip-plugin 0.3) and A both write batch at AFTER_DATALOADER")


@pytest.mark.parametrize(
    "algorithms",
    [
        [A(), C()],
        [A(), of(B, writes=None)],
        [A(), of(B, writes=("loss",))],
        [A(), of(B, events=("before_dataloader",))],
        [A(), A()],
        [of(A, before=("b",)), B()],
        [of(A, after=("@mix",)), of(B, tags=("mix",))],
        [of(A, before=("c",)), C(), of(B, after=("c",))],
    ],
    ids=[
        "one writes nothing",
        "one does not say what it writes",
        "other fields",
        "other events",
        "two of one class, which nothing could tell apart",
        "declared",
        "declared by tag",
        "declared through a third",
    ],
)
def test_no_warning_where(algorithms):
    assert told(algorithms) == []


def test_a_pass_that_settles_it_ends_the_warning():
    def b_first(algorithms, event):
        return passes.sort_to_front(algorithms, B)

    assert told([A(), B()], b_first) == []
    (message,) = told([A(), B(), of(C)], b_first)
    assert message.startswith("A and C both write batch")


def test_filo_and_a_pass_that_only_mirrors_the_list_settle_nothing():
    assert len(told([A(), B()], lambda algorithms, event: algorithms[::-1])) == 1


def test_a_pass_of_a_plugin_that_settles_it_ends_the_warning(install):
    text = """
        from engine_core import Algorithm, AlgorithmMetadata, algorithm_pass, passes

        class Prune(Algorithm):
            metadata = AlgorithmMetadata(events=("after_dataloader",), writes=("batch",))
            match = apply = lambda self, *arguments: None

        @algorithm_pass(stage="placement")
        def prune_first(algorithms, event):
            return passes.sort_to_front(algorithms, Prune)
    """
    points = {"algorithms": {"prune": "prune_too:Prune"}, "passes": {"prune_first": "prune_too:prune_first"}}
    install("prune-plugin", points, {"prune_too": text})
    assert told([A(), import_module("prune_too").Prune()]) == []


def test_a_third_that_drags_one_of_them_along_settles_nothing():
    algorithms = [A(), B(), of(C, before=("a",), writes=())]
    assert len(told(algorithms)) == 1
    assert len(told(algorithms, lambda algorithms, event: algorithms)) == 1


def test_it_comes_once_per_engine_and_for_newcomers_when_they_come():
    engine = Engine(State(algorithms=[A()]), Logger())
    engine.state.algorithms.append(B())
    with pytest.warns(UnorderedWritersWarning, match="A and B both"):
        engine.run_event("init")
    engine.state.algorithms.append(C())
    assert "A/AFTER_DATALOADER" in engine.run_event("after_dataloader")


def test_it_points_at_the_line_that_made_the_engine():
    with pytest.warns(UnorderedWritersWarning) as caught:
        Engine(State(algorithms=[A(), B()]), Logger())
    assert caught[0].filename == __file__


def test_what_passes_warn_of_while_it_looks_is_not_shown():
    @algorithm_pass(stage="placement")
    def loud(algorithms, event):
        warnings.warn("looking", UserWarning, stacklevel=1)
        return algorithms

    with pytest.warns(UnorderedWritersWarning) as caught:
        Engine(State(algorithms=[A(), B()]), Logger(), loud)
    assert [w.category for w in caught] == [UnorderedWritersWarning]


def test_a_pass_that_fails_while_it_looks_fails_in_the_run_only():
    def careless(algorithms, event):
        raise KeyError(event)

    engine = Engine(State(algorithms=[A(), B()]), Logger(), careless)
    with pytest.raises(KeyError):
        engine.run_event("after_dataloader")


def chained(number):
    """Return an algorithm that declares that it comes after the previous one, except the tenth."""
    name = f"W{number}"
    return of(type(name, (Writer,), {}), after=(f"w{number - 1}",) if 0 < number < 9 else ())


@pytest.mark.parametrize(
    ("make", "pairs"), [(lambda n: of(type(f"W{n}", (Writer,), {})), [45, 780]), (chained, [9, 744])]
)
def test_looking_at_ten_takes_less_than_50_ms_of_cpu_and_grows_no_faster_than_the_square_of_how_many(make, pairs):
    found, took_s = [], []
    for count in (10, 40):
        engine = Engine(State(), Logger())
        engine.state.algorithms.extend(make(number) for number in range(count))
        with pytest.warns(UnorderedWritersWarning):
            lineup = engine.members, engine.passes
        found.append(len(doubts_about(*lineup)))
        took_s.append(min(cpu_s(doubts_about, *lineup) for _ in range(7)))
    assert found == pairs
    assert took_s[0] < 0.05
    assert took_s[1] / took_s[0] < 32  # 16 is the square, 64 the cube


def cpu_s(function, *arguments):
    started_s = time.process_time()
    function(*arguments)
    return time.process_time() - started_s
