"""What metrics see, on one process or several, and what they compute. Knows no loop."""

from __future__ import annotations

import copy
import warnings
import zlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from ..batch import are_samples, count_rows, map_batch, map_rows, move_batch
from ..errors import ArgumentError, ArgumentTypeError, CheckpointError
from ..messages import counted
from ..ranks import Ranks
from ..registry import lacking
from ..state import State

_EXACT = ("dim_zero_sum", "dim_zero_max", "dim_zero_min")
"""How torchmetrics brings together states of several ranks where it does not matter who saw which rows."""


class Measurement:
    """Metrics over the rows of all ranks.

    A metric of torchmetrics whose states are sums, maxima or minima sees this rank's rows, and brings the ranks
    together when it computes. Any other sees, on each rank, the outputs and targets of all ranks in the order of the
    batch; what it holds of torchmetrics then computes from what it saw itself.

    Args:
        metrics: objects with `update`, `compute` and `reset`, by name.
    """

    def __init__(self, metrics: Mapping[str, Any], ranks: Ranks) -> None:
        self._ranks = ranks
        self.of_own = {name: metric for name, metric in metrics.items() if ranks.size == 1 or _adds_itself_up(metric)}
        self.of_all = {name: metric for name, metric in metrics.items() if name not in self.of_own}
        self._pieces: list[tuple[Any, list[Any]]] = []

    def take(self, outputs: Any, targets: Any, state: State) -> None:
        """Take the outputs and targets of State's batch, which is this rank's; a placeholder's count nothing.

        Raises:
            ArgumentError: for what other ranks can't be told.
        """
        if not state.is_placeholder:
            for metric in self.of_own.values():
                metric.update(outputs, targets)
        if self.of_all:
            rows, name = count_rows(state.batch), next(iter(self.of_all))
            given = (outputs, targets)
            whole = map_rows(given, rows, partial(_as_output, rows=rows))[0], map_rows(given, rows, _as_leaf)[1]
            found = ((leaf, part) for part in whole for leaf in ([part] if are_samples(part) else _inside(part)))
            leaves = [_checked(leaf, rows, name, is_alone=leaf is part) for leaf, part in found]
            if state.is_placeholder:
                leaves = [None if leaf is None else leaf[:0] for leaf in leaves]
            self._pieces.append((whole, leaves))

    def meet(self) -> None:
        """Let the other metrics see what all ranks have taken; all ranks call this after the same batches."""
        pieces, self._pieces = self._pieces, []
        if not pieces:
            return
        own = [_joined(parts) for parts in zip(*(leaves for _, leaves in pieces), strict=True)]
        _compare(own, self._ranks)
        lists = iter(self._gathered([leaf for leaf in own if isinstance(leaf, (list, tuple))]))
        tensors = iter([self._ranks.gather(leaf)[0] for leaf in own if isinstance(leaf, torch.Tensor)])

        def of_all(leaf: Any) -> Any:
            if isinstance(leaf, _Items):
                return move_batch(next(lists), leaf.device)
            return None if leaf is None else next(tensors)

        outputs, targets = (map_batch(part, of_all) for part in pieces[0][0])
        for metric in self.of_all.values():
            metric.update(outputs, targets)

    def _gathered(self, own: list[Any]) -> list[Any]:
        """Return the rows of all ranks for lists of this rank's; they travel as objects, since their shapes differ."""
        if not own:
            return own
        try:
            given = self._ranks.each(own)
        except CheckpointError as error:
            raise ArgumentError(_refusal(next(iter(self.of_all)), str(error))) from error
        return [type(rows)(row for of_rank in given for row in of_rank[n]) for n, rows in enumerate(own)]

    def compute(self, name: str) -> Any:
        """Return what a metric computes from the rows of all ranks."""
        if name in self.of_own:
            return self.of_own[name].compute()
        with _Apart(self.of_all[name]):
            return self.of_all[name].compute()

    def together(self) -> _Together:
        """Return a context in which metrics that see this rank's rows have the states of all ranks; all enter it."""
        return _Together([] if self._ranks.size == 1 else [*self.of_own.values()])


