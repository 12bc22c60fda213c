"""What metrics have seen, on one process or several, and what they compute of it. Knows no loop."""

from __future__ import annotations

import copy
import pickle
import sys
import warnings
from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch

from ..batch import move_batch
from ..errors import ArgumentError, ArgumentTypeError
from ..ranks import Ranks
from ..registry import missing_methods
from ..state import State


class Measurement:
    """Metrics over the rows of all ranks, each of which sees those of its own.

    The states of torchmetrics' metrics are brought together by their own reductions, other objects by `merge_state`.

    Args:
        metrics: objects with `update`, `compute` and `reset`, by name.
    """

    def __init__(self, metrics: Mapping[str, Any], ranks: Ranks) -> None:
        self._metrics, self._ranks = metrics, ranks

    def take(self, outputs: Any, targets: Any, state: State) -> None:
        """Take the outputs and targets of State's batch, which is this rank's; a placeholder's count nothing."""
        if not state.is_placeholder:
            for metric in self._metrics.values():
                metric.update(outputs, targets)

    def compute(self, name: str) -> Any:
        """Return what a metric computes from the rows of all ranks, all of which call this.

        Raises:
            ArgumentError: if it can't be said what it has seen.
        """
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
    return {"parts": [_states(part) for part in _parts(metric)]}


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


def _states(part: Any) -> dict[str, Any]:
    return {name: getattr(part, name) for name in ("_to_sync", "_update_count", *part._reductions)}  # noqa: SLF001


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
