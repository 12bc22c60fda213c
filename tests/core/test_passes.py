import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core import Engine, Event, Logger, PassMetadata, State, algorithm_pass, passes
from engine_core.errors import OrderError
from engine_core.passes import apply_declared_order, set_filo_order, warn_if_multiple_loss_interpolation
from engine_core.passes.pass_list import sort_passes

from .parts import A, B, C, made


@settings(max_examples=30)
@given(st.lists(st.one_of(st.integers(), st.text(), st.none())))
def test_sorting_kinds_to_an_end_keeps_both_parts_in_order_and_the_list_as_it_is(items):
    before = list(items)
    texts, others = [i for i in items if isinstance(i, str)], [i for i in items if not isinstance(i, str)]
    assert passes.sort_to_front(items, str) == texts + others
    assert passes.sort_to_back(list_to_sort=items, cls=(int, type(None))) == texts + others
    assert items == before


def test_the_declared_order_is_applied_and_the_rest_stays():
    a, b, late = A(), B(), made("Late", after=("b",))
    assert passes.apply_declared_order([late, a, b], Event.INIT) == [a, b, late]
    first, second = A(), A()
    assert passes.apply_declared_order([second, first], Event.INIT) == [second, first]


def test_several_algorithms_that_interpolate_the_loss_cause_a_warning():
    algorithms = [made("Mixing", tags=("loss_interpolation",)), A(), made("Mixing", tags=("loss_interpolation",))]
    message = r"Mixing and Mixing all interpolate the loss: .*; let all but one interpolate targets instead$"
    with pytest.warns(UserWarning, match=message):
        assert passes.warn_if_multiple_loss_interpolation(algorithms, Event.AFTER_LOSS) == algorithms
    passes.warn_if_multiple_loss_interpolation(algorithms[:2], Event.AFTER_LOSS)
    for event in set(Event) - {Event.AFTER_LOSS}:
        assert passes.warn_if_multiple_loss_interpolation(algorithms, event) == algorithms


def test_a_pass_is_marked_with_metadata_or_its_fields_and_may_have_its_own_name():
    for mark in (algorithm_pass(PassMetadata(stage="check")), algorithm_pass(stage="check")):

        @mark
        def look(algorithms, event):
            return algorithms

        assert look.metadata == PassMetadata(name="look", stage="check")
        assert look(["a"], Event.INIT) == ["a"]
    assert passes.metadata_of(make("first")).name == "first"


def test_an_unmarked_function_runs_at_every_event_and_is_not_taken_for_pure():
    def mine(algorithms, event):
        return algorithms

    assert passes.metadata_of(mine) == PassMetadata(name="mine", pure=False)


def test_a_mark_that_is_written_wrong_is_refused_with_the_remedy():
    for wrong in (lambda algorithms, event: algorithms, "direction"):
        with pytest.raises(TypeError, match=r"write @algorithm_pass\(stage='placement'\)"):
            algorithm_pass(wrong)
    with pytest.raises(ValueError, match="not both: stage"):
        algorithm_pass(PassMetadata(), stage="check")


def test_in_an_explicit_order_the_named_ones_share_the_places_they_have():
    a, b, c = A(), B(), C()
    order = passes.explicit_order({"after_dataloader": ["c", "A"], Event.INIT: "b", "fit_start": ["B", "A"]})
    assert order([a, b, c], Event.AFTER_DATALOADER) == [c, b, a]
    assert order([a, b], Event.INIT) == [a, b]
    assert order([a, b], Event.FIT_START) == [b, a]
    assert passes.metadata_of(order).events == (Event.AFTER_DATALOADER, Event.INIT, Event.FIT_START)
    with pytest.raises(ValueError, match="did you mean 'after_loss'"):
        passes.explicit_order({"afterloss": ["a"]})


def make(name, **fields):
    return algorithm_pass(name=name, **fields)(lambda algorithms, event: algorithms)


def names(sorted_passes):
    return [passes.metadata_of(p).name for p in sorted_passes]


def test_passes_are_sorted_by_stage_then_by_name_unless_one_says_before_or_after():
    by_name = [make("d", stage="check"), make("c"), make("b"), make("a", stage="direction")]
    assert names(sort_passes(by_name)) == names(sort_passes(by_name[::-1])) == ["a", "b", "c", "d"]
    declared = [make("a", after=("c",)), make("b"), make("c"), make("d", before=("b", "absent"))]
    assert names(sort_passes(declared)) == ["c", "a", "d", "b"]


def test_the_declared_order_opens_its_stage_unless_a_pass_asks_to_come_before():
    listed = [make("a"), passes.apply_declared_order, make("z", before=("apply_declared_order",))]
    assert names(sort_passes(listed)) == ["z", "apply_declared_order", "a"]


def test_a_cycle_of_passes_and_an_order_against_the_stages_are_refused():
    with pytest.raises(OrderError, match="cycle") as cycle:
        sort_passes([make("a", before=("b",)), make("b", before=("a",))])
    assert str(cycle.value).splitlines()[1] == "  a before b: declared by pass a (before='b')"
    with pytest.raises(
        OrderError, match=r"pass 'a' \(stage check\) can't run before 'b' \(stage placement\).*stages co"
    ):
        sort_passes([make("a", stage="check", before=("b",)), make("b")])


INSTALLED = [set_filo_order, apply_declared_order, warn_if_multiple_loss_interpolation]
FILO, DECLARED, WARN = INSTALLED


def p(algorithms, event):
    return algorithms


def q(algorithms, event):
    return algorithms


class Callable:
    """A pass may be a callable object, even an unhashable one."""

    __hash__ = None

    def __call__(self, algorithms, event):
        return algorithms


CALLABLE = Callable()


def resolve(given):
    return Engine(State(), Logger(), given).algorithm_passes


@pytest.mark.parametrize(
    ("given", "resolved"),
    [
        (None, INSTALLED),
        ((), INSTALLED),
        (p, [*INSTALLED, p]),
        (CALLABLE, [*INSTALLED, CALLABLE]),
        ((p, q), [*INSTALLED, p, q]),
        ([p, p], [*INSTALLED, p, p]),
        ((p, -1), [*INSTALLED, p]),
        ((p, 0), [p, *INSTALLED]),
        ((p, -2), [FILO, p, DECLARED, WARN]),
        ((p, 99), [*INSTALLED, p]),
        ([(p, 0), (q, 0)], [q, p, *INSTALLED]),
        (((p, 0), (q, 2)), [p, FILO, q, DECLARED, WARN]),
        ([(p, 0), q], [p, *INSTALLED, q]),
    ],
)
def test_a_pass_a_pair_or_a_sequence_of_these_is_inserted_literally_among_the_cores_own(given, resolved):
    assert resolve(given) == resolved


@pytest.mark.parametrize(
    "given",
    [(p, True), [p, 0], (p, 1.0), (p, None), (p, 0, 1), (0, p), "p", 3, [[p, 0]], State, (State, 0)],
)
def test_anything_else_is_a_value_error(given):
    with pytest.raises(ValueError, match=r"a pass is a function|the index of a pass is an int"):
        resolve(given)


def test_register_pass_appends_or_inserts_and_the_returned_list_is_a_copy():
    engine = Engine(State(), Logger(), p)
    engine.register_pass(q)
    engine.register_pass(q, 0)
    for index in (True, 0.5, None, "0"):
        with pytest.raises(ValueError, match="the index of a pass is an int"):
            engine.register_pass(p, index)
    engine.algorithm_passes.append(p)
    assert engine.algorithm_passes == [q, *INSTALLED, p, q]
