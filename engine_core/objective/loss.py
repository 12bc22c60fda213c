"""`Loss`, a sum and its count; its means; what torch's own losses count; notes on common slips."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn
from torch.nn import functional as F

from ..batch import Batches, leaves_of
from ..errors import ArgumentError, ArgumentTypeError, add_note
from ..losses import LateValue, is_torch_loss, loss_setting
from ..messages import join_words

Count: TypeAlias = "int | float | torch.Tensor | None"


@dataclass(frozen=True)
class Loss:
    """The loss of some rows: a sum over what counts, and how much counts.

    Two losses with the same count, such as two terms of one batch, can be added, and numbers scale the sum. Losses of
    different rows are joined by `merged`.

    Args:
        sum: a scalar with its graph.
        count: what a mean divides the sum by: rows, tokens, class weights. 0: nothing counts. None: it is a sum, which
            nothing divides.
        parts: further sums with the same count, logged as `train/loss/<name>`.

    Example:
        >>> Loss(torch.tensor(6.0), 3).mean
        tensor(2.)
        >>> (Loss(torch.tensor(6.0), 3) + 0.5 * Loss(torch.tensor(2.0), 3)).sum
        tensor(7.)
    """

    sum: torch.Tensor
    count: Count
    parts: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count: Any = self.count
        total: Any = self.sum
        if not isinstance(total, torch.Tensor) or total.dim():
            check_scalar(self.sum, "the sum of a Loss")
        for name, part in self.parts.items():
            check_scalar(part, f"part {name!r} of a Loss")
        if type(count) is int and count >= 0:
            return
        if isinstance(count, torch.Tensor):
            if count.dim():
                raise ArgumentError(f"the count of a Loss has shape {tuple(count.shape)}; add it up, as count.sum()")
        elif count is not None and (isinstance(count, bool) or not isinstance(count, Real) or not float(count) >= 0):
            raise ArgumentError(f"the count of a Loss is {count!r}; it has to be a number of at least 0, or None")

    @property
    def mean(self) -> torch.Tensor:
        """The sum divided by the count; the sum itself if there is no count, and NaN if nothing counts."""
        return divided(self.sum, self.count)

    @property
    def means(self) -> dict[str, torch.Tensor]:
        """The parts, each divided by the count."""
        return {name: divided(part, self.count) for name, part in self.parts.items()}

    def __add__(self, other: Any) -> Loss:
        if not isinstance(other, Loss):
            return NotImplemented
        if not _are_equal(self.count, other.count):
            raise ArgumentError(
                f"losses that count {_number(self.count)} and {_number(other.count)} can't be added: give both one "
                "count, or return them as named parts"
            )
        names = [*self.parts, *(name for name in other.parts if name not in self.parts)]
        parts = {name: self.parts.get(name, 0) + other.parts.get(name, 0) for name in names}
        return Loss(self.sum + other.sum, self.count, parts)  # type: ignore[arg-type]

    def __mul__(self, factor: float | torch.Tensor) -> Loss:
        return replace(self, sum=self.sum * factor, parts={n: p * factor for n, p in self.parts.items()})

    __rmul__ = __mul__

    def __truediv__(self, factor: float | torch.Tensor) -> Loss:
        return self * (1 / factor)

    def detach(self) -> Loss:
        """Return the same loss without its graph."""
        count = self.count.detach() if isinstance(self.count, torch.Tensor) else self.count
        return Loss(self.sum.detach(), count, {name: part.detach() for name, part in self.parts.items()})

    @staticmethod
    def merged(losses: Iterable[Loss]) -> Loss:
        """Return the loss of the rows of several losses together: sums and counts add up.

        Example:
            >>> Loss.merged([Loss(torch.tensor(6.0), 3), Loss(torch.tensor(2.0), 1)]).mean
            tensor(2.)
        """
        first, *others = losses
        total: Any = first.sum
        count: Any = first.count
        parts: dict[str, Any] = dict(first.parts)
        for each in others:
            if (each.count is None) != (count is None):
                raise ArgumentError("one loss of a batch is a sum (count=None) and another has a count: give both one")
            total = total + each.sum
            count = None if count is None else count + each.count
            for name, part in each.parts.items():
                parts[name] = parts[name] + part if name in parts else part
        return Loss(total, count, parts)


def divided(total: torch.Tensor, count: Count) -> torch.Tensor:
    """Return a sum divided by its count."""
    return total if count is None else total / count


def weighted(mean: torch.Tensor, count: Count) -> torch.Tensor:
    """Return the sum of which something is the mean: 0 where nothing counts, since that mean is not a number."""
    if count is None:
        return mean
    if not isinstance(count, torch.Tensor) or count.device.type == "cpu":  # its value is there
        return mean * count if count else as_nothing(mean)
    return torch.where(count > 0, mean * count, torch.zeros_like(mean))


def as_nothing(loss: torch.Tensor) -> torch.Tensor:
    """Return 0 with the graph of a loss, so that its backward reaches all parameters."""
    weightless = loss * 0
    return weightless.where(weightless == 0, torch.zeros_like(weightless))


def check_scalar(loss: Any, what: str) -> torch.Tensor:
    """Return a tensor without dimensions, or raise."""
    if not isinstance(loss, torch.Tensor):
        raise ArgumentTypeError(f"{what} is {loss!r:.80} ({type(loss).__name__}); it has to be a scalar tensor")
    if loss.dim():
        raise ArgumentError(f"{what} has shape {tuple(loss.shape)}; reduce it to a scalar, as loss.mean() does")
    return loss


def _are_equal(one: Count, other: Count) -> bool:
    return one is other or (one is not None and other is not None and bool(one == other))


def _number(count: Count) -> str:
    return "nothing (sums)" if count is None else f"{float(count):g}"


KEPT = 0.98
"""How much of the smoothed loss a batch leaves: about the last 50 batches count."""


class LossMeter:
    """Adds up the losses of batches: their sums, and what they count.

    On a GPU a loss is copied while the device works, and read once the copy is there.

    Attributes:
        total, count: sum and count of all losses taken since `restart`.
        is_sum: are the losses sums, which nothing divides?
    """

    def __init__(self) -> None:
        self.total = self.count = 0.0
        self.is_sum = False
        self._smooth, self._batches = 0.0, 0
        self._unusual: float | None = None
        self._late: deque[tuple[LateValue, Any]] = deque()

    def take(self, loss: Any, count: Any) -> None:
        """Take the mean loss of a batch; what is not a number, as a loop of one's own may have it, is passed over.

        Args:
            count: what the mean was divided by: a number, or a tensor on the loss's device; None for a sum.
        """
        try:
            if loss.is_cuda:
                self._take_late(loss, count)
            else:
                self.add(loss.item(), count)
        except (AttributeError, RuntimeError, ValueError):
            if getattr(loss, "numel", int)() == 1:
                raise

    def add(self, value: float, count: Any) -> None:
        """Add the mean loss of a batch, as a number, times what it counts."""
        if count is None:
            self.is_sum = True
            self.total += value
        else:
            if type(count) is not int:
                count = float(count)
            if count:  # of a batch without a target that counts, the loss is NaN
                self.total += value * count
                self.count += count
        if value - value == 0:  # it is finite; cheaper than a call in each step
            self._smooth += (1 - KEPT) * (value - self._smooth)
            self._batches += 1
        else:
            self._smooth, self._batches, self._unusual = 0.0, 0, value

    def flush(self) -> None:
        """Wait for the losses that are still being computed."""
        while self._late:
            self._read()

    def restart(self) -> None:
        """Begin a new mean."""
        self.total, self.count, self.is_sum = 0.0, 0.0, False

    @property
    def mean(self) -> float | None:
        """The sum of all losses by the sum of what they count; the sum alone for sums; None if nothing counted."""
        return self.total if self.is_sum else self.total / self.count if self.count else None

    @property
    def smoothed(self) -> float | None:
        """The exponential mean over batches, without the bias of its start; None before the first batch.

        A loss that is not finite is shown as it is, and the next finite one starts a new mean.
        """
        return self._smooth / (1 - KEPT**self._batches) if self._batches else self._unusual

    def _take_late(self, loss: torch.Tensor, count: Any) -> None:
        if loss.numel() != 1:
            return
        if hasattr(count, "item"):
            count = LateValue(count)
        self._late.append((LateValue(loss), count))  # made last, so that it is there last
        while self._late and self._late[0][0].is_there():
            self._read()

    def _read(self) -> None:
        loss, count = self._late.popleft()
        self.add(loss.item(), count.item() if hasattr(count, "item") else count)


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


_PARTS = (tuple, list)


def are_samples(batch: Any) -> bool:
    """Is this a list of tuples or mappings, one for each sample, and not inputs and targets?"""
    return isinstance(batch, list) and bool(batch) and all(isinstance(item, (tuple, Mapping)) for item in batch)


def not_a_pair(batch: Any) -> ArgumentTypeError:
    """Return the error for a batch that is not inputs and targets."""
    items = f" of length {len(batch)}" if isinstance(batch, _PARTS) else ""
    if are_samples(batch):
        return ArgumentTypeError(
            f"with loss_fn a batch has to be (inputs, targets), but a list of {type(batch[0]).__name__} is a list of "
            f"{len(batch)} samples: let the loader's collate_fn return a tuple if they are inputs and targets; "
            "samples need a model with its own loss(outputs, batch)"
        )
    return ArgumentTypeError(
        f"with loss_fn a batch has to be (inputs, targets), not a {type(batch).__name__}{items}: say where they are, "
        "Trainer(objective=engine_core.Objective(loss_fn, inputs='input_ids', targets='labels')), or give the model "
        "its own loss(outputs, batch)"
    )


def note_slips(error: Exception, objective: Any, batch: Any, outputs: Any) -> None:
    """Note on what the model or its loss raised each common slip that may be the cause; `outputs` if it is the loss."""
    is_pair = objective.loss_fn is not None and (objective.inputs, objective.targets) == (0, 1)
    items = dict(batch) if isinstance(batch, Mapping) else dict(enumerate(batch if isinstance(batch, _PARTS) else ()))
    if is_pair and isinstance(batch, _PARTS) and len(items) > 2:
        add_note(
            error,
            f"of the {len(items)} items of the batch the model gets item 0, {_described(items[0])}, and the loss item "
            f"1, {_described(items[1])}; the others are for algorithms. For several inputs say "
            "Trainer(objective=engine_core.Objective(loss_fn, inputs=(0, 1), targets=2))",
        )
    if arrays := [repr(key) for key, item in items.items() if _is_array(item)]:
        those = f"item {arrays[0]}" if len(arrays) == 1 else f"items {join_words(arrays)}"
        add_note(
            error,
            f"the batch has NumPy arrays ({those}), and torch takes tensors: convert them in the dataset with "
            "torch.as_tensor, or use a DataLoader, which does",
        )
    if is_pair and outputs is not None and not isinstance(outputs, torch.Tensor):
        keys = f" with the keys {join_words([*map(repr, outputs)])}" if isinstance(outputs, Mapping) else ""
        add_note(
            error,
            f"the model returned a {type(outputs).__name__}{keys}, and loss_fn gets that as it is: return the tensor, "
            "take it out in loss_fn, or give the model a method loss(outputs, batch) in place of loss_fn",
        )


def _is_array(item: Any) -> bool:
    return type(item).__module__ == "numpy" and hasattr(item, "shape")


def _described(item: Any) -> str:
    shape = f" of shape {tuple(item.shape)}" if hasattr(item, "shape") else ""
    return f"a {type(item).__name__}{shape}"
