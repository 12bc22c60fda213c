"""Convert a whole run to checkpoint content. Knows the run's parts, and no folders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...algorithm import unique_names
from ...checkpoint import Content, Piece, Share, Snapshot, Tensors, check_tensor, flatten
from ...embed import algorithms_of, state_of, states_of
from ...parallel import gathered, in_pieces, is_sharded
from ...randomness import GlobalGenerators
from ..averages import find_average, place_of_average
from ..data import of_loader
from ..optimizers import at_evaluation, has_two_points
from ..session import Session
from .manifest import describe_run
from .modes import modes_of
from .of_ranks import gather_parts


def take_snapshot(session: Session, *, whole: bool = False) -> Snapshot:
    """Return everything that the rest of the run depends on, between two batches.

    Args:
        whole: gather sharded tensors on each rank, instead of copying its pieces of them.

    Raises:
        CheckpointError: for a state that a checkpoint can't hold, with its path.
    """
    session.readings.flush()  # first: it logs, and the destinations' states have to contain that
    model: Any = session.state.model
    extra = {name: value for name, value in model.state_dict().items() if not isinstance(value, torch.Tensor)}
    parts = _of_rank({**_parts(session), "model": extra}, session, whole=whole)
    tensors: dict[str, torch.Tensor | Piece] = {}
    state = {name: flatten(part, name, tensors) for name, part in parts.items()}
    manifest = describe_run(session)
    if (average := find_average(session.engine)) is not None:
        manifest["average"] = place_of_average(average, state["algorithms"])
    copied = _copies(tensors)
    with at_evaluation(session.state.optimizers):  # whoever reads the weights alone gets those; see `training_point`
        weights = _of_rank(weights_of(model), session, whole=whole)
        for name, value in weights.items():
            check_tensor(value.tensor if isinstance(value, Piece) else value, f"model.{name}")
        weights = _copies(weights)
    kind: Any = Share if session.state.ranks.is_sharded and not whole else Content
    return Snapshot(session.state.timestamp, kind(weights, state, copied, manifest))


def _of_rank(tree: dict[str, Any], session: Session, *, whole: bool) -> dict[str, Any]:
    """Return what this rank saves of a tree: its pieces of sharded tensors, or all of them."""
    return in_pieces(tree, gathered if whole else None) if session.state.ranks.is_sharded else tree


def weights_of(model: Any) -> dict[str, Any]:
    """Return a model's weights and buffers, by their names in its state_dict."""
    return {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}


def copy_weights(model: Any) -> Tensors:
    """Return copies on the CPU of a model's weights and buffers, by their names in its state_dict.

    Sharded ones are not copied: they are gathered when they are written.

    Raises:
        CheckpointError: for a tensor that a file can't hold, with its name.
    """
    weights = weights_of(model)
    for name, value in weights.items():
        if not is_sharded(value):
            check_tensor(value, f"model.{name}")
    return {name: value if is_sharded(value) else _copies({name: value})[name] for name, value in weights.items()}


def _parts(session: Session) -> dict[str, Any]:
    state = session.state
    scaler = session.precision.scaler
    own = {
        "algorithms": states_of(algorithms_of(session.engine), "algorithm"),
        "listeners": _states_of_listeners(session),
    }
    generators = GlobalGenerators.capture(session.device).to_state()
    position = session.feed.position(in_epoch=session.batches is not None)
    status = session.status.state_dict()
    evaluators = {label: of_loader(loader) for label, loader in state.evaluators.items()}
    # A dataset with a generator of its own draws for the rows of its rank.
    of_rank = {"feed": position} if session.feed.is_local else {"own": position["own"]}
    of_rank |= {"generators": generators, "evaluation": status["evaluation"], "evaluators": evaluators}
    of_ranks = gather_parts(state.ranks, own, **of_rank)
    return {
        "clock": state.timestamp._asdict(),
        "metrics": dict(state.metrics),
        "results": state.results.to_json(),
        **status,
        **session.readings.state_dict(),
        "feed": position,
        "generators": generators,
        "optimizers": [
            {
                "parameters": names_in(optimizer, state.model),
                "state": optimizer.state_dict(),
                **training_point(optimizer, state.model),
            }
            for optimizer in state.optimizers
        ],
        "schedulers": [scheduler.state_dict() for scheduler in state.schedulers],
        "scaler": None if scaler is None else scaler.state_dict(),
        "loss": state_of_loss(state.loss_fn),
        "modes": {"given": session.given_modes, "now": modes_of(state)},
        "evaluators": evaluators,
        **own,
        **({"ranks": of_ranks} if of_ranks else {}),
    }


def state_of_loss(loss_fn: Any) -> dict[str, Any]:
    """Return the parameters and buffers of a loss function that is a module, else nothing."""
    return dict(loss_fn.state_dict()) if isinstance(loss_fn, torch.nn.Module) else {}


def listeners_of(session: Session) -> dict[str, Any]:
    """Return callbacks and logger destinations by their unique names."""
    listeners = [*session.state.callbacks, *session.engine.logger.destinations]
    return dict(zip(unique_names(listeners), listeners, strict=True))


def _states_of_listeners(session: Session) -> dict[str, Any]:
    """Return the non-empty states by name, without those of logger destinations that raise."""
    states, isolation = dict[str, Any](), session.engine.logger.isolation
    for name, listener in listeners_of(session).items():
        try:
            states[name] = state_of(listener, name, "callback")
        except Exception as error:
            if not _is_isolated(listener, session):
                raise
            isolation.report(listener, "state_dict", error)
        else:
            isolation.recover(listener, "state_dict")
    return {name: state for name, state in states.items() if state}


def _is_isolated(listener: object, session: Session) -> bool:
    """Is this a logger destination and not also a callback?"""
    destinations, callbacks = session.engine.logger.destinations, session.state.callbacks
    return any(listener is d for d in destinations) and not any(listener is c for c in callbacks)


def _copies(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copy(value) for name, value in tensors.items()}


def _copy(value: torch.Tensor | Piece) -> torch.Tensor | Piece:
    if isinstance(value, Piece):
        return value._replace(tensor=value.tensor.to("cpu", copy=True))
    return value.detach().to("cpu", copy=True)


def training_point(optimizer: torch.optim.Optimizer, model: Any) -> dict[str, Any]:
    """Return the model's weights where an optimizer with two points has them, as it continues from there."""
    if not has_two_points(optimizer):
        return {}
    own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return {"training_point": {name: p for name, p in model.named_parameters() if id(p) in own}}


def names_in(optimizer: torch.optim.Optimizer, model: Any) -> list[list[str]]:
    """Return the names of the parameters in each group, empty for those that are not the model's."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [[names.get(id(parameter), "") for parameter in group["params"]] for group in optimizer.param_groups]
