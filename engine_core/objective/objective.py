"""A model's task: forward, loss, and what the loss counts. The only place that knows what a batch is to a model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, TypeAlias

import torch
from torch import nn

from ..batch import Batches, get_item, leaves_of, map_batch
from ..errors import ArgumentError, ArgumentTypeError, BatchKeyError, did_you_mean
from ..losses import base_loss, with_reduction
from ..time import as_number
from .loss import (
    Count,
    Counter,
    ElementsOfRows,
    Loss,
    are_samples,
    as_nothing,
    check_scalar,
    count_elements,
    count_nothing,
    count_outputs,
    count_rows_of,
    counter_of,
    dim_of_rows,
    ignored_by,
    not_a_pair,
    note_slips,
    weighted,
)

Items: TypeAlias = "int | str | tuple[int | str, ...]"
"""Where something is in a batch: an index, key or attribute, several of these, `*` for all, or `**` for all by name."""

_COUNTS: Mapping[str, Counter] = {"rows": count_rows_of, "elements": count_outputs, "sum": count_nothing}
_TOTALS = ("total", "loss")
_FIRST = 3
"""In so many batches a part has to be the sum of all others before it is taken for a total."""


class Objective:
    """What a model gets of a batch, its loss, and what the loss counts.

    `Trainer(loss_fn=...)` makes one; without a `loss_fn` the loss is the model's own method `loss(outputs, batch)`, and
    the model gets the whole batch. Any method may be overridden. A loss is a scalar, several by name or in a tuple, or
    a `Loss`. Of several by name, `total` or `loss` is their total; without one, those with a gradient are added up and
    the others only logged.

    Args:
        loss_fn: called with the outputs and the targets.
        inputs: the item of the batch that the model gets, or a tuple of items, or `"*"` for all items as positional
            arguments, or `"**"` for the items of a mapping as keyword arguments.
        targets: what the loss function gets of the batch, likewise.
        count: what a bare scalar is divided by: `"rows"`, `"elements"` of the outputs, `"sum"` for nothing, or a
            function of outputs and targets. None: what torch's own losses divide by, and rows for all others.
        eval_loss_fn: the loss function of evaluations.
        check: measure that losses of parts of a batch add up to its loss, see `Law`.

    Example:
        >>> objective = Objective(nn.CrossEntropyLoss(), inputs="image", targets="label")
        >>> batch = {"image": torch.zeros(4, 2), "label": torch.tensor([0, 1, 1, -100])}
        >>> model = nn.Linear(2, 3)
        >>> objective.loss(model, objective.forward(model, batch), batch).count
        3
    """

    batches: Batches = Batches()
    shared_rows: Any = None  # a `SharedRowLosses`, once `State.row_losses` has been asked

    def __init__(
        self,
        loss_fn: Any = None,
        *,
        inputs: Items = 0,
        targets: Items = 1,
        count: str | Callable[[Any, Any], Any] | None = None,
        eval_loss_fn: Any = None,
        check: bool = True,
    ) -> None:
        given: Any = count
        if isinstance(given, str) and given not in _COUNTS:
            raise ArgumentError(f"count={count!r} is unknown{did_you_mean(given, _COUNTS)}")
        if given is not None and not isinstance(given, str) and not callable(given):
            known = ", ".join(map(repr, _COUNTS))
            raise ArgumentTypeError(f"count={count!r} has to be {known} or a function of outputs and targets")
        self._loss_fn, self.eval_loss_fn = check_loss_fn(loss_fn), check_loss_fn(eval_loss_fn, "eval_loss_fn")
        self.inputs, self.targets = _check_items("inputs", inputs), _check_items("targets", targets)
        self.count, self.check = count, check
        self._is_pair = self.inputs == 0  # as a rule, and without a call in each step
        self._counters: dict[int, tuple[Any, Counter, bool, bool]] = {}
        self._suspects: dict[str, int] = {}
        self._seen = 0
        self._trained: set[str] | None = None
        self._latest: tuple[Count] | None = None  # of a `Loss`, whose graph is not kept alive

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "given" in vars(cls):
            cls._asked = cls.given
        if "loss" in vars(cls):
            cls.given = cls.loss  # type: ignore[method-assign]

    @property
    def loss_fn(self) -> Any:
        """The loss function, None where the model has its own loss."""
        return self._loss_fn

    @loss_fn.setter
    def loss_fn(self, loss_fn: Any) -> None:
        self._loss_fn, self._latest = loss_fn, None

    def forward(self, model: Any, batch: Any) -> Any:
        """Return the model's outputs for a batch."""
        try:
            if not self._is_pair:
                return call_model(model, self.inputs, _items_of(batch, self.inputs))
            if self._loss_fn is None:
                return model(batch)
            return model(batch[0] if type(batch) is tuple and batch else _item_of_pair(batch, 0))
        except Exception as error:
            note_slips(error, self, batch, None)
            raise

    def predict(self, model: Any, batch: Any) -> Any:
        """Return the model's outputs for a batch that may have no targets: `(inputs, ...)`, `[inputs]`, or inputs."""
        if self.inputs != 0 and not isinstance(batch, torch.Tensor):
            return self.forward(model, batch)
        own = getattr(model, "loss", None)
        try:
            if self._loss_fn is None and callable(own) and not isinstance(own, nn.Module):
                return model(batch)
            if not isinstance(batch, (tuple, list)):
                return model(batch)
            if len(batch) > 1 and are_samples(batch):
                raise not_a_pair(batch)  # noqa: TRY301  what else raises here gets the notes too
            return model(batch[0])
        except Exception as error:
            note_slips(error, self, batch, None)
            raise

    def given(self, model: Any, outputs: Any, batch: Any) -> Any:
        """Return what the loss function, or the model's own `loss`, returns."""
        try:
            if (loss_fn := self._loss_fn) is None:
                return model.loss(outputs, batch)
            return loss_fn(outputs, _item_of_pair(batch, 1) if self.targets == 1 else self.targets_of(batch))
        except Exception as error:
            note_slips(error, self, batch, outputs)
            raise

    _asked = given
    """By `loss`, which a subclass may call where `given` is its own `loss`."""

    def loss(self, model: Any, outputs: Any, batch: Any) -> Loss:
        """Return the loss of a batch, or of a part of it, with what it counts."""
        return self.counted(self._asked(model, outputs, batch), outputs, batch)

    def eval_loss(self, model: Any, outputs: Any, batch: Any) -> Loss | None:
        """Return the loss of a batch of an evaluation; None where evaluations have none."""
        if self.eval_loss_fn is None:
            return self.counted(self.loss(model, outputs, batch), outputs, batch)
        given = self.eval_loss_fn(outputs, self.targets_of(batch))
        return self.counted(given, outputs, batch, self.eval_loss_fn)

    def for_metrics(self, outputs: Any, batch: Any) -> tuple[Any, Any]:
        """Return the outputs and targets that metrics get."""
        return outputs, self.targets_of(batch)

    def row_losses(self, model: Any, outputs: Any, batch: Any) -> torch.Tensor:
        """Return the loss of each row (n,): the mean of its elements that count, or their sum where the loss is a sum.

        The loss function, or the model's own, is asked with `reduction="none"`.
        """
        unreduced = self._unreduced(model)
        taken = batch if self._loss_fn is None else self.targets_of(batch)
        given = unreduced(outputs, taken)
        parts = _parts(given) if isinstance(given, (Mapping, tuple, list)) else {"": given}
        names = [name for name in _TOTALS if name in parts] or [*parts]
        if len(names) > 1:
            if self._trained is None:  # which parts have a gradient is not to be seen without one
                with torch.enable_grad():
                    parts_again = _parts(unreduced(map_batch(outputs, _with_gradient), taken))
                self._trained = {name for name, part in parts_again.items() if getattr(part, "requires_grad", False)}
            names = [name for name in names if name in self._trained] or names
        counter, _, is_certain = self._counter_of(self._loss_fn)
        kind = ElementsOfRows(
            self.batches.rows(batch),
            dim_of_rows(self.batches, batch, taken),
            is_sum=counter is count_nothing or (is_certain and counter is count_rows_of),
            ignored=ignored_by(self._loss_fn),
        )
        return functools.reduce(torch.add, (kind.losses(parts[name], taken, name) for name in names))

    def check_row_losses(self, model: Any) -> None:
        """Raise where `row_losses` would, as far as that can be said without running anything."""
        if type(self).row_losses is Objective.row_losses:
            self._unreduced(model)

    def _unreduced(self, model: Any) -> Callable[..., Any]:
        """Return the loss function, or the model's own, without its reduction."""
        if type(self).given is not Objective.given and type(self).row_losses is Objective.row_losses:
            raise ArgumentError(
                f"{self.name_of_loss(model)} gives one loss for all rows, so that of each row is not known: override "
                f"{type(self).__name__}.row_losses, or give Objective(loss_fn, inputs=..., targets=...)"
            )
        own = getattr(model, "loss", None) if self._loss_fn is None else self._loss_fn
        unreduced = with_reduction(own, "none") if callable(own) else None
        if unreduced is None:
            raise ArgumentTypeError(
                f"{self.name_of_loss(model)} takes no `reduction`, so it gives no loss for each row: let it take "
                "reduction='mean' and return a tensor of shape (n,) for 'none', or override Objective.row_losses"
            )
        return unreduced

    def inputs_of(self, batch: Any) -> Any:
        """Return what the model gets of a batch."""
        return _items_of(batch, self.inputs)

    def targets_of(self, batch: Any) -> Any:
        """Return what the loss function gets of a batch."""
        return _items_of(batch, self.targets)

    def scalar(self, given: Any) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return what a loss function returned as one scalar, the mean if it is a `Loss`, and its parts by name."""
        if isinstance(given, torch.Tensor):
            return (given if not given.dim() else check_scalar(given, "the loss")), {}
        if isinstance(given, Loss):
            self._latest = (given.count,)
            return given.mean, given.means
        return self._total_of(given)

    def counted(self, given: Any, outputs: Any, batch: Any, loss_fn: Any = None) -> Loss:
        """Return what a loss function returned as a `Loss`.

        Args:
            loss_fn: what returned it, if not the loss function of training.
        """
        if isinstance(given, Loss):
            return given
        mean, parts = self.scalar(given)
        loss_fn = self._loss_fn if loss_fn is None else loss_fn
        count = self._counted_by(outputs, batch, loss_fn)
        if count is None:
            return Loss(mean, None, parts)
        if isinstance(count, torch.Tensor) and count.device.type == "cpu":
            count = count.item()  # its value is there: nothing waits
        if not isinstance(count, torch.Tensor) and not count:  # NaN, as torch says; its gradient may be NaN too
            if self.is_certain(loss_fn):  # its sum has a gradient, and the term of smoothed targets
                return Loss(with_reduction(loss_fn, "sum")(outputs, self.targets_of(batch)), 0)  # type: ignore[misc]
            graph = next((leaf.sum() for leaf in leaves_of(outputs) if getattr(leaf, "requires_grad", False)), mean)
            return Loss(as_nothing(graph), 0, {name: as_nothing(part) for name, part in parts.items()})
        return Loss(weighted(mean, count), count, {name: weighted(part, count) for name, part in parts.items()})

    def count_of(self, outputs: Any, batch: Any) -> Count:
        """Return what the loss of the current batch is divided by, None for a sum.

        Where losses are given as `Loss`, it is the count of the latest that `scalar` has seen.
        """
        return self._counted_by(outputs, batch, self._loss_fn) if self._latest is None else self._latest[0]

    def _counted_by(self, outputs: Any, batch: Any, loss_fn: Any) -> Count:
        """Return what a scalar that a loss function returned is divided by in a batch, or a part of it."""
        counter, needs_targets, _ = self._counter_of(loss_fn)
        return counter(outputs, self.targets_of(batch) if needs_targets else None, batch, self.batches)

    def is_certain(self, loss_fn: Any = None) -> bool:
        """Is the loss one of torch's that add up for any outputs and targets, so that nothing has to be measured?"""
        return self._counter_of(self._loss_fn if loss_fn is None else loss_fn)[2]

    def knows_targets(self) -> bool:
        """Is it known what metrics get? Not where the model has its own loss, and nothing else was said."""
        own = type(self).for_metrics is not Objective.for_metrics
        return own or self._loss_fn is not None or self.targets != 1

    def name_of_loss(self, model: Any) -> str:
        """Return the name of what computes the loss, for messages."""
        if type(self).loss is not Objective.loss:
            return f"{type(self).__name__}.loss"
        if self._loss_fn is None:
            return f"{type(model).__name__}.loss"
        base = base_loss(self._loss_fn)
        return str(getattr(base, "__name__", type(base).__name__))

    def settings(self) -> dict[str, Any]:
        """Return what was said besides the loss function."""
        defaults = {"inputs": 0, "targets": 1, "count": None, "eval_loss_fn": None, "check": True}
        return {name: getattr(self, name) for name, value in defaults.items() if getattr(self, name) != value}

    def settle_parts(self) -> None:
        """The epoch has ended: raise if a part of the loss was the sum of the others in all of its few batches."""
        if 0 < self._seen < _FIRST:
            self._refuse_suspects(self._seen)

    def _counter_of(self, loss_fn: Any) -> tuple[Counter, bool, bool]:
        """Return what counts a scalar of a loss function, whether it looks at targets, and whether that is certain."""
        known = self._counters.get(id(loss_fn))
        if known is None or known[0] is not loss_fn:  # asking a loss for its settings is slow
            of_torch = None if loss_fn is None or self.count is not None else counter_of(loss_fn)
            if isinstance(self.count, str):
                counter = _COUNTS[self.count]
            elif self.count is not None:
                counter = functools.partial(_count_by, self.count)
            else:
                counter = of_torch or count_rows_of
            # Outputs (n, 1) and targets (n,) are broadcast to pairs of rows, so elements are measured.
            is_certain = of_torch not in (None, count_elements) and type(self).loss is Objective.loss
            known = loss_fn, counter, counter not in (count_rows_of, count_nothing), is_certain
            self._counters = {**self._counters, id(loss_fn): known}
        return known[1:]

    def _total_of(self, given: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the total of a loss in parts, and its parts."""
        parts = {name: check_scalar(part, f"part {name!r} of the loss") for name, part in _parts(given).items()}
        if totals := [name for name in _TOTALS if name in parts]:
            return parts.pop(totals[0]), parts
        trained = {name: part for name, part in parts.items() if part.requires_grad}
        if trained:
            self._trained = {*trained}
        else:  # without gradients, those that had one
            trained = {name: part for name, part in parts.items() if name in (self._trained or ())} or parts
        if self._seen < _FIRST and torch.is_grad_enabled():
            self._look_for_total(trained)
        return functools.reduce(torch.add, trained.values()), parts

    def _look_for_total(self, parts: Mapping[str, torch.Tensor]) -> None:
        """Raise if one part was the sum of all others in the first batches: it would count twice."""
        values = {name: part.item() for name, part in parts.items()}
        whole = sum(values.values())
        self._seen += 1
        for name, value in values.items():
            others = whole - value
            if len(values) > 2 and value and abs(others - value) <= 1e-5 * abs(value):
                self._suspects[name] = self._suspects.get(name, 0) + 1
        if self._seen == _FIRST:
            self._refuse_suspects(_FIRST)

    def _refuse_suspects(self, batches: int) -> None:
        self._seen = _FIRST
        for name, count in self._suspects.items():
            if count == batches:
                raise ArgumentError(
                    f"part {name!r} of the loss is the sum of all other parts, so it would count twice: return it "
                    "under the name 'total', as {'total': ..., 'ce': ..., 'kl': ...}, or leave it out"
                )


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
        >>> net = nn.Linear(2, 1)
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


def check_loss_fn(loss_fn: Any, name: str = "loss_fn") -> Any:
    """Return the loss function if it can be called with outputs and targets."""
    if isinstance(loss_fn, type):
        raise ArgumentTypeError(f"{name} is the class {loss_fn.__name__}; write {loss_fn.__name__}()")
    if loss_fn is not None and not callable(loss_fn):
        raise ArgumentTypeError(f"{name} has to be callable as {name}(outputs, targets), not {loss_fn!r}")
    return loss_fn


def check_own_objective(objective: Any, loss_fn: Any) -> None:
    """Raise unless this is an objective, given without a loss function beside it."""
    if not isinstance(objective, Objective):
        raise ArgumentTypeError(f"objective has to be an engine_core.Objective, not {objective!r:.80}")
    if loss_fn is not None:
        raise ArgumentError("give loss_fn or objective: an objective has its own, objective=Objective(loss_fn, ...)")


def check_objective(objective: Objective, model: Any, taker: str = "Trainer") -> None:
    """Raise if neither the objective nor the model has a loss; the message names who takes a `loss_fn`."""
    if objective.loss_fn is not None or type(objective).loss is not Objective.loss:
        return
    own, kind = getattr(model, "loss", None), type(model).__name__
    if isinstance(own, nn.Module):
        raise ArgumentError(
            f"{kind}.loss is a module, not a method loss(outputs, batch): give {taker}(loss_fn=model.loss)"
        )
    if not callable(own):
        raise ArgumentError(
            f"{kind} has no loss: give {taker}(loss_fn=...), or the model a method loss(outputs, batch), or, if its "
            f"forward computes the loss, {taker}(objective=engine_core.ModelLoss())"
        )


def _check_items(name: str, items: Any) -> Items:
    items = tuple(map(as_number, items)) if isinstance(items, tuple) else as_number(items)
    for item in items if isinstance(items, tuple) else (items,):
        if not isinstance(item, (int, str)) or isinstance(item, bool):
            raise ArgumentTypeError(f"{name}={items!r} has to name items of the batch by index, key or attribute")
    return items  # type: ignore[no-any-return]


def _items_of(batch: Any, items: Items) -> Any:
    if isinstance(items, tuple):
        return tuple(get_item(batch, item) for item in items)
    return batch if items in ("*", "**") else get_item(batch, items)


def _item_of_pair(batch: Any, index: int) -> Any:
    """Return inputs or targets of a batch that is a pair; rows or samples would be taken for them."""
    try:
        if type(batch) is tuple or not (isinstance(batch, torch.Tensor) or are_samples(batch)):
            return batch[index]
    except (LookupError, TypeError) as error:
        raise not_a_pair(batch) from error
    raise not_a_pair(batch)


def call_model(model: Any, items: Items, given: Any) -> Any:
    """Call a model with what it gets of a batch, which are these items of it."""
    if items == "**":
        if not isinstance(given, Mapping):
            raise ArgumentTypeError(f"inputs='**' takes a mapping apart, and this batch is a {type(given).__name__}")
        return model(**given)
    return model(*given) if isinstance(items, tuple) or items == "*" else model(given)


def _count_by(count: Callable[[Any, Any], Any], outputs: Any, targets: Any, _: Any, __: Batches) -> Count:
    found = count(outputs, targets)
    if isinstance(found, torch.Tensor) and found.dim() == 0:
        return found.detach()
    if isinstance(found, bool) or not isinstance(found, Real):
        raise ArgumentError(f"count(outputs, targets) returned {found!r:.80}, not a number or a scalar tensor")
    return found  # type: ignore[return-value]  # NumPy's are numbers too


def _parts(loss: Any) -> dict[str, Any]:
    if isinstance(loss, Mapping):
        parts = {str(name): part for name, part in loss.items()}
    elif isinstance(loss, (tuple, list)):
        parts = {str(index): part for index, part in enumerate(loss)}
    else:
        raise ArgumentTypeError(f"the loss is {loss!r:.80} ({type(loss).__name__}); it has to be a scalar tensor")
    if not parts:
        raise ArgumentError(f"the loss is an empty {type(loss).__name__}; it needs at least one scalar tensor")
    if parts.keys() >= {*_TOTALS}:
        raise ArgumentError("the loss has both a 'total' and a 'loss': name its total once, and the parts otherwise")
    return parts


def _with_gradient(leaf: Any) -> Any:
    is_dense = isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())
    return leaf.detach().requires_grad_() if is_dense else leaf
