"""For models that compute their loss in forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..batch import get_item
from ..errors import ArgumentError, BatchKeyError
from .loss import Loss
from .objective import Items, Objective


class ModelLoss(Objective):
    """The loss is an item of the outputs, as with Hugging Face's models.

    Args:
        loss: where the loss is in the outputs, an index, key or attribute.
        outputs: where what metrics get is in the outputs.
        targets: the item of the batch that metrics get, and `count`.
        inputs: what the model gets, see `Objective`.
        count: what the loss is divided by, see `Objective`; for a causal language model
            `lambda outputs, labels: (labels[:, 1:] != -100).sum()`.
        check: see `Objective`.

    Example:
        >>> import torch
        >>> net = torch.nn.Linear(2, 1)
        >>> model = lambda x, y: (net(x), (net(x) - y).square().mean())
        >>> objective = ModelLoss(loss=1, outputs=0, targets=1, inputs="*")
        >>> batch = torch.ones(4, 2), torch.ones(4, 1)
        >>> objective.loss(model, objective.forward(model, batch), batch).count
        4
    """

    def __init__(
        self,
        loss: int | str = "loss",
        outputs: int | str = "logits",
        targets: Items = "labels",
        inputs: Items = "**",
        count: str | Callable[[Any, Any], Any] | None = None,
        *,
        check: bool = True,
    ) -> None:
        super().__init__(inputs=inputs, targets=targets, count=count, check=check)
        self.loss_item, self.outputs_item = loss, outputs

    def loss(self, model: Any, outputs: Any, batch: Any) -> Loss:
        """Return the loss that the forward has put into the outputs."""
        try:
            given = get_item(outputs, self.loss_item)
        except BatchKeyError as error:
            raise self._no_loss(model, str(error)) from error
        if given is None:
            raise self._no_loss(model, "it is None")
        return self.counted(given, outputs, batch)

    def for_metrics(self, outputs: Any, batch: Any) -> tuple[Any, Any]:
        """Return the outputs and targets that metrics get."""
        return get_item(outputs, self.outputs_item), self.targets_of(batch)

    def _no_loss(self, model: Any, why: str) -> ArgumentError:
        return ArgumentError(
            f"ModelLoss(loss={self.loss_item!r}) found no loss in the outputs of {type(model).__name__} ({why}): give "
            "the batch the labels that its forward needs, or say where the loss is, ModelLoss(loss=...)"
        )
