import warnings

import pytest

from engine_core import Engine, Logger, State, algorithm_pass
from engine_core.errors import OrderError, OrderWarning

from .parts import A, Always, B, C, made

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

    for given in (keep, algorithm_pass(stage="check")(keep)):
        with pytest.raises(OrderError) as refused:
            run(given)
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


def test_a_member_that_a_pass_adds_keeps_its_name():
    first, second, third = A(), A(), A()
    first.match = second.match = lambda event, state: False
    swap = may_change(lambda algorithms, event: [second])
    engine = Engine(State(algorithms=[first, second, third]), Logger(), swap)
    assert list(engine.run_event("init")) == ["A-2/INIT"]


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


def test_the_cache_of_orders_is_bounded():
    class Fickle(Always):
        matches = False

        def match(self, event, state):
            return self.matches

    algorithms = [Fickle() for _ in range(9)]
    engine = Engine(State(algorithms=algorithms), Logger())
    for number in range(512):
        for bit, algorithm in enumerate(algorithms):
            algorithm.matches = bool(number >> bit & 1)
        assert len(engine.run_event("batch_end")) == number.bit_count()
    assert len(engine._pipelines["batch_end"]._plans) <= 256
