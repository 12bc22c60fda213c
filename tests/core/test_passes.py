import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core import AlgorithmMetadata, Event, PassMetadata, algorithm_pass, passes
from engine_core.errors import OrderError
from engine_core.passes.pass_list import sort_passes


class A:
    metadata = AlgorithmMetadata()


class B:
    metadata = AlgorithmMetadata()


class C:
    metadata = AlgorithmMetadata()


UNDO = {
    Event.AFTER_DATALOADER,
    Event.AFTER_FORWARD,
    Event.AFTER_LOSS,
    Event.AFTER_BACKWARD,
    Event.AFTER_TRAIN_BATCH,
    Event.EVAL_AFTER_FORWARD,
}


def test_sort_to_front_and_back_move_a_kind_and_keep_the_rest():
    assert passes.sort_to_front([1, "b", 3], str) == ["b", 1, 3]
    assert passes.sort_to_back(list_to_sort=[1, "b", 3], cls=str) == [1, 3, "b"]
    assert passes.sort_to_back([1, "b", 3], str) == [1, 3, "b"]


@given(st.lists(st.one_of(st.integers(), st.text(), st.none())))
def test_sorting_a_kind_to_an_end_keeps_both_parts_in_order(items):
    texts, others = [i for i in items if isinstance(i, str)], [i for i in items if not isinstance(i, str)]
    assert passes.sort_to_front(items, str) == texts + others
    assert passes.sort_to_back(items, str) == others + texts


def test_sorting_to_an_end_takes_several_kinds_and_leaves_the_list_alone():
    items = [1, "b", None, "a"]
    assert passes.sort_to_front(items, (str, type(None))) == ["b", None, "a", 1]
    assert items == [1, "b", None, "a"]


@pytest.mark.parametrize("event", Event)
def test_filo_reverses_the_list_on_undo_events_only(event):
    expected = ["c", "b", "a"] if event in UNDO else ["a", "b", "c"]
    assert list(passes.set_filo_order(["a", "b", "c"], event)) == expected


def test_the_declared_order_is_applied_and_the_rest_stays():
    class Late:
        metadata = AlgorithmMetadata(after=("b",))

    a, b, late = A(), B(), Late()
    assert passes.apply_declared_order([late, a, b], Event.INIT) == [a, b, late]


def test_two_algorithms_of_one_class_keep_their_places():
    first, second = A(), A()
    assert passes.apply_declared_order([second, first], Event.INIT) == [second, first]


def test_several_algorithms_that_interpolate_the_loss_cause_a_warning():
    class Mixing:
        metadata = AlgorithmMetadata(tags=("loss_interpolation",))

    algorithms = [Mixing(), A(), Mixing()]
    message = r"Mixing and Mixing all interpolate the loss: .*; let all but one interpolate targets instead$"
    with pytest.warns(UserWarning, match=message):
        assert passes.warn_if_multiple_loss_interpolation(algorithms, Event.AFTER_LOSS) == algorithms
    passes.warn_if_multiple_loss_interpolation(algorithms[:2], Event.AFTER_LOSS)
    for event in set(Event) - {Event.AFTER_LOSS}:
        assert passes.warn_if_multiple_loss_interpolation(algorithms, event) == algorithms


@pytest.mark.parametrize("mark", [algorithm_pass(PassMetadata(stage="check")), algorithm_pass(stage="check")])
def test_a_pass_is_marked_with_metadata_or_its_fields(mark):
    @mark
    def look(algorithms, event):
        return algorithms

    assert look.metadata == PassMetadata(name="look", stage="check")
    assert look(["a"], Event.INIT) == ["a"]


def test_a_marked_pass_may_have_its_own_name():
    marked = algorithm_pass(name="first")(lambda algorithms, event: algorithms)
    assert passes.metadata_of(marked).name == "first"


def test_an_unmarked_function_runs_at_every_event_and_is_not_taken_for_pure():
    def mine(algorithms, event):
        return algorithms

    assert passes.metadata_of(mine) == PassMetadata(name="mine", pure=False)


@pytest.mark.parametrize("wrong", [lambda algorithms, event: algorithms, "direction"])
def test_marking_without_parentheses_is_refused_with_the_remedy(wrong):
    with pytest.raises(TypeError, match=r"write @algorithm_pass\(stage='placement'\)"):
        algorithm_pass(wrong)


def test_marking_with_metadata_and_fields_is_refused():
    with pytest.raises(ValueError, match="not both: stage"):
        algorithm_pass(PassMetadata(), stage="check")


def test_an_explicit_order_lets_the_named_ones_share_the_places_they_have():
    a, b, c = A(), B(), C()
    order = passes.explicit_order({"after_dataloader": ["c", "A"]})
    assert order([a, b, c], Event.AFTER_DATALOADER) == [c, b, a]


def test_an_explicit_order_takes_one_name_and_events():
    a, b = A(), B()
    order = passes.explicit_order({Event.INIT: "b", "fit_start": ["B", "A"]})
    assert order([a, b], Event.INIT) == [a, b]
    assert order([a, b], Event.FIT_START) == [b, a]
    assert passes.metadata_of(order).events == (Event.INIT, Event.FIT_START)


def test_an_explicit_order_with_an_unknown_event_is_refused_at_once():
    with pytest.raises(ValueError, match="did you mean 'after_loss'"):
        passes.explicit_order({"afterloss": ["a"]})


def make(name, **fields):
    return algorithm_pass(name=name, **fields)(lambda algorithms, event: algorithms)


def names(sorted_passes):
    return [passes.metadata_of(p).name for p in sorted_passes]


def test_passes_are_sorted_by_stage_then_by_name():
    made = [make("d", stage="check"), make("c"), make("b"), make("a", stage="direction")]
    assert names(sort_passes(made)) == names(sort_passes(made[::-1])) == ["a", "b", "c", "d"]


def test_before_and_after_override_the_names():
    made = [make("a", after=("c",)), make("b"), make("c"), make("d", before=("b", "absent"))]
    assert names(sort_passes(made)) == ["c", "a", "d", "b"]


def test_the_declared_order_opens_its_stage_unless_a_pass_asks_to_come_before():
    made = [make("a"), passes.apply_declared_order, make("z", before=("apply_declared_order",))]
    assert names(sort_passes(made)) == ["z", "apply_declared_order", "a"]


def test_a_cycle_of_passes_is_printed_with_the_declaration_of_each_edge():
    with pytest.raises(OrderError, match="cycle") as refusal:
        sort_passes([make("a", before=("b",)), make("b", before=("a",))])
    assert str(refusal.value).splitlines()[1:] == [
        "  a before b: declared by pass a (before='b')",
        "  b before a: declared by pass b (before='a')",
    ]


def test_an_order_against_the_stages_is_refused():
    with pytest.raises(OrderError, match="stages come first") as refusal:
        sort_passes([make("a", stage="check", before=("b",)), make("b")])
    assert str(refusal.value).startswith("pass 'a' (stage check) can't run before 'b' (stage placement)")