class _Together:
    """A context in which metrics of torchmetrics have their states of all ranks."""

    def __init__(self, metrics: list[Any]) -> None:
        self._parts = [part for metric in metrics for part in _of_torchmetrics(metric)]

    def __enter__(self) -> None:
        for part in self._parts:
            part.sync()

    def __exit__(self, *raised: object) -> None:
        for part in self._parts:
            part.unsync(should_unsync=part._is_synced)  # noqa: SLF001  a second time raises


class _Apart:
    """A context in which torchmetrics' metrics, as a metric is one or holds them, don't bring ranks together."""

    def __init__(self, metric: Any) -> None:
        self._asked = [(part, part.distributed_available_fn) for part in _of_torchmetrics(metric)]

    def __enter__(self) -> None:
        for part, _ in self._asked:
            part.distributed_available_fn = _is_not

    def __exit__(self, *raised: object) -> None:
        for part, asked in self._asked:
            part.distributed_available_fn = asked


def _is_not() -> bool:
    return False


def _of_torchmetrics(metric: Any) -> list[Any]:
    """Return torchmetrics' metrics among a metric, its modules and what it has in its attributes."""
    found = dict[int, Any]()
    for part in (metric, *getattr(metric, "__dict__", {}).values()):
        modules = part.modules() if isinstance(part, torch.nn.Module) else ()
        found |= {id(module): module for module in modules if hasattr(module, "sync_context")}
    return [*found.values()]


def _adds_itself_up(metric: Any) -> bool:
    """Does a metric of torchmetrics, or a collection of them, compute the same however the rows are dealt?"""
    if not hasattr(metric, "sync_context") and type(metric).__module__.partition(".")[0] != "torchmetrics":
        return False
    states = [
        isinstance(getattr(part, name), torch.Tensor) and getattr(reduce, "__name__", None) in _EXACT
        for part in _of_torchmetrics(metric)
        for name, reduce in getattr(part, "_reductions", {}).items()
    ]
    return bool(states) and all(states)


class _Items:
    """Rows that are not in one tensor, such as the boxes of each image; for `map_batch` a leaf."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    @property
    def device(self) -> torch.device:
        """That of the first tensor."""
        tensors = (leaf for leaf in _inside(self.rows) if isinstance(leaf, torch.Tensor))
        return next((tensor.device for tensor in tensors), torch.device("cpu"))


def _as_leaf(rows: Any) -> Any:
    """Return a list of a batch's rows as one leaf; a tuple of tensors is several outputs."""
    is_list = isinstance(rows, list) or (isinstance(rows, tuple) and not isinstance(rows[0], torch.Tensor))
    return _Items(rows) if is_list else rows


def _as_output(part: Any, rows: int) -> Any:
    """Return as several outputs a tuple that holds tensors with a row for each example; targets make such of samples.

    A list stays one of rows, since two images may have two boxes each.
    """
    leaves = [leaf for leaf in _inside(part) if leaf is not None]
    have_rows = all(isinstance(leaf, torch.Tensor) and leaf.shape[:1] == (rows,) for leaf in leaves)
    return part if isinstance(part, tuple) and have_rows else _as_leaf(part)


