"""What torch's own losses count, one closed table, and the loss of each row. A test holds each row against torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from ..batch import Batches, leaves_of
from ..errors import ArgumentError
from ..losses import is_torch_loss, loss_setting
from .loss import Count

_Table = Mapping[type[nn.Module], Callable[..., Any]]
_CLASSES: _Table = {nn.CrossEntropyLoss: F.cross_entropy, nn.NLLLoss: F.nll_loss}
_ELEMENTS: _Table = {
    nn.MSELoss: F.mse_loss,
    nn.L1Loss: F.l1_loss,
    nn.SmoothL1Loss: F.smooth_l1_loss,
    nn.HuberLoss: F.huber_loss,
    nn.BCELoss: F.binary_cross_entropy,
    nn.BCEWithLogitsLoss: F.binary_cross_entropy_with_logits,
    nn.SoftMarginLoss: F.soft_margin_loss,
    nn.PoissonNLLLoss: F.poisson_nll_loss,
    nn.GaussianNLLLoss: F.gaussian_nll_loss,
    nn.HingeEmbeddingLoss: F.hinge_embedding_loss,
}
_ROWS: _Table = {
    nn.CTCLoss: F.ctc_loss,
    nn.MultiMarginLoss: F.multi_margin_loss,
    nn.MultiLabelMarginLoss: F.multilabel_margin_loss,
    nn.MultiLabelSoftMarginLoss: F.multilabel_soft_margin_loss,
    nn.MarginRankingLoss: F.margin_ranking_loss,
    nn.CosineEmbeddingLoss: F.cosine_embedding_loss,
    nn.TripletMarginLoss: F.triplet_margin_loss,
    nn.TripletMarginWithDistanceLoss: F.triplet_margin_with_distance_loss,
}
_DIVERGENCE: _Table = {nn.KLDivLoss: F.kl_div}
_ALL: _Table = {**_CLASSES, **_ELEMENTS, **_ROWS, **_DIVERGENCE}
_IGNORED = -100  # the default in the signatures of cross_entropy and nll_loss

Counter = Callable[[Any, Any, Any, Batches], Count]
"""Called with outputs, targets, the batch and what its rows are."""


def count_rows_of(_: Any, __: Any, batch: Any, batches: Batches) -> Count:
    """Return the rows of the batch."""
    return batches.rows(batch)


def count_elements(outputs: Any, targets: Any, _: Any, __: Batches) -> Count:
    """Return the elements of outputs and targets, as they are broadcast."""
    if (shape := outputs.shape) == targets.shape:
        return shape.numel()  # type: ignore[no-any-return]
    whole: torch.Size = torch.broadcast_shapes(shape, targets.shape)  # type: ignore[no-untyped-call]
    return whole.numel()


def count_outputs(outputs: Any, _: Any, __: Any, ___: Batches) -> Count:
    """Return the elements of the outputs."""
    return outputs.numel()  # type: ignore[no-any-return]


def count_nothing(_: Any, __: Any, ___: Any, ____: Batches) -> Count:
    """Return None: a sum is divided by nothing."""
    return None


def counter_of(loss_fn: Any) -> Counter | None:
    """Return what counts one of torch's losses, None for any other loss."""
    if not is_torch_loss(loss_fn, _ALL):
        return None
    reduction = loss_setting(loss_fn, "reduction")
    if reduction == "sum" or loss_setting(loss_fn, "size_average") is False:
        return count_nothing
    if is_torch_loss(loss_fn, _CLASSES):
        return _count_classes(loss_fn)
    if is_torch_loss(loss_fn, _ELEMENTS) or (reduction != "batchmean" and is_torch_loss(loss_fn, _DIVERGENCE)):
        return count_elements
    return count_rows_of


def ignored_by(loss_fn: Any) -> int | None:
    """Return the class that one of torch's losses ignores, None for a loss of which that is not known."""
    if not is_torch_loss(loss_fn, _CLASSES):
        return None
    ignored = loss_setting(loss_fn, "ignore_index")
    return _IGNORED if ignored is None else ignored


def _count_classes(loss_fn: Any) -> Counter:
    ignored, weight = ignored_by(loss_fn), loss_setting(loss_fn, "weight")

    def count(outputs: Any, targets: Any, _: Any, __: Batches) -> Count:
        if targets.is_floating_point() or targets.shape == outputs.shape:  # probabilities, or one-hot integers
            # torch divides by what is predicted
            return outputs.numel() // outputs.shape[min(1, outputs.dim() - 1)]  # type: ignore[no-any-return]
        # Small integers can't hold the default ignore_index, and uint8 would be a mask.
        classes = targets if targets.dtype is torch.int64 else targets.long()
        counts = classes != ignored
        if weight is None:
            return counts.sum()  # type: ignore[no-any-return]
        return weight[classes.where(counts, 0)].where(counts, 0).sum()  # type: ignore[no-any-return]

    return count


class ElementsOfRows(NamedTuple):
    """What the elements of an unreduced loss are.

    Args:
        rows: how many the batch has.
        dim: where the loss has them; None: not known, so it has to be (n,).
        is_sum: does a batch of one row have the sum of its elements for its loss, or their mean?
        ignored: the class whose elements are left out of a mean.
    """

    rows: int
    dim: int | None
    is_sum: bool
    ignored: int | None

    def losses(self, given: Any, targets: Any, name: str = "") -> torch.Tensor:
        """Return the loss of each row (n,).

        Args:
            targets: as the loss got them.
            name: of a part of the loss.
        """
        rows, dim = self.rows, self.dim
        if isinstance(given, torch.Tensor):
            if given.shape == (rows,):
                return given
            if dim is not None and given.dim() > max(dim, 1) and given.shape[dim] == rows:
                elements = given.movedim(dim, 0).flatten(1)
                if self.is_sum:
                    return elements.sum(1)
                if self.ignored is None or not isinstance(targets, torch.Tensor) or targets.shape != given.shape:
                    return elements.mean(1)
                counts = (targets.long() != self.ignored).movedim(dim, 0).flatten(1).sum(1)
                return elements.sum(1) / counts.clamp(min=1)
        found = f"shape {tuple(given.shape)}" if isinstance(given, torch.Tensor) else f"{given!r:.80}"
        where = f", or have the rows in dimension {dim}" if dim is not None else ""
        raise ArgumentError(
            f"the loss{name and f' {name!r}'} gives {found} with reduction='none' for {rows} rows; it has to be "
            f"({rows},){where}, as losses.flatten(1).mean(1) may be: override Objective.row_losses where it can't"
        )


def dim_of_rows(batches: Batches, batch: Any, targets: Any) -> int | None:
    """Return the dimension where targets, or all of a batch, have the rows; None if it is not one for all of them."""
    if not batches.dim:
        return 0
    dims: dict[int, int] = {}
    batches.map_rows(batch, lambda item, dim: dims.setdefault(id(item), dim))
    found = {dims[id(leaf)] for leaf in leaves_of(targets) if id(leaf) in dims}
    return found.pop() if len(found) == 1 else None if found else 0
