import copy
import dataclasses
import pickle
import weakref

import pytest

import engine_core
from engine_core import Callback, Engine, Logger, State, Time, Timestamp

from .parts import Always


def test_a_model_is_enough_and_one_object_may_stand_for_a_sequence_of_one():
    model = object()
    state = State(model=model)
    assert state.model is model
    assert (state.algorithms, state.callbacks, state.optimizers, state.schedulers) == ([], [], [], [])
    assert (state.timestamp, state.max_duration, state.batch, state.profiler) == (Timestamp(), None, None, None)
    assert State(optimizers="sgd", schedulers=("s1", "s2"), algorithms=None).optimizers == ["sgd"]


def test_the_loss_function_is_the_objectives_and_can_be_set():
    pytest.importorskip("torch")
    state = State(objective=engine_core.Objective(min))
    assert state.loss_fn is min
    state.loss_fn = None
    assert state.objective.loss_fn is None and State(loss_fn=max).objective.loss_fn is max


def test_two_states_share_nothing():
    first, second = State(), State()
    first.algorithms.append(1)
    first.metrics["eval/loss"] = 0.5
    first.extra["mixup"] = {"share": 0.5}
    assert (second.algorithms, second.metrics, second.evaluators, second.extra) == ([], {}, {}, {})


def test_an_impossible_max_duration_is_refused_at_once():
    assert State(max_duration="10ba").max_duration == Time(10, "ba")
    for max_duration, error, message in [
        ("5", ValueError, "'5' has no unit"),
        (10, TypeError, "write '10ep' for 10 epochs"),
        ("0.5dur", ValueError, "can't be a fraction of itself"),
    ]:
        with pytest.raises(error, match=message):
            State(max_duration=max_duration)


@pytest.mark.parametrize(
    ("max_duration", "elapsed", "fields"),
    [
        ("8ba", 0.5, {}),
        ("64sp", 0.25, {}),
        ("100tok", 0.4, {}),
        ("80sec", 0.1, {}),
        ("2ba", 2.0, {}),
        ("4ep", 0.3125, {"dataloader_len": 8}),
        ("4ep", 0.3125, {"train_dataloader": range(8), "dataloader": range(9), "dataloader_len": 9}),  # of evaluation
        ("4ep", 0.25, {"train_dataloader": iter(())}),  # of unknown length: it counts when it is complete
    ],
)
def test_elapsed_duration_is_the_fraction_of_the_whole(max_duration, elapsed, fields):
    timestamp = Timestamp(epoch=1, batch=4, sample=16, token=40, batch_in_epoch=2, elapsed_s=8.0)
    state = State(max_duration=max_duration, timestamp=timestamp, **fields)
    assert state.get_elapsed_duration() == Time(elapsed, "dur")


@pytest.mark.parametrize(("epochs", "batches"), [(3, 5), (7, 3), (30, 59)])
def test_the_elapsed_duration_is_rounded_once(epochs, batches):
    """2/3 + (2/5)/3 would be 0.7999999999999999, short of a schedule's 0.8."""
    for done in range(epochs * batches + 1):
        epoch, batch = divmod(done, batches)
        timestamp = Timestamp(epoch=epoch, batch_in_epoch=batch)
        state = State(max_duration=f"{epochs}ep", timestamp=timestamp, dataloader_len=batches)
        assert state.get_elapsed_duration().value == done / (epochs * batches)


def test_progress_is_how_much_of_a_length_is_done():
    position = Timestamp(epoch=1, batch=7, sample=56, batch_in_epoch=3, elapsed_s=7.0)
    state = State(max_duration="4ep", timestamp=position, train_dataloader=[1] * 4)
    done = {"5ba": 1.4, "7ba": 1.0, "2ep": 0.875, "32sp": 1.75, "14sec": 0.5, "0.5dur": 0.875, "0ba": 1.0}
    assert {length: state.get_progress(length) for length in done} == done
    assert state.get_progress(Time("5ba")) == 1.4
    assert State(timestamp=position).get_elapsed_duration() is None
    with pytest.raises(ValueError, match=r"so '0\.5dur' can't be located .* set max_duration"):
        State().get_progress("0.5dur")


def test_derived_seeds_differ_by_seed_name_and_rank_and_are_the_same_again():
    def seed_of(seed, name, rank):
        return State(seed=seed, rank=rank).derive_seed(name)

    cases = [(1, "mixup", 0), (2, "mixup", 0), (1, "cutmix", 0), (1, "mixup", 1)]
    seeds = [seed_of(*case) for case in cases]
    assert len(set(seeds)) == 4
    assert seeds == [seed_of(*case) for case in cases]
    assert seeds[0] == 7590785173576918450
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert {State(seed=1, rank=rank).derive_seed("mixup", shared=True) for rank in range(3)} == {seeds[0]}


def misnaming(path):
    """Return an algorithm that sets an attribute of State, or of what lies in it."""

    class Misnaming(Always):
        def apply(self, event, state, logger):
            *outer, name = path.split(".")
            setattr(getattr(state, outer[0]) if outer else state, name, 3)

    return Misnaming()


class Misreading(Callback):
    def after_loss(self, state, logger):
        return state.time_stamp


class Other(Always):
    def apply(self, event, state, logger):
        raise AttributeError("'Net' object has no attribute 'los'")


APPLY = "apply of algorithm Misnaming at AFTER_LOSS"


@pytest.mark.parametrize(
    ("plugins", "note"),
    [
        ({"algorithms": [misnaming("los")]}, f"{APPLY}; did you mean 'loss'?"),
        ({"algorithms": [misnaming("skip_requestd")]}, f"{APPLY}; did you mean 'loop.skip_requested'?"),
        ({"algorithms": [misnaming("loop.stop_requestd")]}, f"{APPLY}; did you mean 'loop.stop_requested'?"),
        ({"algorithms": [misnaming("my_own")]}, f"{APPLY}; what a plugin keeps on State goes into state.extra"),
        ({"callbacks": [Misreading()]}, "callback Misreading at AFTER_LOSS; did you mean 'timestamp'?"),
        ({"algorithms": [Other()]}, "apply of algorithm Other at AFTER_LOSS"),  # of another object
    ],
)
def test_a_plugin_that_misspells_a_field_is_told_the_nearest_one(plugins, note):
    with Engine(State(**plugins), Logger()) as engine:
        with pytest.raises(AttributeError, match="object has no attribute") as error:
            engine.run_event("after_loss")
        assert error.value.__notes__ == [f"raised by {note}"]


def test_a_subclass_may_add_fields():
    @dataclasses.dataclass(eq=False)
    class Mine(State):
        teacher: object = None

    mine = Mine(seed=1, teacher="big")
    mine.note = "its own"
    assert (mine.teacher, mine.note, mine.seed, list(mine.algorithms)) == ("big", "its own", 1, [])


def test_a_state_can_be_copied_pickled_and_referred_to_weakly():
    state = State(algorithms=["a"], max_duration="4ep", extra={"mixup": [1]})
    names = [each.name for each in dataclasses.fields(state) if each.name != "objective"]
    for other in (copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
        assert [getattr(other, name) for name in names] == [getattr(state, name) for name in names]
        assert weakref.ref(other)() is other
        other.callbacks = ["b"]
        assert (list(other.callbacks), list(state.callbacks)) == (["b"], [])
