"""The ranks of a run have to be alike: each compares what it has with rank 0's, and all raise the same error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..callback import is_used_on
from ..changes import changes, leaves
from ..errors import ArgumentError
from ..ranks import Ranks
from .data import check_dealable
from .resume import describe_run
from .session import Session

_MOST = 8
"""How many differences are shown."""


def check_settings(session: Session) -> None:
    """Raise on all ranks if they differ in algorithms, their order, versions or the Trainer's settings."""
    if session.state.world_size == 1:
        return
    run = describe_run(session)
    settings = run["settings"] | {
        "device": session.device.type,
        "eval_interval": str(session.eval_interval.length),
        "max_duration": str(session.state.max_duration),
        "parallel": run["parallel"],
        "data": "local" if session.feed.is_local else "global",
        "evaluation loaders": ", ".join(session.state.evaluators),
        "metrics": ", ".join(session.state.metric_objects),
        "callbacks of all ranks": ", ".join(
            type(callback).__name__ for callback in session.state.callbacks if is_used_on(1, callback)
        ),
    }
    described = {section: run[section] for section in ("versions", "algorithms", "order")}
    _check(session.state.ranks, {**described, "Trainer": settings})


def check_model(session: Session) -> None:
    """Raise on all ranks if their models differ in names, classes, shapes, dtypes or what is trained."""
    if session.state.world_size == 1:
        return
    model: Any = session.state.model
    tensors = {
        name: f"{tuple(tensor.shape)} {tensor.dtype}{', trained' if tensor.requires_grad else ''}"
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
    }
    modules = {name: type(module).__name__ for name, module in model.named_modules()}
    _check(session.state.ranks, {"model": {"class": modules.pop("")} | modules, "model's tensor": tensors})


def check_training(session: Session) -> None:
    """Raise on all ranks if they differ in the loss, in optimizers, what these were given, or schedulers."""
    if session.state.world_size == 1:
        return
    training = describe_run(session)["training"]
    _check(session.state.ranks, {"training": training})


def check_loaders(session: Session) -> None:
    """Raise on all ranks if the rows of the train loader can't be dealt to them, or are not the same for all."""
    if session.state.world_size > 1 and not session.feed.is_local:
        check_dealable(session.state.train_dataloader, "train", session.state.ranks)


def _check(ranks: Ranks, own: Mapping[str, Any]) -> None:
    mine = {path: str(value) for path, value in leaves(own)}
    found = [
        f"{path} is {here} on rank {ranks.rank} and {first} on rank 0"
        for path, first, here in changes(ranks.first(mine), mine)
    ]
    told = [line for lines in ranks.each(found) for line in lines]
    if told:
        more = f"\n  and {len(told) - _MOST} more" if len(told) > _MOST else ""
        raise ArgumentError(
            "the ranks of a run have to be alike, and they differ:\n  " + "\n  ".join(told[:_MOST]) + more
        )
