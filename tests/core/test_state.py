import copy
import dataclasses
import pickle
import weakref

import pytest

import engine_core
from engine_core import Algorithm, AlgorithmMetadata, Callback, Engine, Logger, State, Time, Timestamp


def test_a_model_is_enough():
    model = object()
    state = State(model=model)
    assert state.model is model
    assert (state.algorithms, state.callbacks, state.optimizers, state.schedulers) == ([], [], [], [])
    assert (state.timestamp, state.max_duration, state.batch, state.profiler) == (Timestamp(), None, None, None)


def test_one_object_may_stand_for_a_sequence_of_one():
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
    assert (second.algorithms, second.metrics, second.evaluators) == ([], {}, {})


def test_max_duration_takes_text():
    assert State(max_duration="10ba").max_duration == Time(10, "ba")


@pytest.mark.parametrize(
    ("max_duration", "error", "message"),
    [
        ("5", ValueError, "'5' has no unit"),
        (10, TypeError, "write '10ep' for 10 epochs"),
        ("0.5dur", ValueError, "can't be a fraction of itself"),
    ],
)
def test_an_impossible_max_duration_is_refused_at_once(max_duration, error, message):
    with pytest.raises(error, match=message):
        State(max_duration=max_duration)


@pytest.mark.parametrize(
    ("max_duration", "elapsed"),
    [("8ba", 0.5), ("64sp", 0.25), ("100tok", 0.4), ("80sec", 0.1), ("4ep", 0.25), ("2ba", 2.0)],
)
def test_elapsed_duration_is_the_fraction_of_the_whole(max_duration, elapsed):
    timestamp = Timestamp(epoch=1, batch=4, sample=16, token=40, batch_in_epoch=2, elapsed_s=8.0)
    assert State(max_duration=max_duration, timestamp=timestamp).get_elapsed_duration() == Time(elapsed, "dur")


def test_without_an_end_there_is_no_elapsed_duration():
    assert State(timestamp=Timestamp(batch=4)).get_elapsed_duration() is None


def test_within_an_epoch_the_batches_count_if_their_number_is_known():
    state = State(max_duration="4ep", timestamp=Timestamp(epoch=1, batch_in_epoch=2), dataloader_len=8)
    assert state.get_elapsed_duration() == Time(0.3125, "dur")


@pytest.mark.parametrize(("epochs", "batches"), [(3, 5), (7, 3), (30, 59)])
def test_the_elapsed_duration_is_rounded_once(epochs, batches):
    """2/3 + (2/5)/3 would be 0.7999999999999999, short of a schedule's 0.8."""
    for done in range(epochs * batches + 1):
        epoch, batch = divmod(done, batches)
        timestamp = Timestamp(epoch=epoch, batch_in_epoch=batch)
        state = State(max_duration=f"{epochs}ep", timestamp=timestamp, dataloader_len=batches)
        assert state.get_elapsed_duration().value == done / (epochs * batches)


@pytest.mark.parametrize(
    ("length", "done"),
    [("5ba", 1.4), ("7ba", 1.0), ("2ep", 0.875), ("32sp", 1.75), ("14sec", 0.5), ("0.5dur", 0.875), ("0ba", 1.0)],
)
def test_progress_is_how_much_of_a_length_is_done(length, done):
    position = Timestamp(epoch=1, batch=7, sample=56, batch_in_epoch=3, elapsed_s=7.0)
    state = State(max_duration="4ep", timestamp=position, train_dataloader=[1] * 4)
    assert state.get_progress(length) == state.get_progress(Time(length)) == done


def test_a_fraction_of_an_unknown_length_has_no_progress():
    with pytest.raises(ValueError, match=r"so '0\.5dur' can't be located .* set max_duration"):
        State().get_progress("0.5dur")


def test_evaluation_does_not_change_the_elapsed_duration():
    state = State(max_duration="4ep", timestamp=Timestamp(epoch=1, batch_in_epoch=2), train_dataloader=range(8))
    state.dataloader, state.dataloader_len = range(1000), 1000
    assert state.get_elapsed_duration() == Time(0.3125, "dur")


def test_an_epoch_of_unknown_length_counts_when_it_is_complete():
    state = State(max_duration="4ep", timestamp=Timestamp(epoch=1, batch_in_epoch=2), train_dataloader=iter(()))
    assert state.get_elapsed_duration() == Time(0.25, "dur")


