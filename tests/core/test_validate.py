import pytest

from engine_core import Algorithm, AlgorithmMetadata, Engine, Logger, State

calls: list[str] = []


@pytest.fixture(autouse=True)
def forget():
    calls.clear()


class Alg(Algorithm):
    metadata = AlgorithmMetadata(events=("after_dataloader",))

    def match(self, event, state):
        calls.append("match")
        return False

    def apply(self, event, state, logger):
        raise AssertionError

    def validate(self, state):
        calls.append(f"validate {state.batch}")


class Elsewhere(Alg):
    metadata = AlgorithmMetadata(events=("fit_end",))


def test_each_algorithm_looks_at_the_first_batch_once_before_any_match():
    engine = Engine(State(algorithms=[Alg(), Alg()], batch="b1"), Logger())
    engine.run_event("after_dataloader")
    engine.state.batch = "b2"
    engine.run_event("after_dataloader")
    assert calls == ["validate b1", "validate b1", "match", "match", "match", "match"]


def test_it_waits_for_a_batch():
    engine = Engine(State(algorithms=[Alg()]), Logger())
    engine.run_event("after_dataloader")
    engine.state.batch = "b1"
    engine.run_event("after_dataloader")
    assert calls == ["match", "validate b1", "match"]


def test_no_other_event_will_do():
    engine = Engine(State(algorithms=[Elsewhere()], batch="b1"), Logger())
    for event in ("init", "batch_start", "fit_end", "eval_batch_start"):
        engine.run_event(event)
    assert calls == ["match"]


def test_it_is_called_whatever_events_the_algorithm_lists():
    engine = Engine(State(algorithms=[Elsewhere()], batch="b1"), Logger())
    engine.run_event("after_dataloader")
    engine.run_event("after_dataloader")
    assert calls == ["validate b1"]


def test_a_latecomer_looks_at_its_own_first_batch():
    engine = Engine(State(algorithms=[Alg()], batch="b1"), Logger())
    engine.run_event("after_dataloader")
    engine.state.algorithms.append(Elsewhere())
    engine.state.batch = "b2"
    engine.run_event("after_dataloader")
    engine.run_event("after_dataloader")
    assert calls == ["validate b1", "match", "validate b2", "match", "match"]


def test_what_it_raises_stops_the_run_before_anything_is_changed():
    class Refusing(Alg):
        def validate(self, state):
            raise ValueError(f"can't prune {state.batch}")

    engine = Engine(State(algorithms=[Alg(), Refusing()], batch="b1"), Logger())
    for _ in range(2):
        with pytest.raises(ValueError, match="can't prune b1") as failure:
            engine.run_event("after_dataloader")
    assert failure.value.__notes__ == ["raised by validate of algorithm Refusing at AFTER_DATALOADER"]
    assert calls == ["validate b1"]


def test_an_algorithm_without_it_is_fine():
    class Duck:
        match, apply = Alg.match, Alg.apply

    Engine(State(algorithms=[Duck()], batch="b1"), Logger()).run_event("after_dataloader")
    assert calls == ["match"]


def test_each_engine_asks_again():
    algorithm = Alg()
    for batch in ("b1", "b2"):
        Engine(State(algorithms=[algorithm], batch=batch), Logger()).run_event("after_dataloader")
    assert calls == ["validate b1", "match", "validate b2", "match"]
