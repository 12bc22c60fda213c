"""State and logger edited while the engine lives: each change counts from the next event on."""

import pytest

from engine_core import AlgorithmMetadata, Callback, Engine, Logger, LoggerDestination, State

from .parts import Always


class Alg(Always):
    metadata = AlgorithmMetadata(events=("batch_end",))

    def __init__(self, name):
        self.name = name

    def __eq__(self, other):
        return isinstance(other, Alg)

    __hash__ = None

    def apply(self, event, state, logger):
        state.outputs.append(self.name)


class Cb(Callback):
    def __init__(self, name):
        self.name = name

    def batch_end(self, state, logger):
        state.outputs.append(self.name)


def ran(engine):
    engine.state.outputs = []
    engine.run_event("batch_end")
    return engine.state.outputs


def test_the_algorithms_may_be_edited_in_place():
    def replace_one(algorithms):
        algorithms[1] = Alg("x")

    def replace_all(algorithms):
        algorithms[:] = [Alg("x"), Alg("y"), Alg("z")]

    for edit, expected in [
        (lambda algorithms: algorithms.append(Alg("x")), ["a", "b", "c", "x"]),
        (lambda algorithms: algorithms.remove(algorithms[0]), ["b", "c"]),
        (lambda algorithms: algorithms.reverse(), ["c", "b", "a"]),
        (replace_one, ["a", "x", "c"]),  # by one that equals it
        (replace_all, ["x", "y", "z"]),
    ]:
        engine = Engine(State(algorithms=[Alg("a"), Alg("b"), Alg("c")]), Logger())
        assert ran(engine) == ["a", "b", "c"]
        edit(engine.state.algorithms)
        assert ran(engine) == ran(engine) == expected


def test_the_algorithms_may_be_replaced_as_a_whole():
    engine = Engine(State(algorithms=[Alg("a")]), Logger())
    for new in ([Alg("x")], (Alg("x"),), Alg("x")):
        engine.state.algorithms = new
        assert ran(engine) == ["x"]
    engine.state.algorithms.append(Alg("y"))
    assert ran(engine) == ["x", "y"]
    engine.state.algorithms = None
    assert ran(engine) == []


def test_callbacks_and_destinations_may_be_edited_and_replaced_too():
    class Dest(Cb, LoggerDestination):
        pass

    engine = Engine(State(callbacks=[Cb("a")]), Logger())
    engine.state.callbacks.append(Cb("b"))
    assert ran(engine) == ["a", "b"]
    engine.state.callbacks[0] = Cb("c")
    assert ran(engine) == ["c", "b"]
    engine.state.callbacks = [Cb("d")]
    engine.logger.destinations.append(Dest("e"))
    assert ran(engine) == ["d", "e"]
    engine.logger.destinations = [Dest("f")]
    assert ran(engine) == ["d", "f"]
    engine.logger.destinations.clear()
    assert ran(engine) == ["d"]


def test_what_joins_in_an_event_takes_part_in_the_next():
    class Inviting(Alg):
        def apply(self, event, state, logger):
            super().apply(event, state, logger)
            if len(state.algorithms) == 1:
                state.algorithms.append(Alg("guest"))

    engine = Engine(State(algorithms=[Inviting("host")]), Logger())
    assert ran(engine) == ["host"]
    assert ran(engine) == ["host", "guest"]


def test_an_algorithm_that_stays_keeps_its_name_when_another_leaves():
    engine = Engine(State(algorithms=[Alg("a"), Alg("b")], outputs=[]), Logger())
    assert list(engine.run_event("batch_end")) == ["Alg/BATCH_END", "Alg-2/BATCH_END"]
    engine.state.algorithms.pop(0)
    assert list(engine.run_event("batch_end")) == ["Alg-2/BATCH_END"]
    engine.state.algorithms.append(Alg("c"))
    assert list(engine.run_event("batch_end")) == ["Alg-2/BATCH_END", "Alg/BATCH_END"]
    engine.state.algorithms[0] = Alg("d")
    assert list(engine.run_event("batch_end")) == ["Alg-2/BATCH_END", "Alg/BATCH_END"]


def test_anything_but_an_algorithm_is_refused_at_each_event_until_it_is_gone():
    engine = Engine(State(algorithms=[Alg("a")]), Logger())
    engine.state.algorithms.append("mixup")
    for _ in range(2):
        with pytest.raises(TypeError, match="algorithm 1"):
            engine.run_event("fit_start")
    engine.state.algorithms.pop()
    assert ran(engine) == ["a"]


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


def test_a_monitor_makes_an_event_heard_and_a_closed_engine_leaves_none_out():
    engine = Engine(State(outputs=[]), Logger())
    engine.run_event("batch_end")
    undo = engine.host.add_hookcall_monitoring(lambda *_: None, lambda *_: None)
    monitored = set(engine.unheard)
    engine.run_event("batch_end")
    still = set(engine.unheard)
    undo()
    assert (monitored, still) == (set(), set())
    engine.run_event("batch_end")
    engine.close()
    assert engine.unheard == set()
