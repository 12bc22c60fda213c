import pytest

from engine_core import AlgorithmMetadata, Engine, Logger, State

from .parts import Quiet

calls: list[str] = []


@pytest.fixture(autouse=True)
def forget():
    calls.clear()


class Alg(Quiet):
    metadata = AlgorithmMetadata(events=("after_dataloader",))

    def match(self, event, state):
        calls.append("match")
        return False

    def validate(self, state):
        calls.append(f"validate {state.batch}")


class Elsewhere(Alg):
    metadata = AlgorithmMetadata(events=("fit_end",))


def run(engine, *batches):
    for engine.state.batch in batches:
        engine.run_event("after_dataloader")


def test_each_algorithm_looks_at_the_first_batch_once_before_any_match_and_latecomers_at_their_own():
    engine = Engine(State(algorithms=[Alg(), Elsewhere()]), Logger())
    run(engine, None, "b1", "b2")
    engine.state.algorithms.append(Elsewhere())
    run(engine, "b3", "b4")
    assert calls == ["match", "validate b1", "validate b1", "match", "match", "validate b3", "match", "match"]


def test_no_other_event_will_do():
    engine = Engine(State(algorithms=[Elsewhere()], batch="b1"), Logger())
    for event in ("init", "batch_start", "fit_end", "eval_batch_start"):
        engine.run_event(event)
    assert calls == ["match"]


def test_what_it_raises_stops_the_run_before_anything_is_changed():
    class Refusing(Alg):
        def validate(self, state):
            raise ValueError(f"can't prune {state.batch}")

    engine = Engine(State(algorithms=[Alg(), Refusing()]), Logger())
    for _ in range(2):
        with pytest.raises(ValueError, match="can't prune b1") as failure:
            run(engine, "b1")
    assert failure.value.__notes__ == ["raised by validate of algorithm Refusing at AFTER_DATALOADER"]
    assert calls == ["validate b1"]


def test_an_algorithm_without_it_is_fine_and_each_engine_asks_again():
    duck = type("Duck", (), {"match": Alg.match, "apply": Alg.apply})()
    algorithm = Alg()
    run(Engine(State(algorithms=[duck]), Logger()), "b1")
    for batch in ("b1", "b2"):
        run(Engine(State(algorithms=[algorithm]), Logger()), batch)
    assert calls == ["match", "validate b1", "match", "validate b2", "match"]
