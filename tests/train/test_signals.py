"""A signal between two lines of a fit or an evaluation: it arrives, and what the loop promises is whole."""

from __future__ import annotations

import functools
import itertools
import random
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine_core import Algorithm, AlgorithmMetadata, Engine, Logger, State
from engine_core.batch import ItemSwap
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.trainer.precision import Precision, TorchModes

from .interrupting import Jumps, Places, Steps, broken_by, count_places, cut, cut_after, surroundings
from .parts import at, batches, net, trainer

DATA = batches(8, 8, 8)
LOSS = ("before_loss", "after_loss")


class HalveWeights(Algorithm):
    """Evaluates with half of the weights; in training it does nothing."""

    metadata = AlgorithmMetadata(events=("eval_start", "eval_end", *LOSS), writes=("model",))

    def __init__(self) -> None:
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def match(self, event: Any, state: State) -> bool:
        return event in ("eval_start", *LOSS) or bool(self.kept)

    def apply(self, event: Any, state: State, logger: Logger) -> None:
        if event == "eval_start":
            self.kept = [(p.data, p.detach().clone()) for p in state.model.parameters()]  # type: ignore[union-attr]
            for weight, _ in self.kept:
                weight.mul_(0.5)
        elif event == "eval_end":
            for weight, own in self.kept:
                weight.copy_(own)
            self.kept = []


def made_of() -> Any:
    model = net(dropout=0.2)
    model[1].eval()  # the user froze its statistics
    given = {"eval_dataloader": batches(8), "eval_interval": "2ba", "max_duration": "4ba", "seed": 2}
    return trainer(DATA, model, callbacks=[Steps()], algorithms=[HalveWeights()], **given)


@functools.cache
def whole_run(kind: type[Places] = Places) -> tuple[Steps, int]:
    made_of().fit()  # what is done once in a process does not count
    made = made_of()
    places = count_places(made.fit, kind)
    return made.state.callbacks[0], places


def check(run: Callable[[Callable[[], object]], Any]) -> None:
    before = [tuple(part.clone() for part in batch) for batch in DATA]
    with made_of() as made:
        assert broken_by(made, whole_run()[0], before, run) == []


def cut_at(place: int, kind: type[Places] = Places) -> None:
    check(lambda fit: cut(fit, place, kind))


ignored = pytest.mark.filterwarnings("ignore::engine_core.errors.DurationWarning")


@ignored
def test_at_some_calls_and_returns_of_a_fit() -> None:
    for place in random.Random(1).sample(range(whole_run()[1]), 10):
        cut_at(place)


@ignored
@pytest.mark.full
def test_at_hundreds_of_calls_and_returns_of_a_fit() -> None:
    for place in random.Random(2).sample(range(whole_run()[1]), 400):
        cut_at(place)


@ignored
@pytest.mark.full
def test_at_hundreds_of_jumps_of_a_fit() -> None:
    for place in random.Random(4).sample(range(whole_run(Jumps)[1]), 200):
        cut_at(place, Jumps)


@ignored
@pytest.mark.full
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers that signal are POSIX's")
def test_by_a_timer() -> None:
    drawn = random.Random(3)
    for _ in range(200):
        seconds = drawn.uniform(1e-4, 0.04)
        check(lambda fit, seconds=seconds: cut_after(fit, seconds))


@pytest.mark.full
def test_at_each_call_and_return_of_an_evaluation() -> None:
    made = made_of()
    before, weights = surroundings(made.state), [p.detach().clone() for p in made.state.model.parameters()]
    for _ in range(2):  # what is done for newcomers only is done then
        made.eval()
    places = min(count_places(made.eval) for _ in range(3))  # the garbage collector may add some of its own
    for place in range(0, places, 3):
        assert type(cut(made.eval, place)) is KeyboardInterrupt
        assert surroundings(made.state) == before
        assert all(map(torch.equal, weights, made.state.model.parameters()))
    made.eval()


@pytest.mark.full
def test_the_handlers_of_signals_are_the_users_again(tmp_path: Any) -> None:
    for number in range(40):
        saver = CheckpointSaver(tmp_path / str(number), "1h")
        made = trainer(DATA, callbacks=[saver], max_duration="1ba")
        before = surroundings(made.state)
        cut(made.fit, 5 * number)
        assert surroundings(made.state) == before
        made.close()


def test_putting_the_model_into_train_mode_is_done_wholly_or_not_at_all() -> None:
    for place in itertools.count():
        made = trainer(DATA, net().eval())
        cut(made.fit, place)
        modes = {module.training for module in made.state.model.modules()}
        assert len(modes) == 1
        if modes == {True} and not made.state.timestamp.batch:  # else a finalizer swallowed the signal
            break


def test_an_epoch_of_one_batch_that_was_cut_ends_in_the_next_fit() -> None:
    def interrupt(state: State) -> None:
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt

    interrupted: list[bool] = []
    made = trainer(batches(8), callbacks=at("after_forward", interrupt), max_duration="2ba")
    with pytest.raises(KeyboardInterrupt):
        made.fit()
    made.fit()
    assert made.state.timestamp.batch == 2


