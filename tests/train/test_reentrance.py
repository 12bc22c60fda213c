"""What calls the trainer from inside its own events, or between two of its fits, gets a clear answer."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from engine_core.errors import ArgumentError, EngineError

from .parts import at, batches, linear, rows, trainer


def test_fit_inside_fit_is_refused_and_the_outer_one_can_continue() -> None:
    made = trainer(callbacks=at("batch_end", lambda state: made.fit("1ba")))
    with pytest.raises(EngineError, match=r"fit is running: fit\(\) can't be called from its events; call"):
        made.fit()
    made.state.callbacks.clear()
    made.fit()
    assert made.state.timestamp.batch == 2


def test_evaluation_inside_evaluation_is_refused() -> None:
    made = trainer(eval_dataloader=batches(8), callbacks=at("eval_batch_end", lambda state: made.eval()))
    with pytest.raises(EngineError, match=r"an evaluation is running: eval\(\)"):
        made.eval()
    made.state.callbacks.clear()
    assert list(made.eval()) == ["eval/loss"]


def test_what_is_drawn_between_making_a_trainer_and_fit_does_not_matter() -> None:
    def weights(*, disturb: bool) -> torch.Tensor:
        model = linear()
        loader = DataLoader(TensorDataset(*rows(32)), 8, shuffle=True)
        made = trainer(loader, model, seed=3)
        if disturb:
            trainer(seed=9)
            torch.randn(5)
        made.fit()
        return model.weight.detach()

    assert torch.equal(weights(disturb=True), weights(disturb=False))


def test_a_loader_that_is_replaced_when_the_epoch_starts_is_the_one_that_counts() -> None:
    made = trainer(
        batches(8, 8),
        max_duration="2ba",
        callbacks=at("epoch_start", lambda state: setattr(state, "train_dataloader", batches(*[8] * 5))),
    )
    made.fit()
    assert (made.state.dataloader_len, made.state.timestamp.epoch, made.state.timestamp.batch_in_epoch) == (5, 0, 2)


class Failing:
    """A loader made of a generator that fails once."""

    failures = 1

    def __iter__(self) -> Iterator[Any]:
        yield rows(8)
        if self.failures:
            self.failures -= 1
            raise OSError("disk")
        yield rows(8)


def test_a_generator_that_raised_does_not_pass_for_exhausted() -> None:
    made = trainer(Failing(), max_duration="3ba")
    with pytest.raises(OSError, match="disk"):
        made.fit()
    assert (made.state.timestamp.epoch, made.state.timestamp.batch) == (0, 1)
    made.fit()
    assert (made.state.timestamp.epoch, made.state.timestamp.batch) == (0, 3)


def test_a_loss_module_as_an_attribute_of_the_model_is_not_its_own_loss() -> None:
    class Net(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 3)
            self.loss = nn.CrossEntropyLoss()

    with pytest.raises(ArgumentError, match=r"Net\.loss is a module, .*: give Trainer\(loss_fn=model\.loss"):
        trainer(model=Net(), loss_fn=None).fit()


def test_a_summed_loss_is_the_sum_of_the_set_whatever_the_batches_of_the_evaluation() -> None:
    inputs, targets = rows(8)
    made = trainer(loss_fn=nn.CrossEntropyLoss(reduction="sum"))
    whole = made.eval([(inputs, targets)])["eval/loss"]
    halves = made.eval([(inputs[:4], targets[:4]), (inputs[4:], targets[4:])])["eval/loss"]
    assert halves == pytest.approx(whole)
    assert whole == pytest.approx(8 * trainer().eval([(inputs, targets)])["eval/loss"])
