"""What is measured: the loss of each step, read and logged, and what metrics see and compute. Knows no loop."""

from __future__ import annotations

import copy
import math
import pickle
import sys
import warnings
from collections.abc import Mapping
from itertools import chain
from typing import Any, NamedTuple

import torch

from ..batch import move_batch
from ..errors import ArgumentError, ArgumentTypeError, NonFiniteLossWarning, add_note
from ..logger import Logger
from ..losses import LateValue
from ..messages import warn
from ..objective import LossMeter
from ..ranks import Ranks
from ..registry import missing_methods
from ..state import State


class Measurement:
    """Metrics over the rows of all ranks, each of which sees those of its own.

    The states of torchmetrics' metrics are brought together by their own reductions, other objects by `merge_state`.
    """

    def __init__(self, metrics: Mapping[str, Any], ranks: Ranks) -> None:
        self._metrics, self._ranks = metrics, ranks

    def take(self, outputs: Any, targets: Any, state: State) -> None:
        """Take the outputs and targets of State's batch, which is this rank's; a placeholder's count nothing."""
        if not state.is_placeholder:
            for metric in self._metrics.values():
                metric.update(outputs, targets)

    def compute(self, name: str) -> Any:
        """Return what a metric computes from the rows of all ranks, all of which call this."""
        metric = self._metrics[name]
        if self._ranks.size == 1:
            return metric.compute()
        own, problem = state_of(metric), "its state_dict() or its attributes are empty"
        try:
            given = self._ranks.each(own)
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            given, problem = [], str(error)
        if not any(given):
            raise ArgumentError(
                f"metric {name!r} ({type(metric).__name__}) can't be sent to other ranks ({problem}): give it "
                "state_dict(), with numbers, strings, tensors, lists and dicts, and load_state_dict(state)"
            )
        if _is_of_torchmetrics(metric):
            try:
                _put(metric, _joined(metric, given))
                return metric.compute()
            finally:
                _put(metric, own)
        whole, *others = [copy.deepcopy(metric) for _ in given]
        for made, seen in zip((whole, *others), given, strict=True):
            load_state(made, seen, "cpu")  # where messages come from
        whole.merge_state(others)
        return _apart(whole).compute()


def state_of(metric: Any) -> dict[str, Any]:
    """Return what a metric has seen: the states of one of torchmetrics, else its `state_dict`, else its attributes."""
    if not _is_of_torchmetrics(metric):
        return dict(metric.state_dict() if _has_own_state(metric) else getattr(metric, "__dict__", {}))
    for part in metric.modules():
        if hasattr(part, "compute_groups"):
            part.items(copy_state=False)  # its metrics get the states that it keeps in one of them
    kept = ("_to_sync", "_update_count")
    return {"parts": [{n: getattr(part, n) for n in (*kept, *part._reductions)} for part in _parts(metric)]}  # noqa: SLF001


def load_state(metric: Any, seen: Mapping[str, Any], device: torch.device | str) -> None:
    """Let a metric have seen what `state_of` returned, with tensors on the device."""
    seen = move_batch(dict(seen), torch.device(device))
    if callable(getattr(metric, "to", None)):
        metric.to(device)
    if _is_of_torchmetrics(metric):
        _put(metric, seen)
    elif _has_own_state(metric):
        metric.load_state_dict(seen)
    else:
        vars(metric).update(seen)


def _has_own_state(metric: Any) -> bool:
    return not missing_methods(metric, "state_dict", "load_state_dict")


def _is_of_torchmetrics(metric: Any) -> bool:
    theirs = sys.modules.get("torchmetrics")
    return theirs is not None and isinstance(metric, (theirs.Metric, theirs.MetricCollection))


def _parts(metric: Any) -> list[Any]:
    """Return torchmetrics' metrics among a metric, its modules and what it has in its attributes."""
    held = (metric, *getattr(metric, "__dict__", {}).values())
    found = {id(module): module for part in held if isinstance(part, torch.nn.Module) for module in part.modules()}
    return [module for module in found.values() if hasattr(module, "sync_context")]


def _apart(metric: Any) -> Any:
    """Return a metric after its torchmetrics were told not to bring ranks together."""
    for part in _parts(metric):
        part._to_sync = False  # noqa: SLF001
    return metric


def _put(metric: Any, seen: Mapping[str, Any]) -> None:
    for part, states in zip(_parts(metric), seen["parts"], strict=True):
        for name, value in {"_computed": None, **move_batch(states, part.device)}.items():
            setattr(part, name, value)


def _joined(metric: Any, given: list[Any]) -> dict[str, Any]:
    """Return the states of all ranks together; torchmetrics' `sync` ends processes where one of them saw nothing."""
    joined = []
    for part, *states in zip(_parts(metric), *(seen["parts"] for seen in given), strict=True):
        seen = [of_rank for of_rank in states if of_rank["_update_count"]]
        whole = {"_to_sync": False, "_update_count": sum(of_rank["_update_count"] for of_rank in seen)}
        for name, reduce in part._reductions.items() if len(seen) > 1 else ():  # noqa: SLF001
            values = [of_rank[name] for of_rank in seen]
            if isinstance(values[0], list):
                whole[name] = [*chain(*values)]
            elif getattr(reduce, "__name__", "") == "dim_zero_cat":
                whole[name] = reduce(values)
            else:
                whole[name] = torch.stack(values) if reduce is None else reduce(torch.stack(values))
        joined.append({**(seen or states)[0], **whole})
    return {"parts": joined}


def check_values(metrics: Mapping[str, Any], label: str) -> None:
    """Raise after the first batch, not after the first evaluation, if a metric computes what can't be logged."""
    for name, metric in metrics.items():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                value = _apart(copy.deepcopy(metric)).compute()  # of a copy: some remember what they have computed
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