def _inside(value: Any) -> list[Any]:
    """Return what the containers of a value hold, in order."""
    found: list[Any] = []

    def keep(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    map_batch(value, keep)
    return found


def _checked(leaf: Any, rows: int, name: str, *, is_alone: bool) -> Any:
    """Return a list, or a tensor with a row for each example, or several in a row if alone; None is left as it is."""
    if leaf is None:
        return None
    if isinstance(leaf, _Items):
        return leaf.rows
    if not isinstance(leaf, torch.Tensor):
        what = f"a {type(leaf).__name__}"
    # In a list or tuple one with other rows may be of one example, as the boxes of an image are.
    elif leaf.shape[:1] == (rows,) or (is_alone and _is_flattened(leaf, rows)):
        return leaf.detach()
    else:
        what = f"a tensor of shape {tuple(leaf.shape)} for {counted(rows, 'row', 'rows')}"
    raise ArgumentError(_refusal(name, f"{what} among them can't be gathered"))


def _is_flattened(tensor: torch.Tensor, rows: int) -> bool:
    """Has a tensor several rows for each example, and not the examples in its second dimension?"""
    return tensor.ndim > 0 and tensor.shape[0] % rows == 0 and tensor.shape[1:2] != (rows,)


def _refusal(name: str, problem: str) -> str:
    return (
        f"metric {name!r} needs the outputs and targets of all ranks, and {problem}: give the model a method "
        "eval_forward(batch) -> (outputs, targets) that returns tensors with a row for each example, lists with a "
        "mapping for each, or tuples and mappings of these, or use a metric of torchmetrics whose states are sums"
    )


def _joined(parts: tuple[Any, ...]) -> Any:
    """Return the rows of microbatches together."""
    if isinstance(parts[0], torch.Tensor):
        return torch.cat(parts)
    return None if parts[0] is None else type(parts[0])(row for part in parts for row in part)


def _compare(leaves: list[Any], ranks: Ranks) -> None:
    """Raise on all ranks unless their tensors differ in the number of rows alone."""
    said = [_described(leaf) for leaf in leaves]
    digests = {digest for (digest,) in ranks.table([zlib.crc32(repr(said).encode())])}
    if len(digests) > 1:
        each = "; ".join(f"rank {rank}: {', '.join(map(str, own))}" for rank, own in enumerate(ranks.each(said)))
        raise ArgumentError(
            f"the metrics need the outputs and targets of all ranks, and their shapes differ ({each}): pad them to one "
            "length, or use a metric of torchmetrics whose states are sums"
        )


def _described(leaf: Any) -> str | None:
    if isinstance(leaf, torch.Tensor):
        return f"{leaf.dtype} ({', '.join(['rows', *map(str, leaf.shape[1:])])})"
    return None if leaf is None else f"{type(leaf).__name__} (rows)"


def look_at_values(metrics: Mapping[str, Any], label: str) -> None:
    """Raise after the first batch, not after the first evaluation, if a metric computes what can't be logged."""
    for name, metric in metrics.items():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                copied = copy.deepcopy(metric)  # since some remember what they have computed
                with _Apart(copied):
                    value = copied.compute()
            except Exception:  # noqa: BLE001  some need more batches: the end of the evaluation tells
                value = 0.0
        as_numbers(f"{label}/{name}", value)


def as_numbers(name: str, value: Any) -> dict[str, float]:
    """Return what a metric computed, a number or a mapping of them, as numbers by name."""
    if isinstance(value, Mapping):
        return {key: number for part, v in value.items() for key, number in as_numbers(f"{name}/{part}", v).items()}
    try:
        return {name: float(value)}
    except (TypeError, ValueError, RuntimeError) as error:
        shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
        raise ArgumentError(
            f"metric {name!r} computed a {type(value).__name__}{shape}; it has to be one number, or a mapping of them"
        ) from error


def check_metrics(metrics: Mapping[str, Any] | None, model: Any, *, has_loss_fn: bool) -> dict[str, Any]:
    """Return the metrics by name, if each has `update`, `compute` and `reset`, and if there are targets."""
    if metrics is not None and not callable(getattr(metrics, "items", None)):
        raise ArgumentTypeError(f"metrics has to map names to objects, as {{'accuracy': ...}}, not {metrics!r}")
    named = {} if metrics is None else dict(metrics.items())
    for name, metric in named.items():
        if isinstance(metric, type):
            raise ArgumentTypeError(f"metric {name!r} is the class {metric.__name__}; write {metric.__name__}(...)")
        if absent := lacking(metric, "update", "compute", "reset"):
            raise ArgumentTypeError(
                f"metric {name!r} ({type(metric).__name__}) has {absent}; "
                "a metric has update(outputs, targets), compute() and reset()"
            )
        if name == "loss":
            raise ArgumentError("a metric can't be called 'loss': '<label>/loss' is the loss function's; rename it")
    if named and not has_loss_fn and hasattr(model, "loss") and not hasattr(model, "eval_forward"):
        raise ArgumentError(
            f"{type(model).__name__} has its own loss, so its metrics need a method "
            "eval_forward(batch) -> (outputs, targets)"
        )
    return named
