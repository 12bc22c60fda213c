"""A batch that is a list of samples: in a run that is told so, its rows are its items."""

from typing import Any

import pytest
import torch
from torch import nn

from engine_core import Batches, Objective
from engine_core.errors import ArgumentError, ArgumentTypeError, OutOfMemoryError

from .parts import at, trainer

IMAGE = torch.zeros(3, 4, 4)
SAMPLES = Batches(samples=True)


class Detector(nn.Module):
    """Takes images and targets as torchvision's detectors do, and has its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.got: list[int] = []

    def forward(self, batch: Any) -> list[torch.Tensor]:
        self.got.append(len(batch))
        return [self.scale * image.mean() for image, _ in batch]

    def loss(self, outputs: list[torch.Tensor], batch: Any) -> torch.Tensor:
        losses = [(o - target["boxes"].mean()) ** 2 for o, (_, target) in zip(outputs, batch, strict=True)]
        return torch.stack(losses).mean()


def detected(count: int) -> Any:
    return [(IMAGE + i, {"boxes": torch.arange(4.0 * (i % 3 + 1)).reshape(-1, 4)}) for i in range(count)]


def test_a_detector_trains_in_microbatches_as_on_whole_batches_and_its_samples_are_counted() -> None:
    data, results = [detected(8), detected(5)], []
    for size in (None, 3):
        settings = {"loss_fn": None, "microbatch_size": size, "eval_dataloader": data, "batches": SAMPLES}
        made = trainer(data, Detector(), objective=Objective(check=False), **settings)
        made.fit()
        results.append((made.state.model.scale.item(), made.state.metrics["eval/loss"]))
        assert made.state.timestamp.sample == 13
    assert made.state.model.got == [3, 3, 2, 3, 2, 8, 5]
    assert results[1] == pytest.approx(results[0])
    assert made.eval([[*data[0], *data[1]]]) == pytest.approx(made.state.metrics)


@pytest.mark.parametrize("size", [2, 100])
def test_without_a_word_they_are_refused_before_a_step_where_they_have_to_be_cut(size: int) -> None:
    steps: list[int] = []
    made = trainer([detected(3)], Detector(), loss_fn=None, microbatch_size=size)
    made.state.callbacks.append(at("before_forward", lambda _: steps.append(1)))
    with pytest.raises(ArgumentError, match=r"say Batches\(samples=True\) if each is a sample"):
        made.fit()
    assert steps == []


@pytest.mark.parametrize("batch", [detected(2), [{"x": IMAGE}, {"x": IMAGE}]], ids=["tuples", "mappings"])
def test_samples_beside_a_loss_function_are_not_taken_for_inputs_and_targets(batch: Any) -> None:
    with pytest.raises(ArgumentTypeError) as error:
        trainer([batch], batches=SAMPLES).fit()
    assert str(error.value) == (
        f"with loss_fn a batch has to be (inputs, targets), but a list of {type(batch[0]).__name__} is a list of 2 "
        "samples: let the loader's collate_fn return a tuple if they are inputs and targets; samples need a model "
        "with its own loss(outputs, batch)"
    )


def test_what_did_not_fit_into_memory_is_counted_in_samples() -> None:
    class Hungry(Detector):
        def forward(self, batch: Any) -> Any:
            raise MemoryError

    with pytest.raises(OutOfMemoryError, match=r"with 8 rows, all of them at once: set microbatch_size=4 or less"):
        trainer([detected(8)], Hungry(), loss_fn=None, batches=SAMPLES).fit()
    with pytest.raises(OutOfMemoryError, match="with batches of 8 rows"):
        trainer(model=Hungry(), loss_fn=None, batches=SAMPLES).eval([detected(8)])
