"""Does an algorithm work in a loop that lacks what it does not say that it needs?"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from engine_core.algorithm import algorithm_metadata
from engine_core.batch import Batches
from engine_core.loop import Loop
from engine_core.needs import EVERYTHING
from engine_core.state import State

from ..kit import AlgorithmKit, Fault
from ..runs import SEED, Attempt, Outcome, data_of, described, required_by, seed_parts, weights_of
from .execution import close

TRIED = ("surgery", "first_batch", "duration", "whole_batch", "row_loss", "closure", "skip_step", "stop")
"""The others take several processes, or the Trainer."""


def test_needs(kit: AlgorithmKit) -> Fault | None:
    """Train in loops that lack one thing each, and compare with one that lacks nothing."""
    algorithm = kit.make_algorithm()
    both = [algorithm, *required_by(kit, [algorithm])]  # what it requires may need more than itself
    declared = {need for each in both for need in algorithm_metadata(each).needs}
    undeclared = [need for need in TRIED if need not in declared]
    if kit.make_loss() is None and "row_loss" in undeclared:
        undeclared.remove("row_loss")  # the loss is the model's, and so it is there
    whole = _train(kit, None)
    if whole.outcome is None:
        pytest.skip(f"it does not work in a loop other than the Trainer's: {described(whole.error)}")
    for need in undeclared:
        lacking = _train(kit, need)
        where = f"in a loop without {need!r}, which it does not declare,"
        if lacking.outcome is None:
            return Fault(f"{where} {described(lacking.error)}", lacking.error)
        if need != "whole_batch" and (different := close(whole.outcome, lacking.outcome)):
            return Fault(f"{where} it ends with different results: {different}")
    return None


def _train(kit: AlgorithmKit, lacks: str | None) -> Attempt:
    try:
        loop = _Loop(kit, lacks)
        loop.fit()
    except Exception as error:  # noqa: BLE001  what it is decides
        return Attempt(error=error)
    weights = weights_of(loop.seam.state)
    return Attempt(Outcome(weights, [], [], dict(loop.seam.state.metrics), Counter()))


class _Loop:
    """A loop of two epochs with an evaluation after each, as another project might write it.

    Args:
        lacks: what it does not offer, a name of `NEEDS`; None: it offers all but what takes the Trainer.
    """

    def __init__(self, kit: AlgorithmKit, lacks: str | None) -> None:
        self._lacks, self._loss_fn = lacks, kit.make_loss()
        self._data = list(data_of(kit))
        seed_parts(SEED)
        model, algorithm = kit.make_model(), kit.make_algorithm()
        state = State(
            model=model,
            algorithms=[algorithm, *required_by(kit, [algorithm])],
            loss_fn=None if lacks == "row_loss" else self._loss_fn,
            max_duration=None if lacks == "duration" else "2ep",
            train_dataloader=self._data,
            seed=SEED,
            device=torch.device("cpu"),
        )
        why = "the check of needs takes it away; declare it"
        self.seam = Loop(state, EVERYTHING if lacks is None else EVERYTHING.without(lacks, why=why))
        state.loop.peek = None if lacks == "first_batch" else lambda: copy.deepcopy(self._data[0])
        early = kit.make_optimizers(model.parameters()) if lacks == "surgery" else None
        self.seam.init()
        made = kit.make_optimizers(state.model.parameters()) if early is None else early  # type: ignore[union-attr]
        state.optimizers = list(made) if isinstance(made, Sequence) else [made]
        self._taken: list[Any] = []

    def fit(self) -> None:
        """Train."""
        seam = self.seam
        seam.state.dataloader, seam.state.dataloader_len = self._data, len(self._data)
        seam.fit_start(None if self._lacks == "closure" else self._again)
        for _ in range(2):
            seam.epoch_start()
            ends = any(map(self._step, self._groups()))
            if ends:
                break
            seam.epoch_end()
            self._evaluate()
            seam.epoch_checkpoint()
        seam.fit_end()
        seam.close()

    def _groups(self) -> list[list[Any]]:
        """Return the batches of each step."""
        size = 2 if self._lacks == "whole_batch" else 1
        return [self._data[start : start + size] for start in range(0, len(self._data), size)]

    def _step(self, batches: list[Any]) -> bool:
        """Train on the batches of a step; return whether training ends."""
        seam, state, self._taken = self.seam, self.seam.state, []
        for number, loaded in enumerate(batches):
            taken = seam.take(loaded)
            if not number:
                seam.begin_step(seam.clear_gradients)
                taken = state.batch
            self._taken.append(taken)
            self._gradients(taken, 1 / len(batches))
        steps = seam.end_gradients() or self._lacks == "skip_step"
        for optimizer in state.optimizers if steps else ():
            optimizer.step()
        ends = seam.end_step()
        seam.batch_checkpoint()
        return ends and self._lacks != "stop"

    def _gradients(self, batch: Any, share: float) -> torch.Tensor:
        """Compute those of a batch, and leave it in State as it was."""
        seam = self.seam
        outputs = seam.end_forward(self._outputs_of(seam.begin_forward(batch)))
        seam.begin_loss()
        loss, _ = seam.state.objective.scalar(seam.end_loss(self._loss_of(outputs)))
        loss = loss if share == 1 else loss * share
        graph = {"create_graph": True} if seam.engine.backwards_create_graph else {}
        seam.begin_backward(loss).backward(**graph)
        seam.end_backward()
        seam.state.batch = batch
        return loss.detach()

    def _again(self) -> torch.Tensor:
        self.seam.clear_gradients()
        return torch.stack([self._gradients(batch, 1 / len(self._taken)) for batch in self._taken]).sum()

    def _outputs_of(self, batch: Any) -> Any:
        model: Any = self.seam.state.model
        return model(batch if self._loss_fn is None else batch[0])

    def _loss_of(self, outputs: Any) -> Any:
        state, batch = self.seam.state, self.seam.state.batch
        model: Any = state.model
        return model.loss(outputs, batch) if self._loss_fn is None else self._loss_fn(outputs, batch[1])

    def _evaluate(self) -> None:
        """Evaluate on the data of training."""
        seam, total, rows = self.seam, 0.0, 0
        with seam.evaluating(seam.state.model, "eval", self._data) as results:  # type: ignore[arg-type]
            for loaded in self._data:
                batch = seam.eval_batch(loaded)
                seam.eval_outputs(self._outputs_of(batch))
                loss, _ = seam.state.objective.scalar(self._loss_of(seam.state.outputs))
                seam.eval_batch_end(loss)
                total, rows = total + loss.item() * Batches().rows(batch), rows + Batches().rows(batch)
            results["loss"] = total / rows
