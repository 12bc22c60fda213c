"""Passes: the core's own, how they are given, marked and sorted, and what one may return."""

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core import Engine, Event, Logger, PassMetadata, State, algorithm_pass, passes
from engine_core.errors import OrderError, OrderWarning
from engine_core.passes import apply_declared_order, set_filo_order, warn_if_multiple_loss_interpolation
from engine_core.passes.pass_list import sort_passes

from .parts import A, Always, B, C, made


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


def test_a_pass_is_marked_with_metadata_or_its_fields_and_without_a_mark_it_is_not_taken_for_pure():
    def look(algorithms, event):
        return algorithms

    assert passes.metadata_of(look) == PassMetadata(name="look", pure=False)
    for mark in (algorithm_pass(PassMetadata(stage="check")), algorithm_pass(stage="check")):
        assert mark(look).metadata == PassMetadata(name="look", stage="check")
        assert mark(look)(["a"], Event.INIT) == ["a"]
    assert passes.metadata_of(make("first")).name == "first"


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


def test_passes_are_sorted_by_stage_then_by_name_the_declared_order_first_unless_one_says_before_or_after():
    by_name = [make("d", stage="check"), make("c"), make("b"), make("a", stage="direction")]
    assert names(sort_passes(by_name)) == names(sort_passes(by_name[::-1])) == ["a", "b", "c", "d"]
    declared = [make("a", after=("c",)), make("b"), make("c"), make("d", before=("b", "absent"))]
    assert names(sort_passes(declared)) == ["c", "a", "d", "b"]
    opening = [make("a"), passes.apply_declared_order, make("z", before=("apply_declared_order",))]
    assert names(sort_passes(opening)) == ["z", "apply_declared_order", "a"]


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
    "given", [(p, True), [p, 0], (p, 1.0), (p, None), (p, 0, 1), (0, p), "p", 3, [[p, 0]], State, (State, 0)]
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


may_change = algorithm_pass(changes_members=True)


def run(algorithm_passes, algorithms=None, event="init"):
    engine = Engine(State(algorithms=algorithms or [A(), B()]), Logger(), algorithm_passes)
    return list(engine.run_event(event))


def test_a_pass_that_returns_no_list_is_named():
    def run_last(algorithms, event):
        sorted(algorithms, key=lambda a: isinstance(a, A))

    with pytest.raises(OrderError, match="your pass 'run_last' returned None at AFTER_LOSS; a pass returns"):
        run(run_last, event="after_loss")
    for result in (3, "AB"):
        with pytest.raises(OrderError, match=f"your pass 'lambda' returned {result!r} at INIT"):
            run(lambda algorithms, event, result=result: result)


def test_a_pass_may_return_any_iterable_and_its_edits_of_the_argument_change_nothing():
    def clear(algorithms, event):
        same = list(algorithms)
        algorithms.clear()
        return iter(same)

    engine = Engine(State(algorithms=[A(), B()]), Logger(), clear)
    assert [list(engine.run_event("init")) for _ in range(2)] == [["A/INIT", "B/INIT"]] * 2


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda algorithms: algorithms[1:], "lost A"),
        (lambda algorithms: [], "lost A, B"),
        (lambda algorithms: [*algorithms, C()], "added C"),
        (lambda algorithms: [C(), *algorithms[1:]], "lost A and added C"),
    ],
)
def test_a_pass_of_the_user_that_loses_or_adds_an_algorithm_is_named_unless_it_declares_so(change, what):
    def keep(algorithms, event):
        return change(algorithms)

    for marked in (keep, algorithm_pass(stage="check")(keep)):
        with pytest.raises(OrderError) as refused:
            run(marked)
        assert str(refused.value) == (
            f"your pass 'keep' {what} at INIT without declaring changes_members=True: return each algorithm that it "
            "was given once, or mark it with @algorithm_pass(changes_members=True)"
        )


def test_a_pass_of_the_user_that_declares_so_may_drop_algorithms():
    assert run(may_change(lambda algorithms, event: algorithms[1:])) == ["B/INIT"]
    assert run(may_change(lambda algorithms, event: [])) == []


