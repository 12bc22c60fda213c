"""From INIT on: surgery, rank 0's weights to all, wrapping or sharding, then optimizers and schedulers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..errors import ArgumentError
from ..parallel import shard_state_like, spread_model
from ..randomness import seed_generators
from ..surgery import follow_parameters
from .alike import check_model, check_settings, check_training
from .optimizers import check_of_loss, check_trained, make_optimizers, make_schedulers
from .resume import hyperparameters_of, modes_of, shapes_of
from .session import Session


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
