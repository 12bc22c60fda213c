"""What a step in microbatches shows; that it is the step of the whole batch is held by test_objective_table."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State
from engine_core.batch import take_rows

from .parts import Memory, at, batches, linear, trainer


class KeepFive(Algorithm):
    metadata = AlgorithmMetadata(events=(Event.AFTER_DATALOADER,))

    def match(self, event: Event, state: State) -> bool:
        return True

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        state.batch = take_rows(state.batch, state.batch[0].size(0), torch.tensor([0, 2, 3, 4, 1]))


def parts(outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"ce": F.cross_entropy(outputs, targets), "l2": outputs.pow(2).mean()}


@pytest.mark.parametrize("size", [1, 3, 8])
def test_weights_and_logs_of_epochs_are_those_of_whole_batches_also_where_an_algorithm_dropped_rows(size: int) -> None:
    found = []
    for microbatch_size in (None, size):
        model, memory = linear(), Memory()
        settings = {"loss_fn": parts, "microbatch_size": microbatch_size, "algorithms": KeepFive(), "loggers": memory}
        trainer(batches(8, 8, 5), model, max_duration="2ep", **settings).fit()
        found.append((model.weight.tolist(), memory.metrics))
    (weights, logs), (others, other_logs) = found
    torch.testing.assert_close(torch.tensor(others), torch.tensor(weights), rtol=0, atol=1e-6)
    assert other_logs == [(step, {k: pytest.approx(v) for k, v in metrics.items()}) for step, metrics in logs]
    step = ["train/loss", "train/loss/ce", "train/loss/l2", "train/lr/0"]
    assert [sorted(metrics) for _, metrics in logs] == [step, step, step, ["train/loss_epoch"]] * 2


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
