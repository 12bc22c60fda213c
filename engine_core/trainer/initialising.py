"""From INIT on: what is made after it, and are all ranks alike?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..callback import is_used_on
from ..changes import changes, leaves
from ..errors import ArgumentError
from ..parallel import shard_state_like, spread_model
from ..randomness import seed_generators
from ..ranks import Ranks
from ..surgery import follow_parameters
from .data import check_dealable
from .optimizers import check_of_loss, check_trained, make_optimizers, make_schedulers
from .resume import describe_run, hyperparameters_of, modes_of, shapes_of
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


def initialise(session: Session, optimizers: Sequence[Any], schedulers: Sequence[Any]) -> None:
    """Run INIT on the given model, then move and spread it, and make what depends on its parameters."""
    state: Any = session.state
    before = _parameters(state.model)
    given = [optimizer for optimizer in optimizers if isinstance(optimizer, torch.optim.Optimizer)]
    check_trained(given, before.values())
    check_of_loss(given, state)
    state.optimizers = list(given)  # surgery updates them, or is refused before it starts
    check_settings(session)
    seed_generators(state.seed)  # the same on all ranks: so are the draws of INIT
    session.seam.init()
    if optimizers and list(map(id, state.optimizers)) != list(map(id, given)):
        raise ArgumentError("optimizers were given to the Trainer, and an algorithm set state.optimizers at INIT")
    after = _parameters(state.model)
    follow_parameters(given, before, after)  # to what was put in by hand; `replace_modules` did so itself
    check_trained(given, after.values())
    for part in (state.model, state.loss_fn, state.objective.eval_loss_fn, *state.metric_objects.values()):
        if callable(getattr(part, "to", None)):
            part.to(session.device)
    check_model(session)
    moved = _parameters(state.model)
    finds_unused = session.engine.find_unused_parameters
    session.wrapping = spread_model(
        state.model, session.parallel, state.ranks, session.device, finds_unused=finds_unused
    )
    _follow_sharded(given, moved, _parameters(state.model))
    state.optimizers = make_optimizers(optimizers, state.model) or list(state.optimizers)
    session.schedulers = make_schedulers(schedulers, state)
    state.schedulers = [schedule.scheduler for schedule in session.schedulers]
    check_training(session)
    session.given_modes, session.given_shapes = modes_of(state), shapes_of(state.model)
    session.engine.logger.log_hyperparameters(hyperparameters_of(session))
    if state.rank:
        seed_generators(state.derive_seed("rank"))


def _follow_sharded(optimizers: Sequence[Any], before: dict[str, Any], after: dict[str, Any]) -> None:
    """Give optimizers the sharded parameters, and of what they keep for the whole ones the same part."""
    for optimizer in optimizers:
        for name, parameter in before.items():
            if after[name] is not parameter and parameter in optimizer.state:
                optimizer.state[after[name]] = shard_state_like(optimizer.state[parameter], after[name])
    follow_parameters(optimizers, before, after)


def _parameters(model: Any) -> dict[str, torch.nn.Parameter]:
    return dict(model.named_parameters(remove_duplicate=False))