def test_a_loader_that_was_cut_before_its_first_batch_begins_anew() -> None:
    class Cut(list[Any]):
        times = 0

        def __iter__(self) -> Any:
            self.times += 1
            return CutOnce(super().__iter__(), self.times)

    class CutOnce:
        def __init__(self, batches: Any, time: int) -> None:
            self.batches, self.time = batches, time

        def __next__(self) -> Any:
            batch = next(self.batches)
            if self.time == 1:
                raise KeyboardInterrupt  # the batch is lost
            return batch

    made = trainer(Cut(batches(8)), max_duration="1ep")
    with pytest.raises(KeyboardInterrupt):
        made.fit()
    made.fit()
    assert (made.state.timestamp.batch, made.state.timestamp.epoch) == (1, 1)


def test_autocast_that_was_cut_at_its_end_leaves_no_casts_of_old_weights() -> None:
    device = torch.device("cpu")
    linear = torch.nn.Linear(2, 2)
    forward = Precision("amp_bf16", device).wrap(linear)
    ones = torch.ones(1, 2)
    for place in range(count_places(lambda: forward(ones))):
        modes = TorchModes(device)
        cut(lambda: forward(ones), place)
        modes.put_back()
        with torch.no_grad():
            linear.weight += 1
        casts = forward(ones).float()
        assert torch.allclose(casts, linear(ones), rtol=0.02)
        assert not torch.is_autocast_enabled("cpu")


class Cutting(Algorithm):
    """Notes when it runs, and is cut as it ends or begins."""

    def __init__(self, name: str, heard: list[str], cut_at: str = "") -> None:
        self.metadata = AlgorithmMetadata(name=name, events=LOSS)
        self.heard, self.cut_at = heard, cut_at

    def match(self, event: Any, state: State) -> bool:
        return True

    def apply(self, event: Any, state: State, logger: Logger) -> None:
        self.heard.append(f"{self.metadata.name} {event}")
        if event == self.cut_at:
            self.cut_at = ""
            raise KeyboardInterrupt


def heard_when_cut(at: str) -> list[str]:
    heard: list[str] = []
    algorithms = [Cutting("a", heard), Cutting("b", heard, at), Cutting("c", heard)]
    engine = Engine(State(algorithms=algorithms), Logger())
    with pytest.raises(KeyboardInterrupt), engine.restoring():
        engine.run_event("before_loss")
        engine.run_event("after_loss")
    return heard


def test_one_that_was_cut_at_the_first_half_gets_its_second() -> None:
    assert heard_when_cut("before_loss") == ["a before_loss", "b before_loss", "b after_loss", "a after_loss"]


def test_one_that_was_cut_at_the_second_half_gets_it_again() -> None:
    assert heard_when_cut("after_loss")[3:] == ["c after_loss", "b after_loss", "b after_loss", "a after_loss"]


def test_one_that_was_cut_as_it_undid_gets_its_turn_in_the_outer_guard() -> None:
    heard: list[str] = []
    engine = Engine(State(algorithms=[Cutting("a", heard, "after_loss")]), Logger())
    with pytest.raises(KeyboardInterrupt), engine, engine.restoring():
        engine.run_event("before_loss")
        raise ZeroDivisionError
    assert heard == ["a before_loss", "a after_loss", "a after_loss"]


@pytest.mark.parametrize(
    ("first", "second", "failing"),
    [("before_train_batch", "after_train_batch", "before_loss"), ("eval_start", "eval_end", "eval_batch_end")],
)
def test_one_that_was_cut_as_it_undid_gets_its_turn_at_the_end(first: str, second: str, failing: str) -> None:
    def fail(state: State) -> None:
        raise ZeroDivisionError

    heard: list[str] = []
    cutting = Cutting("a", heard, second)
    cutting.metadata = AlgorithmMetadata(name="a", events=(first, second))
    made = trainer(DATA, algorithms=[cutting], callbacks=at(failing, fail))
    with pytest.raises(KeyboardInterrupt):
        made.eval(DATA) if failing.startswith("eval") else made.fit()
    assert heard == [f"a {first}", f"a {second}", f"a {second}"]


@pytest.mark.parametrize("kind", [Places, Jumps])
def test_a_signal_between_two_algorithms_or_after_the_last_arrives_as_itself(kind: type[Places]) -> None:
    heard: list[str] = []
    engine = Engine(State(algorithms=[Cutting("a", heard), Cutting("b", heard)]), Logger())
    for event in ("before_loss", "after_loss") * 2:  # what is done for newcomers only is done then
        engine.run_event(event)
    run = functools.partial(engine.run_event, "before_loss")
    for place in range(count_places(run, kind)):
        del heard[:]
        error = cut(run, place, kind)
        assert type(error) is KeyboardInterrupt
        begun = [what.partition(" ")[0] for what in heard if what.endswith("before_loss")]
        engine.undo(error)
        undone = [what.partition(" ")[0] for what in heard if what.endswith("after_loss")]
        assert set(begun) <= set(undone)


@pytest.mark.parametrize("key", [0, (lambda b: b[0], lambda b, value: b.__setitem__(0, value))], ids=["key", "setter"])
def test_an_item_swap_that_was_cut_anywhere_puts_the_batch_back(key: Any) -> None:
    batch = ["x", "y"]
    state, swap = State(batch=batch), ItemSwap(key)

    def put_and_back() -> None:
        swap.put(state, "new")
        swap.back(state)

    put_and_back()  # what is done once is done then
    for place in range(count_places(put_and_back)):
        assert type(cut(put_and_back, place)) is KeyboardInterrupt
        swap.back(state)
        swap.back(state)
        assert state.batch is batch and batch == ["x", "y"]
