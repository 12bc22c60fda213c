"""State and logger edited while the engine lives: each change counts from the next event on."""

import pytest

from engine_core import Algorithm, AlgorithmMetadata, Callback, Engine, Logger, LoggerDestination, State


class Alg(Algorithm):
    metadata = AlgorithmMetadata(events=("batch_end",))

    def __init__(self, name):
        self.name = name

    def __eq__(self, other):
        return isinstance(other, Alg)

    __hash__ = None

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        state.outputs.append(self.name)


class Cb(Callback):
    def __init__(self, name):
        self.name = name

    def batch_end(self, state, logger):
        state.outputs.append(self.name)

    def close(self, state, logger):
        state.outputs.append(f"{self.name} closed")


def ran(engine):
    engine.state.outputs = []
    engine.run_event("batch_end")
    return engine.state.outputs


def delete_slice(items):
    del items[0:2]


def replace_slice(items):
    items[0:2] = [Alg("x"), Alg("y"), Alg("z")]


def replace_one(items):
    items[1] = Alg("x")


def replace_all(items):
    items[:] = [Alg("x"), Alg("y"), Alg("z")]


EDITS = {
    "append": (lambda items: items.append(Alg("x")), ["a", "b", "c", "x"]),
    "extend": (lambda items: items.extend([Alg("x"), Alg("y")]), ["a", "b", "c", "x", "y"]),
    "insert": (lambda items: items.insert(0, Alg("x")), ["x", "a", "b", "c"]),
    "pop": (lambda items: items.pop(), ["a", "b"]),
    "pop first": (lambda items: items.pop(0), ["b", "c"]),
    "remove": (lambda items: items.remove(items[0]), ["b", "c"]),
    "clear": (lambda items: items.clear(), []),
    "reverse": (lambda items: items.reverse(), ["c", "b", "a"]),
    "sort": (lambda items: items.sort(key=lambda item: -ord(item.name)), ["c", "b", "a"]),
    "add in place": (lambda items: items.__iadd__([Alg("x")]), ["a", "b", "c", "x"]),
    "multiply in place": (lambda items: items.__imul__(0), []),
    "replace by an equal one": (replace_one, ["a", "x", "c"]),
    "replace a slice": (replace_slice, ["x", "y", "z", "c"]),
    "delete a slice": (delete_slice, ["c"]),
    "replace all by as many equal ones": (replace_all, ["x", "y", "z"]),
}


@pytest.mark.parametrize(("edit", "expected"), EDITS.values(), ids=EDITS)
def test_the_algorithms_may_be_edited_in_place(edit, expected):
    engine = Engine(State(algorithms=[Alg("a"), Alg("b"), Alg("c")]), Logger())
    assert ran(engine) == ["a", "b", "c"]
    edit(engine.state.algorithms)
    assert ran(engine) == ran(engine) == expected


@pytest.mark.parametrize("new", [[Alg("x")], (Alg("x"),), Alg("x")], ids=["list", "tuple", "one"])
def test_the_algorithms_may_be_replaced_as_a_whole(new):
    engine = Engine(State(algorithms=[Alg("a")]), Logger())
    assert ran(engine) == ["a"]
    engine.state.algorithms = new
    assert ran(engine) == ["x"]
    engine.state.algorithms.append(Alg("y"))
    assert ran(engine) == ["x", "y"]
    engine.state.algorithms = None
    assert ran(engine) == []


def test_callbacks_may_be_edited_and_replaced_too():
    engine = Engine(State(callbacks=[Cb("a")]), Logger())
    assert ran(engine) == ["a"]
    engine.state.callbacks.append(Cb("b"))
    assert ran(engine) == ["a", "b"]
    engine.state.callbacks[0] = Cb("c")
    assert ran(engine) == ["c", "b"]
    engine.state.callbacks = [Cb("d")]
    assert ran(engine) == ["d"]


def test_destinations_may_join_and_leave():
    class Dest(LoggerDestination):
        def batch_end(self, state, logger):
            state.outputs.append("destination")

    engine = Engine(State(callbacks=[Cb("a")]), Logger())
    assert ran(engine) == ["a"]
    engine.logger.destinations.append(Dest())
    assert ran(engine) == ["a", "destination"]
    engine.logger.destinations.clear()
    assert ran(engine) == ["a"]


