"""A loss is that of the whole, however it is cut: `eval/loss` into batches, a training step into microbatches."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from engine_core import Batches, State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver

from .parts import Memory, at, batches, linear, rows, trainer

WEIGHT = torch.tensor([0.2, 1.0, 5.0])


class Focal(nn.CrossEntropyLoss):
    """Looks like torch's, with class weights and an ignored class, but is a mean over the rows."""

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        settings: Any = {"weight": self.weight, "ignore_index": self.ignore_index, "reduction": "none"}
        losses = F.cross_entropy(outputs, targets, **settings)
        return ((1 - (-losses).exp()) ** 2 * losses).mean()


class FocalNLL(nn.NLLLoss):
    """The same, on log probabilities."""

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return Focal(self.weight, ignore_index=self.ignore_index)(outputs, targets)


class Inverse(nn.CrossEntropyLoss):
    """Changes what is called, not what is `forward`."""

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> Any:
        return F.cross_entropy(outputs, targets, reduction="none").exp().mean()


class LogSoftmax(nn.NLLLoss):
    """Is torch's, as a subclass without a `forward`."""


def patched() -> nn.Module:
    loss = nn.CrossEntropyLoss(WEIGHT, ignore_index=1)
    loss.forward = Focal(WEIGHT, ignore_index=1).forward
    return loss


LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "plain": F.cross_entropy,
    "weights": nn.CrossEntropyLoss(WEIGHT),
    "weights by argument": partial(F.cross_entropy, weight=WEIGHT),
    "ignored": nn.CrossEntropyLoss(ignore_index=1),
    "ignored by argument": partial(F.cross_entropy, ignore_index=1),
    "ignored and weights": nn.CrossEntropyLoss(WEIGHT, ignore_index=1, label_smoothing=0.1),
    "a class without weight": nn.CrossEntropyLoss(torch.tensor([0.0, 1.0, 5.0])),
    "nll": nn.NLLLoss(WEIGHT, ignore_index=1),
    "nll by argument": partial(F.nll_loss, weight=WEIGHT),
    "subclass of torch's formula": LogSoftmax(WEIGHT),
    "sum": nn.CrossEntropyLoss(WEIGHT, reduction="sum"),
    "sum by argument": partial(F.cross_entropy, reduction="sum"),
    "another loss": lambda o, t: F.mse_loss(o, F.one_hot(t, 3).float()),
    "focal": Focal(WEIGHT, ignore_index=1),
    "focal nll": FocalNLL(WEIGHT, ignore_index=1),
    "focal by its method": Focal(WEIGHT, ignore_index=1).forward,
    "another call": Inverse(WEIGHT, ignore_index=1),
    "another forward": patched(),
    "parts": lambda o, t: {"ce": F.cross_entropy(o, t), "l2": o.pow(2).mean()},
}


@pytest.fixture(params=LOSSES)
def loss_fn(request: pytest.FixtureRequest) -> Any:
    return LOSSES[request.param]


def approx(expected: float) -> Any:
    return pytest.approx(expected, rel=1e-5, abs=1e-7, nan_ok=True)