def test_stop_training_asks_the_loop_to_stop():
    state = State()
    state.stop_training()
    assert state.loop.stop_requested is True


def test_items_of_the_batch_are_read_and_replaced():
    state = State(batch=("x", "y"))
    state.batch_set_item(1, "z")
    assert (state.batch_get_item(0), state.batch) == ("x", ("x", "z"))


def test_derived_seeds_differ_by_seed_name_and_rank_and_are_the_same_again():
    def seed_of(seed, name, rank):
        return State(seed=seed, rank=rank).derive_seed(name)

    cases = [(1, "mixup", 0), (2, "mixup", 0), (1, "cutmix", 0), (1, "mixup", 1)]
    seeds = [seed_of(*case) for case in cases]
    assert len(set(seeds)) == 4
    assert seeds == [seed_of(*case) for case in cases]
    assert seeds[0] == 7590785173576918450
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_shared_seed_is_that_of_rank_0_in_every_process():
    seeds = {State(seed=1, rank=rank).derive_seed("weights", shared=True) for rank in range(3)}
    assert seeds == {State(seed=1, rank=0).derive_seed("weights")}


class Misnaming(Algorithm):
    metadata = AlgorithmMetadata(events=("after_loss",))

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        state.los = 3


class Keeping(Misnaming):
    def apply(self, event, state, logger):
        state.my_own_thing = 3


class Misreading(Callback):
    def after_loss(self, state, logger):
        return state.time_stamp


class Skips(Misnaming):
    def apply(self, event, state, logger):
        state.skip_requestd = True


class Stops(Misnaming):
    def apply(self, event, state, logger):
        state.loop.stop_requestd = True


def test_a_name_that_is_no_field_cannot_be_assigned():
    with pytest.raises(AttributeError, match="'State' object has no attribute 'los'"):
        State().los = 3


@pytest.mark.parametrize(
    ("plugins", "note"),
    [
        ({"algorithms": [Misnaming()]}, "apply of algorithm Misnaming at AFTER_LOSS; did you mean 'loss'?"),
        ({"callbacks": [Misreading()]}, "callback Misreading at AFTER_LOSS; did you mean 'timestamp'?"),
        ({"algorithms": [Skips()]}, "apply of algorithm Skips at AFTER_LOSS; did you mean 'loop.skip_requested'?"),
        ({"algorithms": [Stops()]}, "apply of algorithm Stops at AFTER_LOSS; did you mean 'loop.stop_requested'?"),
        (
            {"algorithms": [Keeping()]},
            "apply of algorithm Keeping at AFTER_LOSS; what a plugin keeps on State goes into state.extra",
        ),
    ],
)
def test_a_plugin_that_misspells_a_field_is_told_the_nearest_one(plugins, note):
    with Engine(State(**plugins), Logger()) as engine:
        with pytest.raises(AttributeError) as error:
            engine.run_event("after_loss")
        assert error.value.__notes__ == [f"raised by {note}"]


def test_another_error_gets_no_name_suggested():
    class Other(Misnaming):
        def apply(self, event, state, logger):
            raise AttributeError("'Net' object has no attribute 'los'")

    with Engine(State(algorithms=[Other()]), Logger()) as engine:
        with pytest.raises(AttributeError) as error:
            engine.run_event("after_loss")
        assert error.value.__notes__ == ["raised by apply of algorithm Other at AFTER_LOSS"]


def test_plugins_keep_their_own_things_in_extra_and_each_state_has_its_own():
    state = State()
    state.extra["mixup"] = {"share": 0.5}
    assert (state.extra, State().extra) == ({"mixup": {"share": 0.5}}, {})


def test_a_subclass_may_add_fields():
    @dataclasses.dataclass(eq=False)
    class Mine(State):
        teacher: object = None

    mine = Mine(seed=1, teacher="big")
    mine.note = "its own"
    assert (mine.teacher, mine.note, mine.seed, list(mine.algorithms)) == ("big", "its own", 1, [])


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))])
def test_a_state_can_be_copied_pickled_and_referred_to_weakly(copied):
    state = State(algorithms=["a"], max_duration="4ep", extra={"mixup": [1]})
    other = copied(state)
    names = [each.name for each in dataclasses.fields(state) if each.name != "objective"]
    assert [getattr(other, name) for name in names] == [getattr(state, name) for name in names]
    assert weakref.ref(other)() is other
    other.callbacks = ["b"]
    assert (list(other.callbacks), list(state.callbacks)) == (["b"], [])
