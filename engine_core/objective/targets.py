"""Losses of other targets than those of the batch: which ones torch's losses take, and whether a loss has seen them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..batch import leaves_of
from ..errors import ArgumentError
from ..losses import is_torch_loss
from .loss import Loss
from .objective import ModelLoss

_TAKEN: Mapping[str, Mapping[type[nn.Module], Any]] = {
    "classes or probabilities": {nn.CrossEntropyLoss: F.cross_entropy},
    "classes": {
        nn.NLLLoss: F.nll_loss,
        nn.MultiMarginLoss: F.multi_margin_loss,
        nn.MultiLabelMarginLoss: F.multilabel_margin_loss,
        nn.CTCLoss: F.ctc_loss,
    },
    "1 and -1": {nn.HingeEmbeddingLoss: F.hinge_embedding_loss, nn.SoftMarginLoss: F.soft_margin_loss},
    "0 to 1 for each output": {
        nn.BCELoss: F.binary_cross_entropy,
        nn.BCEWithLogitsLoss: F.binary_cross_entropy_with_logits,
        nn.MultiLabelSoftMarginLoss: F.multilabel_soft_margin_loss,
    },
}


def targets_taken(loss_fn: Any) -> str | None:
    """Return what one of torch's losses takes for targets, in words; None for those of numbers and other losses."""
    return next((taken for taken, losses in _TAKEN.items() if is_torch_loss(loss_fn, losses)), None)


def check_seen(step: Any, who: str, *, counts: bool = False) -> None:
    """Raise unless the loss was computed from the targets that `who` had put in place of the batch's.

    Args:
        step: the State at AFTER_LOSS, the batch with its own targets again.
        counts: ask whether a `Loss` counts what it counts for the batch's own targets? The loss is computed once more.
    """
    objective, loss = step.objective, step.loss
    given = list(loss.values()) if isinstance(loss, Mapping) else loss if isinstance(loss, (tuple, list)) else [loss]
    given = [each.sum if isinstance(each, Loss) else each for each in given]
    outputs = {id(leaf) for leaf in leaves_of(step.outputs)}  # the forward computed them, from the targets of then
    if isinstance(objective, ModelLoss) or (given and all(id(each) in outputs for each in given)):
        raise ArgumentError(
            f"{who} changes the targets that the loss is computed from, but this loss is one of the model's outputs, "
            "computed in the forward: let the forward return logits, and compute it in loss(outputs, batch), or in a "
            "loss_fn, as Trainer(objective=engine_core.Objective(loss_fn, inputs='input_ids', targets='labels'))"
        )
    if not (counts and isinstance(loss, Loss)):
        return
    try:
        with torch.no_grad():
            own = objective.given(step.model, step.outputs, step.batch)
    except Exception:  # noqa: BLE001  it may take only such targets as these
        return
    if not isinstance(own, Loss):
        return
    found, expected = (None if each.count is None else float(each.count) for each in (loss, own))
    if found != expected and (found is None or expected is None or not math.isclose(found, expected, rel_tol=1e-4)):
        raise ArgumentError(
            f"{objective.name_of_loss(step.model)} counts {expected} for the targets of the batch, and {found} for "
            f"those of {who}, shares of classes (N, K, ...): let its Loss count rows, as targets.shape[0]"
        )