def check_metrics(
    metrics: Mapping[str, Any] | None, model: Any, *, knows_targets: bool, ranks: Ranks | None = None
) -> dict[str, Any]:
    """Return the metrics by name, if each has `update`, `compute` and `reset`, and if there are targets."""
    if metrics is not None and not callable(getattr(metrics, "items", None)):
        raise ArgumentTypeError(f"metrics has to map names to objects, as {{'accuracy': ...}}, not {metrics!r}")
    named = {} if metrics is None else dict(metrics.items())
    for name, metric in named.items():
        if isinstance(metric, type):
            raise ArgumentTypeError(f"metric {name!r} is the class {metric.__name__}; write {metric.__name__}(...)")
        if absent := missing_methods(metric, "update", "compute", "reset"):
            raise ArgumentTypeError(
                f"metric {name!r} ({type(metric).__name__}) has {absent}; "
                "a metric has update(outputs, targets), compute() and reset()"
            )
        if name == "loss":
            raise ArgumentError("a metric can't be called 'loss': '<label>/loss' is the loss function's; rename it")
        is_merged = _is_of_torchmetrics(metric) or not missing_methods(metric, "merge_state")
        if ranks is not None and ranks.size > 1 and not is_merged:
            raise ArgumentError(
                f"metric {name!r} ({type(metric).__name__}) sees the rows of one rank, and nothing says how to bring "
                f"{ranks.size} ranks together: make it a torchmetrics.Metric, whose states say that, or give it "
                "merge_state(others), which takes in what the same metrics of other ranks have seen"
            )
    if named and not knows_targets and hasattr(model, "loss") and not hasattr(model, "eval_forward"):
        raise ArgumentError(
            f"{type(model).__name__} has its own loss, so its metrics need a method "
            "eval_forward(batch) -> (outputs, targets)"
        )
    return named


class _Reading(NamedTuple):
    step: int
    epoch: int
    loss: Any
    parts: Mapping[str, Any]
    rates: Mapping[str, float]
    is_skipped: bool
    count: Any
    """By what the loss was divided: a number, what has one in `item()`, or None for a sum."""


class LossReader:
    """Reads losses at once on the CPU and one step late elsewhere, so that no step waits for itself."""

    def __init__(self, state: State, logger: Logger, *, late: bool) -> None:
        self._state = state
        self._logger = logger
        self.is_late = late
        self._held: _Reading | None = None
        self.was_finite = True
        self._meter = LossMeter()

    def take(self, loss: torch.Tensor, parts: Mapping[str, torch.Tensor]) -> None:
        """Take the loss of the batch that the clock counts next."""
        logs = self._logger.destinations
        now = self._state.timestamp
        rates = self._rates() if logs else {}
        count = self._state.count_of_loss() if logs or not self.is_late else 1
        skips = self._state.loop.skip_requested
        reading = _Reading(now.batch, now.epoch, loss, parts if logs else {}, rates, skips, count)
        if self.is_late:
            late_count = LateValue(count) if isinstance(count, torch.Tensor) else count
            late_parts = {name: LateValue(part) for name, part in reading.parts.items()}
            late = reading._replace(loss=LateValue(loss), parts=late_parts, count=late_count)
            reading, self._held = self._held, late  # type: ignore[assignment]
        if reading is not None:
            self._read(reading)

    def flush(self) -> None:
        """Read the loss that is held."""
        held, self._held = self._held, None
        if held is not None:
            self._read(held)

    def end_epoch(self) -> None:
        """Log the mean loss of the epoch, over what counted in the batches that were logged and stepped."""
        self.flush()
        if (mean := self._meter.mean) is not None:
            self._logger.log_metrics({"train/loss_epoch": mean})
        self._meter.restart()

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs; nothing may be held."""
        meter = self._meter
        return {"was_finite": self.was_finite, "epoch_loss": [meter.total, meter.count], "is_sum": meter.is_sum}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; a checkpoint of an earlier version has no mean."""
        self.was_finite = saved["was_finite"] is not False
        self._meter.total, self._meter.count = map(float, saved.get("epoch_loss", (0.0, 0.0)))
        self._meter.is_sum = saved.get("is_sum") is True

    def salvage(self, error: BaseException) -> None:
        """Read the loss that is held although `error` ended training; add a note to it if that fails."""
        try:
            self.flush()
        except Exception as second:  # noqa: BLE001  nothing may replace the first error
            add_note(error, f"the loss of the last batch could not be read: {second}")

    def _read(self, reading: _Reading) -> None:
        value, count = reading.loss.item(), reading.count
        count = count.item() if hasattr(count, "item") else count
        was_finite, self.was_finite = self.was_finite, math.isfinite(value) or count == 0
        if was_finite and not self.was_finite and not reading.is_skipped:  # the callback that skips it says so
            warn(
                f"the training loss is {value} at batch {reading.step} (epoch {reading.epoch}); training continues. "
                "To skip such a batch, stop or roll back instead: callbacks=[('loss_guard', {'policy': 'skip'})]",
                NonFiniteLossWarning,
            )
        if self._logger.destinations:
            parts = {f"train/loss/{name}": part.item() for name, part in reading.parts.items()}
            self._logger.log_metrics({"train/loss": value, **parts, **reading.rates}, reading.step)
            if not reading.is_skipped:
                self._meter.add(value, count)

    def _rates(self) -> dict[str, float]:
        groups = [group for optimizer in self._state.optimizers for group in optimizer.param_groups]
        return {f"train/lr/{group.get('name', index)}": float(group["lr"]) for index, group in enumerate(groups)}
