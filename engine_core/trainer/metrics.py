"""What metrics see, on one process or several, and what they compute. Knows no loop."""

from __future__ import annotations

import copy
import warnings
import zlib
from collections.abc import Mapping
from typing import Any

import torch

from ..batch import are_samples, count_rows, map_batch
from ..errors import ArgumentError, ArgumentTypeError
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
        self._pieces: list[tuple[Any, list[torch.Tensor | None]]] = []

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
            leaves = [_checked(leaf, rows, name) for leaf in _leaves((outputs, targets))]
            if state.is_placeholder:
                leaves = [None if leaf is None else leaf[:0] for leaf in leaves]
            self._pieces.append(((outputs, targets), leaves))

    def meet(self) -> None:
        """Let the other metrics see what all ranks have taken; all ranks call this after the same batches."""
        pieces, self._pieces = self._pieces, []
        if not pieces:
            return
        own = [
            None if parts[0] is None else torch.cat(parts) for parts in zip(*(part for _, part in pieces), strict=True)
        ]
        _compare(own, self._ranks)
        whole = iter([None if leaf is None else self._ranks.gather(leaf)[0] for leaf in own])
        outputs, targets = map_batch(pieces[0][0], lambda _: next(whole))
        for metric in self.of_all.values():
            metric.update(outputs, targets)

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


def _leaves(value: Any) -> list[Any]:
    """Return what the containers of outputs and targets hold, in order."""
    found: list[Any] = []

    def keep(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    for part in value:
        if are_samples(part):
            found.append(part)
        else:
            map_batch(part, keep)
    return found


def _checked(leaf: Any, rows: int, name: str) -> torch.Tensor | None:
    """Return a tensor with a row for each example, or several in a row; None is left as it is."""
    if leaf is None:
        return None
    if not isinstance(leaf, torch.Tensor):
        what = f"a {type(leaf).__name__}"
    elif leaf.ndim == 0 or leaf.shape[0] % rows or (leaf.ndim > 1 and leaf.shape[0] != rows == leaf.shape[1]):
        what = f"a tensor of shape {tuple(leaf.shape)} for {rows} rows"
    else:
        return leaf.detach()
    raise ArgumentError(
        f"metric {name!r} needs the outputs and targets of all ranks, and {what} among them can't be gathered: give "
        "the model a method eval_forward(batch) -> (outputs, targets) that returns tensors with a row for each example "
        "or tuples, lists and mappings of them, or use a metric of torchmetrics whose states are sums"
    )


def _compare(leaves: list[torch.Tensor | None], ranks: Ranks) -> None:
    """Raise on all ranks unless their tensors differ in the number of rows alone."""
    said = [
        None if leaf is None else f"{leaf.dtype} ({', '.join(['rows', *map(str, leaf.shape[1:])])})" for leaf in leaves
    ]
    digests = {digest for (digest,) in ranks.table([zlib.crc32(repr(said).encode())])}
    if len(digests) > 1:
        each = "; ".join(f"rank {rank}: {', '.join(map(str, own))}" for rank, own in enumerate(ranks.each(said)))
        raise ArgumentError(
            f"the metrics need the outputs and targets of all ranks, and their shapes differ ({each}): pad them to one "
            "length, or use a metric of torchmetrics whose states are sums"
        )


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
