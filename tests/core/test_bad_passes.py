import warnings

import pytest

from engine_core import Algorithm, AlgorithmMetadata, Engine, Logger, State, algorithm_pass
from engine_core.errors import OrderError, OrderWarning


class A(Algorithm):
    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        return None


class B(A):
    pass


class Extra(A):
    pass


class AfterA(A):
    metadata = AlgorithmMetadata(after=("a",))


may_change = algorithm_pass(changes_members=True)


def run(algorithm_passes, algorithms=None, event="init"):
    engine = Engine(State(algorithms=algorithms or [A(), B()]), Logger(), algorithm_passes)
    return list(engine.run_event(event))


def test_a_pass_that_returns_nothing_is_named():
    def run_last(algorithms, event):
        sorted(algorithms, key=lambda a: isinstance(a, A))

    with pytest.raises(OrderError, match="your pass 'run_last' returned None at AFTER_LOSS; a pass returns"):
        run(run_last, event="after_loss")


@pytest.mark.parametrize("result", [3, "AB"])
def test_a_pass_that_returns_no_list_is_named(result):
    with pytest.raises(OrderError, match=f"your pass 'lambda' returned {result!r} at INIT"):
        run(lambda algorithms, event: result)


def test_a_pass_may_return_any_iterable():
    assert run(lambda algorithms, event: reversed(algorithms)) == ["B/INIT", "A/INIT"]