def test_an_algorithm_may_add_another_for_the_next_event():
    class Inviting(Alg):
        def apply(self, event, state, logger):
            super().apply(event, state, logger)
            if len(state.algorithms) == 1:
                state.algorithms.append(Alg("guest"))

    engine = Engine(State(algorithms=[Inviting("host")]), Logger())
    assert ran(engine) == ["host"]
    assert ran(engine) == ["host", "guest"]


def test_an_algorithm_that_stays_keeps_its_name_when_another_leaves():
    engine = Engine(State(algorithms=[Alg("a"), Alg("b")]), Logger())
    assert list(engine_traces(engine)) == ["Alg/BATCH_END", "Alg-2/BATCH_END"]
    engine.state.algorithms.pop(0)
    assert list(engine_traces(engine)) == ["Alg-2/BATCH_END"]
    engine.state.algorithms.append(Alg("c"))
    assert list(engine_traces(engine)) == ["Alg-2/BATCH_END", "Alg/BATCH_END"]
    engine.state.algorithms[0] = Alg("d")
    assert list(engine_traces(engine)) == ["Alg-2/BATCH_END", "Alg/BATCH_END"]


def engine_traces(engine):
    engine.state.outputs = []
    return engine.run_event("batch_end")


@pytest.mark.parametrize("wrong", [Alg, 3, "mixup"], ids=repr)
def test_anything_but_an_algorithm_is_refused_at_each_event_until_it_is_gone(wrong):
    engine = Engine(State(algorithms=[Alg("a")]), Logger())
    engine.state.algorithms.append(wrong)
    for _ in range(2):
        with pytest.raises(TypeError, match="algorithm 1"):
            engine.run_event("fit_start")
    engine.state.algorithms.pop()
    assert ran(engine) == ["a"]


def test_an_engine_that_is_closed_opens_no_more_callbacks():
    callback = Cb("late")
    engine = Engine(State(), Logger())
    engine.run_event("init")
    engine.close()
    engine.state.callbacks.append(callback)
    with pytest.raises(RuntimeError, match="the engine is closed and can't run BATCH_END"):
        engine.run_event("batch_end")
    assert ran(Engine(State(callbacks=[callback]), Logger())) == ["late"]


def test_two_engines_on_one_state_both_see_an_edit():
    state = State(algorithms=[Alg("a")])
    engines = [Engine(state, Logger()) for _ in range(2)]
    state.algorithms.append(Alg("b"))
    assert [ran(engine) for engine in engines] == [["a", "b"], ["a", "b"]]


def test_a_pass_that_is_registered_between_events_counts_at_once():
    engine = Engine(State(algorithms=[Alg("a"), Alg("b")]), Logger())
    assert ran(engine) == ["a", "b"]
    engine.register_pass(lambda algorithms, event: algorithms[::-1])
    assert ran(engine) == ["b", "a"]


def test_an_event_without_listeners_is_unheard_until_it_has_one():
    engine = Engine(State(outputs=[]), Logger())
    engine.run_event("batch_end")
    before = set(engine.unheard)
    engine.state.callbacks = [Cb("a")]
    after_another_list = set(engine.unheard)
    engine.run_event("batch_end")
    heard = set(engine.unheard)
    engine.state.callbacks.clear()
    engine.run_event("batch_end")
    engine.state.algorithms.append(Alg("b"))
    assert (before, after_another_list, heard) == ({"batch_end"}, set(), set())
    assert engine.unheard == set()


def test_a_guest_on_the_host_and_a_monitor_make_an_event_heard():
    engine = Engine(State(outputs=[]), Logger())
    engine.run_event("batch_end")
    undo = engine.host.add_hookcall_monitoring(lambda *_: None, lambda *_: None)
    monitored = set(engine.unheard)
    engine.run_event("batch_end")
    still = set(engine.unheard)
    undo()
    assert (monitored, still) == (set(), set())


def test_a_closed_engine_leaves_no_event_out():
    engine = Engine(State(outputs=[]), Logger())
    engine.run_event("batch_end")
    engine.close()
    assert engine.unheard == set()
