"""A batch split into microbatches trains as the whole batch does."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State
from engine_core.batch import take_rows
from engine_core.trainer.microbatches import split_with_shares

from .parts import Memory, at, batches, linear, trainer

LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "scalar": F.cross_entropy,
    "tuple": lambda o, t: (F.cross_entropy(o, t), o.pow(2).mean()),
    "list": lambda o, t: [F.cross_entropy(o, t), o.pow(2).mean()],
    "dict": lambda o, t: {"ce": F.cross_entropy(o, t), "l2": o.pow(2).mean()},
    "total": lambda o, t: {"ce": F.cross_entropy(o, t), "total": 3 * F.cross_entropy(o, t)},
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "sum by argument": partial(F.cross_entropy, reduction="sum"),
    "class weights": nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 5.0])),
    "class weights by argument": partial(F.cross_entropy, weight=torch.tensor([0.2, 1.0, 5.0]), label_smoothing=0.1),
    "ignored class": nn.CrossEntropyLoss(ignore_index=1),
    "ignored class by argument": partial(F.cross_entropy, ignore_index=1),
    "nll": lambda o, t: F.nll_loss(o.log_softmax(1), t),
}


class KeepFive(Algorithm):
    metadata = AlgorithmMetadata(events=(Event.AFTER_DATALOADER,))

    def match(self, event: Event, state: State) -> bool:
        return True

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        state.batch = take_rows(state.batch, state.batch[0].size(0), torch.tensor([0, 2, 3, 4, 1]))


def weights(loss_fn: Any, microbatch_size: int | None, *sizes: int, **settings: Any) -> torch.Tensor:
    model = linear()
    trainer(
        batches(*sizes), model, loss_fn=loss_fn, microbatch_size=microbatch_size, max_duration="2ep", **settings
    ).fit()
    return torch.cat([model.weight.flatten(), model.bias]).detach()


@pytest.mark.parametrize("size", [1, 3, 8, 100])
@pytest.mark.parametrize("loss", LOSSES)
def test_microbatches_of_any_size_give_the_same_weights(loss: str, size: int) -> None:
    whole = weights(LOSSES[loss], None, 8, 8)
    assert torch.allclose(weights(LOSSES[loss], size, 8, 8), whole, rtol=0, atol=1e-6)
    assert not torch.allclose(whole, weights(LOSSES[loss], None, 8))


@pytest.mark.parametrize("size", [1, 3, 8])
def test_so_they_do_when_the_last_batch_is_smaller(size: int) -> None:
    assert torch.allclose(weights(F.cross_entropy, size, 8, 5), weights(F.cross_entropy, None, 8, 5), atol=1e-6)


@pytest.mark.parametrize("size", [1, 3, 8])
def test_so_they_do_when_an_algorithm_dropped_rows(size: int) -> None:
    whole = weights(F.cross_entropy, None, 8, 8, algorithms=KeepFive())
    assert torch.allclose(weights(F.cross_entropy, size, 8, 8, algorithms=KeepFive()), whole, rtol=0, atol=1e-6)


def test_what_is_logged_is_the_loss_of_the_whole_batch() -> None:
    logged = {}
    for size in (None, 3):
        memory = Memory()
        weights(LOSSES["dict"], size, 8, 5, loggers=memory)
        logged[size] = [(step, {k: pytest.approx(v) for k, v in metrics.items()}) for step, metrics in memory.metrics]
    step = ["train/loss", "train/loss/ce", "train/loss/l2", "train/lr/0"]
    assert [sorted(metrics) for _, metrics in memory.metrics] == [step, step, ["train/loss_epoch"]] * 2
    assert memory.metrics == logged[None]


def test_a_total_wins_and_is_not_a_part() -> None:
    memory = Memory()
    weights(LOSSES["total"], 3, 8, loggers=memory)
    _, first = memory.metrics[0]
    assert sorted(first) == ["train/loss", "train/loss/ce", "train/lr/0"]
    assert first["train/loss"] == pytest.approx(3 * first["train/loss/ce"])


@pytest.mark.parametrize("size", [None, 3])
def test_state_holds_the_microbatch_only_between_before_and_after_train_batch(size: int | None) -> None:
    """Also where an algorithm changes the microbatch for the forward pass, as MixUp does."""
    heard: list[str] = []

    class Negate(KeepFive):
        metadata = AlgorithmMetadata(events=(Event.BEFORE_FORWARD,))

        def apply(self, event: Event, state: State, logger: Logger) -> None:
            inputs, targets = state.batch
            state.batch = (-inputs, targets)

    def note(event: str) -> Any:
        return at(event, lambda state: heard.append(f"{event} {len(state.batch[0])} {state.batch[0][0, 0] > 0}"))

    data = [(torch.ones(8, 4), torch.zeros(8, dtype=torch.long))]
    events = ("after_dataloader", "before_train_batch", "before_loss", "after_train_batch", "batch_end")
    trainer(data, microbatch_size=size, algorithms=Negate(), callbacks=[note(event) for event in events]).fit()
    between = {None: ["before_loss 8 False"], 3: [f"before_loss {n} False" for n in (3, 3, 2)]}[size]
    whole = ["after_dataloader 8 True", "before_train_batch 8 True"]
    assert heard == [*whole, *between, "after_train_batch 8 True", "batch_end 8 True"]


def test_gradients_of_an_earlier_batch_do_not_leak_in() -> None:
    seen: list[bool] = []
    check = at("before_train_batch", lambda state: seen.append(all(p.grad is None for p in state.model.parameters())))
    trainer(batches(8, 8), microbatch_size=3, callbacks=check).fit()
    assert seen == [True, True]


def test_a_microbatch_of_ignored_targets_only_is_left_out() -> None:
    inputs = torch.randn(4, 4)
    loader = [(inputs, torch.tensor([-100, -100, 1, 2]))]
    model = linear()
    made = trainer(loader, model, loss_fn=nn.CrossEntropyLoss(), microbatch_size=2)
    made.fit()
    whole = linear()
    trainer(loader, whole, loss_fn=nn.CrossEntropyLoss()).fit()
    assert torch.allclose(model.weight, whole.weight, atol=1e-6)
    assert made.state.loss.isfinite()


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's own, where it imports the compiler
def test_a_compiled_loss_has_the_shares_of_the_loss_in_it() -> None:
    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 5.0]))
    batch = torch.randn(8, 4), torch.arange(8) % 3
    shares = [[share for _, share in split_with_shares(batch, 3, fn)] for fn in (loss, torch.compile(loss))]
    assert shares[0] == shares[1] != [3 / 8, 3 / 8, 2 / 8]


@dataclass
class Indexed:
    """A batch whose items have places, although it is not a sequence."""

    inputs: torch.Tensor
    targets: torch.Tensor

    def __getitem__(self, place: int) -> torch.Tensor:
        return (self.inputs, self.targets)[place]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_the_shares_are_those_of_the_classes_in_whatever_dtype(dtype: torch.dtype) -> None:
    """156 as a byte is -100, which torch ignores by default."""
    batch = torch.randn(8, 4), (torch.arange(8) + 150).to(dtype)
    weight = torch.arange(200.0)
    for loss in (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(weight=weight)):
        expected = split_with_shares((batch[0], torch.arange(8) + 150), 3, loss)
        assert [share for _, share in split_with_shares(batch, 3, loss)] == [share for _, share in expected]


def test_a_batch_whose_items_have_places_counts_by_its_targets() -> None:
    batch = Indexed(torch.randn(8, 4), torch.tensor([0, -100, -100, -100, 1, 2, 1, 0]))
    shares = [share for _, share in split_with_shares(batch, 4, nn.CrossEntropyLoss())]
    assert shares == [1 / 5, 4 / 5]