def test_a_pass_that_edits_its_argument_changes_nothing():
    def clear(algorithms, event):
        same = list(algorithms)
        algorithms.clear()
        return same

    engine = Engine(State(algorithms=[A(), B()]), Logger(), clear)
    assert [list(engine.run_event("init")) for _ in range(2)] == [["A/INIT", "B/INIT"]] * 2


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda algorithms: algorithms[1:], "lost A"),
        (lambda algorithms: [], "lost A, B"),
        (lambda algorithms: [*algorithms, Extra()], "added Extra"),
        (lambda algorithms: [Extra(), *algorithms[1:]], "lost A and added Extra"),
    ],
)
@pytest.mark.parametrize("mark", [lambda function: function, algorithm_pass(stage="check")])
def test_a_pass_of_the_user_that_loses_or_adds_an_algorithm_is_named_unless_it_declares_so(change, what, mark):
    @mark
    def keep(algorithms, event):
        return change(algorithms)

    with pytest.raises(OrderError) as refused:
        run(keep)
    assert str(refused.value) == (
        f"your pass 'keep' {what} at INIT without declaring changes_members=True: return each algorithm that it was "
        "given once, or mark it with @algorithm_pass(changes_members=True)"
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


def test_a_member_that_a_pass_adds_keeps_its_name():
    first, second, third = A(), A(), A()
    first.match = second.match = lambda event, state: False
    swap = may_change(lambda algorithms, event: [second])
    engine = Engine(State(algorithms=[first, second, third]), Logger(), swap)
    assert list(engine.run_event("init")) == ["A-2/INIT"]


def test_a_pass_that_returns_an_algorithm_twice_is_named():
    with pytest.raises(OrderError, match="your pass 'lambda' returned B twice at INIT"):
        run(lambda algorithms, event: [*algorithms, algorithms[1]])


@pytest.mark.parametrize("stranger", [A, None, "a"], ids=["class", "None", "name"])
def test_a_pass_that_adds_anything_but_an_algorithm_is_named(stranger):
    with pytest.raises(
        OrderError, match=r"your pass 'lambda' added .* at INIT, which is not an instance with match and apply"
    ):
        run(lambda algorithms, event: [*algorithms, stranger])


def test_what_a_pass_raises_says_which_pass_and_where():
    def careless(algorithms, event):
        return algorithms[99]

    with pytest.raises(IndexError) as failure:
        run(careless)
    assert failure.value.__notes__ == ["raised by your pass 'careless' at INIT"]


def test_the_users_pass_wins_over_a_declared_order_with_a_warning():
    def against(algorithms, event):
        return sorted(algorithms, key=lambda a: not isinstance(a, AfterA))

    message = (
        "your pass 'against' puts AfterA before A at INIT, "
        r"but AfterA \(after='a'\) declares the opposite; your pass wins"
    )
    with pytest.warns(OrderWarning, match=message):
        assert run(against, [A(), AfterA()]) == ["AfterA/INIT", "A/INIT"]


def test_a_pass_that_sorts_in_place_is_blamed_like_one_that_returns_a_new_list():
    def in_place(algorithms, event):
        algorithms.reverse()
        return algorithms

    with pytest.warns(OrderWarning, match="your pass 'in_place' puts AfterA before A"):
        assert run(in_place, [A(), AfterA()]) == ["AfterA/INIT", "A/INIT"]


def test_that_warning_points_at_the_line_that_ran_the_event():
    engine = Engine(State(algorithms=[A(), AfterA()]), Logger(), lambda algorithms, event: algorithms[::-1])
    with pytest.warns(OrderWarning) as caught:
        engine.run_event("init")
    assert caught[0].filename == __file__


def test_that_warning_is_given_only_once():
    engine = Engine(State(algorithms=[A(), AfterA()]), Logger(), lambda algorithms, event: algorithms[::-1])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for event in ("init", "fit_start", "init", "before_loss"):
            engine.run_event(event)
    assert [warning.category for warning in caught] == [OrderWarning]


def test_a_declared_order_overrides_an_earlier_pass_of_the_user():
    assert run((lambda algorithms, event: algorithms[::-1], 0), [A(), AfterA()]) == ["A/INIT", "AfterA/INIT"]


def test_a_pure_pass_runs_once_for_the_same_algorithms():
    calls = []

    @algorithm_pass(stage="placement")
    def marked(algorithms, event):
        calls.append(event.value)
        return algorithms

    engine = Engine(State(algorithms=[A(), B()]), Logger(), marked)
    for event in ("init", "init", "batch_end", "batch_end"):
        engine.run_event(event)
    engine.state.algorithms.pop()
    engine.run_event("batch_end")
    assert calls == ["init", "batch_end", "batch_end"]


@pytest.mark.parametrize(
    "impure", [algorithm_pass(pure=False), lambda function: function], ids=["declared", "unmarked"]
)
def test_a_pass_that_is_not_pure_runs_each_time(impure):
    orders = iter([["A", "B"], ["B", "A"], ["A", "B"]])

    def moody(algorithms, event):
        wanted = next(orders)
        return sorted(algorithms, key=lambda a: wanted.index(type(a).__name__))

    engine = Engine(State(algorithms=[A(), B()]), Logger(), impure(moody))
    ran = [[trace.name for trace in engine.run_event("batch_end").values()] for _ in range(3)]
    assert ran == [["A", "B"], ["B", "A"], ["A", "B"]]


def test_an_impure_pass_at_other_events_does_not_prevent_caching():
    calls = []

    @algorithm_pass(events=("fit_end",), pure=False)
    def elsewhere(algorithms, event):
        calls.append("elsewhere")
        return algorithms

    @algorithm_pass(stage="placement")
    def marked(algorithms, event):
        calls.append(event.value)
        return algorithms

    engine = Engine(State(algorithms=[A()]), Logger(), [elsewhere, marked])
    for event in ("batch_end", "batch_end", "fit_end", "fit_end"):
        engine.run_event(event)
    assert calls == ["batch_end", "elsewhere", "fit_end", "elsewhere", "fit_end"]


def test_the_cache_of_orders_is_bounded():
    class Fickle(A):
        matches = False

        def match(self, event, state):
            return self.matches

    algorithms = [Fickle() for _ in range(10)]
    engine = Engine(State(algorithms=algorithms), Logger())
    for number in range(1024):
        for bit, algorithm in enumerate(algorithms):
            algorithm.matches = bool(number >> bit & 1)
        assert len(engine.run_event("batch_end")) == number.bit_count()
    assert len(engine._pipelines["batch_end"]._plans) <= 256