def test_a_pass_of_the_user_that_declares_so_may_add_an_algorithm_which_gets_its_own_name():
    extra, elsewhere = A(), B()
    prepend = may_change(lambda algorithms, event: [extra, *algorithms])
    engine = Engine(State(algorithms=[A(), elsewhere]), Logger(), prepend)
    elsewhere.match = lambda event, state: False
    assert list(engine.run_event("init")) == ["A-2/INIT", "A/INIT"]


def test_a_pass_that_returns_an_algorithm_twice_or_anything_else_is_named():
    with pytest.raises(OrderError, match="your pass 'lambda' returned B twice at INIT"):
        run(lambda algorithms, event: [*algorithms, algorithms[1]])
    for stranger in (A, None, "a"):
        said = r"your pass 'lambda' added .* at INIT, which is not an instance with match and apply"
        with pytest.raises(OrderError, match=said):
            run(lambda algorithms, event, stranger=stranger: [*algorithms, stranger])


def test_what_a_pass_raises_says_which_pass_and_where():
    def careless(algorithms, event):
        return algorithms[99]

    with pytest.raises(IndexError) as failure:
        run(careless)
    assert failure.value.__notes__ == ["raised by your pass 'careless' at INIT"]


def test_the_users_pass_wins_over_a_declared_order_with_one_warning_at_the_line_that_ran_the_event():
    def against(algorithms, event):
        algorithms.reverse()
        return algorithms

    engine = Engine(State(algorithms=[A(), made("AfterA", after=("a",))]), Logger(), against)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert list(engine.run_event("init")) == ["AfterA/INIT", "A/INIT"]
        for event in ("fit_start", "init", "before_loss"):
            engine.run_event(event)
    (warning,) = caught
    assert (warning.category, warning.filename) == (OrderWarning, __file__)
    assert str(warning.message).startswith(
        "your pass 'against' puts AfterA before A at INIT, but AfterA (after='a') declares the opposite; your pass wins"
    )


def test_a_declared_order_overrides_an_earlier_pass_of_the_user():
    algorithms = [A(), made("AfterA", after=("a",))]
    assert run((lambda algorithms, event: algorithms[::-1], 0), algorithms) == ["A/INIT", "AfterA/INIT"]


def test_a_pass_that_is_not_pure_runs_each_time():
    for impure in (algorithm_pass(pure=False), lambda function: function):
        turned = []

        def moody(algorithms, event, turned=turned):
            turned.append(event)
            return algorithms[::-1] if len(turned) == 2 else algorithms

        engine = Engine(State(algorithms=[A(), B()]), Logger(), impure(moody))
        ran = ["".join(trace.name for trace in engine.run_event("batch_end").values()) for _ in range(3)]
        assert ran == ["AB", "BA", "AB"]


def test_a_pure_pass_runs_once_for_the_same_algorithms_whatever_runs_at_other_events():
    calls = []

    @algorithm_pass(events=("fit_end",), pure=False)
    def elsewhere(algorithms, event):
        calls.append("elsewhere")
        return algorithms

    @algorithm_pass(stage="placement")
    def marked(algorithms, event):
        calls.append(event.value)
        return algorithms

    engine = Engine(State(algorithms=[A(), B()]), Logger(), [elsewhere, marked])
    for event in ("batch_end", "batch_end", "fit_end", "fit_end"):
        engine.run_event(event)
    engine.state.algorithms.pop()
    engine.run_event("batch_end")
    assert calls == ["batch_end", "elsewhere", "fit_end", "elsewhere", "fit_end", "batch_end"]


def test_the_cache_of_orders_is_bounded(monkeypatch):
    class Fickle(Always):
        matches = False

        def match(self, event, state):
            return self.matches

    monkeypatch.setattr("engine_core.engine.pipeline.REMEMBERED", 4)
    algorithms = [Fickle() for _ in range(3)]
    engine = Engine(State(algorithms=algorithms), Logger())
    for number in range(8):
        for bit, algorithm in enumerate(algorithms):
            algorithm.matches = bool(number >> bit & 1)
        assert len(engine.run_event("batch_end")) == number.bit_count()
    assert len(engine._pipelines["batch_end"]._plans) <= 4