def cut(data: Any, size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the rows of (inputs, targets) in batches of at most `size`."""
    return list(zip(*(item.split(size) for item in data), strict=True))


@torch.no_grad()
def whole(loss_fn: Any, data: Any) -> float:
    """Return the loss of all rows at once."""
    inputs, targets = data
    loss = loss_fn(linear()(inputs), targets)
    return float(sum(loss.values()) if isinstance(loss, dict) else loss)


@pytest.mark.parametrize("size", [1, 3, 8, 100])
def test_an_evaluation_gives_the_loss_of_the_whole_set_whatever_its_batch_size(loss_fn: Any, size: int) -> None:
    data = rows(20)
    assert trainer(loss_fn=loss_fn).eval(cut(data, size)) == {"eval/loss": approx(whole(loss_fn, data))}


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=6),
    st.sampled_from([None, WEIGHT, torch.tensor([0.0, 1.0, 2.0])]),
    st.sampled_from([-100, 0, 1]),
    st.sampled_from(["mean", "sum"]),
    st.data(),
)
@settings(max_examples=60)
def test_batches_of_any_sizes_weights_and_ignored_targets_add_up(
    sizes: list[int], weight: torch.Tensor | None, ignored: int, reduction: str, draw: Any
) -> None:
    data = rows(sum(sizes))
    data[1][torch.tensor(draw.draw(st.lists(st.booleans(), min_size=sum(sizes), max_size=sum(sizes))))] = ignored
    loss = nn.CrossEntropyLoss(weight, ignore_index=ignored, reduction=reduction)
    loader = list(zip(*(item.split(sizes) for item in data), strict=True))
    assert trainer(loss_fn=loss).eval(loader) == {"eval/loss": approx(whole(loss, data))}


@given(
    st.integers(1, 12),
    st.integers(1, 13),
    st.sampled_from([None, WEIGHT]),
    st.sampled_from([nn.CrossEntropyLoss, nn.NLLLoss, Focal, FocalNLL]),
    st.data(),
)
@settings(max_examples=25)
def test_microbatches_of_any_size_weights_and_ignored_targets_add_up(
    count: int, size: int, weight: torch.Tensor | None, kind: Any, draw: Any
) -> None:
    data = rows(count)
    data[1][torch.tensor(draw.draw(st.lists(st.booleans(), min_size=count, max_size=count)))] = -100
    if (data[1] == -100).all():
        data[1][0] = 0
    models = linear(), linear()
    for model, microbatch_size in zip(models, (None, size), strict=True):
        trainer([data], model, loss_fn=kind(weight), microbatch_size=microbatch_size).fit()
    assert torch.allclose(models[0].weight, models[1].weight, rtol=1e-5, atol=1e-6)


def test_microbatches_of_a_loss_that_only_looks_like_torchs_train_as_the_whole_batch(loss_fn: Any) -> None:
    models = linear(), linear()
    for model, size in zip(models, (None, 3), strict=True):
        trainer([rows(8)], model, loss_fn=loss_fn, microbatch_size=size).fit()
    assert torch.allclose(models[0].weight, models[1].weight, rtol=1e-5, atol=1e-6)


def test_a_batch_in_which_no_target_counts_is_left_out() -> None:
    inputs, targets = rows(8)
    nothing = torch.randn(4, 4), torch.full((4,), -100)
    loss = nn.CrossEntropyLoss(WEIGHT)
    found = trainer(loss_fn=loss).eval([nothing, (inputs, targets), nothing])
    assert found == {"eval/loss": approx(whole(loss, (inputs, targets)))}


@pytest.mark.parametrize(("reduction", "is_nan"), [("mean", True), ("sum", False)])
def test_a_set_in_which_no_target_counts_has_the_loss_that_torch_gives_it(reduction: str, *, is_nan: bool) -> None:
    nothing = torch.randn(4, 4), torch.full((4,), -100)
    found = trainer(loss_fn=nn.CrossEntropyLoss(reduction=reduction)).eval([nothing, nothing])
    assert math.isnan(found["eval/loss"]) if is_nan else found == {"eval/loss": 0.0}


def test_a_loss_of_counted_targets_that_is_nan_stays_so() -> None:
    bad = torch.full((2, 4), math.nan), torch.zeros(2, dtype=torch.long)
    assert math.isnan(trainer().eval([rows(4), bad])["eval/loss"])


def test_each_loader_has_a_loss_of_its_own() -> None:
    loss, sets = nn.CrossEntropyLoss(WEIGHT, ignore_index=1), {"a": rows(9, seed=3), "b": rows(14, seed=4)}
    found = trainer(loss_fn=loss).eval({label: cut(data, 4) for label, data in sets.items()})
    assert found == {f"{label}/loss": approx(whole(loss, data)) for label, data in sets.items()}


def test_a_models_own_loss_counts_by_the_rows() -> None:
    class OwnLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = linear()

        def forward(self, batch: Any) -> torch.Tensor:
            return self.net(torch.stack([row for row, _ in batch]))  # type: ignore[no-any-return]

        def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
            return F.cross_entropy(outputs, torch.stack([target for _, target in batch]))

    data = rows(20)
    samples = list(zip(*data, strict=True))
    loader = [samples[start : start + 8] for start in range(0, 20, 8)]
    made = trainer(loader, OwnLoss(), loss_fn=None, microbatch_size=3, batches=Batches(samples=True))
    assert made.eval(loader) == {"eval/loss": approx(whole(F.cross_entropy, data))}
    made.fit()
    plain = linear()
    trainer(cut(data, 8), plain, loss_fn=F.cross_entropy).fit()
    assert torch.allclose(made.state.model.net.weight, plain.weight, rtol=1e-5, atol=1e-6)
    assert made.state.timestamp.sample == 20


def test_targets_of_pixels_count_by_pixel_and_dense_ones_by_row() -> None:
    inputs, targets = torch.randn(6, 4, 5), torch.randint(3, (6, 5))
    targets[:2, 1:] = -100
    model = nn.Conv1d(4, 3, 1)
    made = trainer([(inputs, targets)], model)
    for labels in (targets, torch.rand(6, 3, 5)):
        expected = F.cross_entropy(model(inputs), labels).item()
        assert made.eval(cut((inputs, labels), 4)) == {"eval/loss": approx(expected)}


def test_the_targets_that_an_algorithm_replaced_decide() -> None:
    def ignore(state: State) -> None:
        inputs, targets = state.batch
        state.batch = inputs, targets.where(targets != 1, -100)

    data = rows(20)
    found = trainer(callbacks=at("eval_batch_start", ignore)).eval(cut(data, 3))
    assert found == {"eval/loss": approx(whole(nn.CrossEntropyLoss(ignore_index=1), data))}


def test_an_evaluation_that_was_interrupted_keeps_the_losses_it_has_even_a_nan(tmp_path: Path) -> None:
    loss, nothing = nn.CrossEntropyLoss(WEIGHT, ignore_index=1), (torch.randn(4, 4), torch.ones(4, dtype=torch.long))
    loaders = {"none": [nothing], "first": cut(rows(7, seed=3), 3), "second": cut(rows(9), 4)}
    once = iter([True])

    def pause(state: State) -> None:
        if state.dataloader_label == "second" and next(once, False):
            state.pause_training()

    def made(**settings: Any) -> Any:
        saver = CheckpointSaver(tmp_path / "run", "100ba")
        callbacks = [at("eval_batch_end", pause), saver]
        return trainer(batches(4), loss_fn=loss, eval_dataloader=loaders, callbacks=callbacks, **settings)

    with made() as paused:
        paused.fit()
    memory = Memory()
    with made(autoresume=True, loggers=memory) as resumed:
        resumed.fit()
        again = resumed.eval()
    assert [name for _, metrics in memory.metrics[:1] for name in metrics] == ["second/loss"]
    assert math.isnan(resumed.state.metrics["none/loss"])
    assert resumed.state.metrics == pytest.approx(again, nan_ok=True)
