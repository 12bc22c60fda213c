"""The loss of logits and labels, where a model gets the items of a batch by name. Imports nothing of transformers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from engine_core import Objective
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core.messages import join_words
from engine_core.objective import Loss, check_own_objective


class LogitsLoss(Objective):
    """A loss of logits and labels: the model gets the other items that it takes.

    Args:
        loss_fn: called with logits and labels.
        label_key: where the labels are in a batch.

    Example:
        >>> import torch
        >>> objective = LogitsLoss(torch.nn.CrossEntropyLoss(), "labels")
        >>> batch = {"x": torch.zeros(2, 3), "labels": torch.tensor([1, -100])}
        >>> outputs = objective.forward(lambda x: {"logits": x}, batch)
        >>> objective.loss(None, outputs, batch).count
        1
    """

    def __init__(self, loss_fn: Any, label_key: str) -> None:
        super().__init__(loss_fn, inputs="**", targets=label_key)
        self._taken: set[str] | None = None

    @classmethod
    def unless_given(cls, loss_fn: Any, label_key: str, objective: Any) -> Objective | None:
        """Return the user's objective, or one of the user's loss function; None if there is neither."""
        if objective is not None:
            check_own_objective(objective, loss_fn)
            return objective  # type: ignore[no-any-return]
        if loss_fn is not None and not callable(loss_fn):
            raise ArgumentTypeError(f"loss_fn is a function of logits and labels, not {loss_fn!r:.80}")
        return None if loss_fn is None else cls(loss_fn, label_key)

    def look_at(self, model: Any) -> set[str] | None:
        """Find out which items the model takes, before it is wrapped, and return them; None: all."""
        parameters = inspect.signature(model.forward).parameters
        takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        self._taken = None if takes_all else {*parameters}
        return self._taken

    def forward(self, model: Any, batch: Any) -> Any:
        """Return the outputs of the model, which gets no labels and computes no loss of its own."""
        return model(**self.inputs_of(batch))

    def inputs_of(self, batch: Any) -> Any:
        """Return the items that the model takes, without the labels."""
        key, taken = self.targets, self._taken
        return {n: v for n, v in batch.items() if n != key and (taken is None or n in taken)}

    def given(self, model: Any, outputs: Any, batch: Any) -> Any:
        """Return what the loss function returns."""
        return super().given(model, _logits(model, outputs), batch)

    def counted(self, given: Any, outputs: Any, batch: Any, loss_fn: Any = None) -> Loss:
        """Return what the loss function returned with what it counts."""
        return super().counted(given, _logits(None, outputs), batch, loss_fn)

    def count_of(self, outputs: Any, batch: Any) -> Any:
        """Return what the loss is divided by."""
        return super().count_of(_logits(None, outputs), batch)

    def row_losses(self, model: Any, outputs: Any, batch: Any) -> Any:
        """Return the loss of each row."""
        return super().row_losses(model, _logits(model, outputs), batch)

    def for_metrics(self, outputs: Any, batch: Any) -> tuple[Any, Any]:
        """Return logits and labels."""
        return super().for_metrics(_logits(None, outputs), batch)


def target_keys(objective: Objective) -> list[str]:
    """Return the keys of the targets in a batch."""
    targets = objective.targets
    return [key for key in (targets if isinstance(targets, tuple) else (targets,)) if isinstance(key, str)]


def _logits(model: Any, outputs: Any) -> Any:
    if isinstance(outputs, Mapping):
        if "logits" not in outputs:
            gives = f"{type(model).__name__} gives {join_words([*outputs])}, and loss_fn takes 'logits'"
            raise ArgumentError(f"{gives}: let its forward give them, or leave loss_fn out if the loss is its own")
        return outputs["logits"]
    return outputs[0] if isinstance(outputs, tuple) else outputs
