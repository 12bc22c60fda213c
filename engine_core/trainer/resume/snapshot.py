"""A whole run as a checkpoint, with what differs between its ranks saved for each of them. Knows no folders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...checkpoint import Checkpoint, Tensors, TensorSlice, check_tensor, flatten
from ...parallel import gathered, in_slices, is_sharded, mark_of
from ...randomness import GlobalGenerators
from ...ranks import Ranks
from ..averages import find_average
from ..data import of_loader
from ..optimizers import at_evaluation, has_two_points
from ..session import Session
from .manifest import describe_run
from .weights import modes_of, warn_of_shapes


def take_snapshot(session: Session, *, whole: bool = False) -> Checkpoint:
    """Return everything that the rest of the run depends on, between two batches, as copies on the CPU.

    Args:
        whole: gather sharded tensors on each rank, instead of copying its slices of them.

    Raises:
        CheckpointError: for a state that a checkpoint can't hold, with its path.
    """
    session.readings.flush()  # first: it logs, and the destinations' states have to contain that
    model: Any = session.state.model
    extra = {name: value for name, value in model.state_dict().items() if not isinstance(value, torch.Tensor)}
    parts = _of_rank({"model": extra, **_parts(session)}, session, whole=whole)
    manifest = describe_run(session)
    if (average := find_average(session.engine)) is not None:
        manifest["average"] = {"algorithm": average.algorithm, "registered": average.registered}
        own = parts["algorithms"].get(average.algorithm, {}).get("average")
        is_in_state = isinstance(own, Mapping) and own.keys() == average.weights.keys()
        weights = own if is_in_state else _of_rank(dict(average.weights), session, whole=whole)
        # First, so that the algorithm's state names these tensors, which are saved once.
        parts = {"average": {name: it for name, it in weights.items() if hasattr(it, "shape")}, **parts}
    tensors: dict[str, torch.Tensor | TensorSlice] = {}
    state = flatten(parts, "", tensors)
    copied = _copies(tensors)
    with at_evaluation(session.state.optimizers):  # for readers of the weights alone; see `training_point`
        weights = _of_rank(weights_of(model), session, whole=whole)
        for name, value in weights.items():
            check_tensor(value.tensor if isinstance(value, TensorSlice) else value, f"model.{name}")
        weights = _copies(weights)
    warn_of_shapes(session, weights)
    return Checkpoint(weights, state, copied, manifest)


def _of_rank(tree: dict[str, Any], session: Session, *, whole: bool) -> dict[str, Any]:
    """Return what this rank saves of a tree: its slices of sharded tensors, or all of them."""
    return in_slices(tree, gathered if whole else None) if session.state.ranks.is_sharded else tree


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
    return {name: value if is_sharded(value) else _copy(value) for name, value in weights.items()}


def _parts(session: Session) -> dict[str, Any]:
    state = session.state
    scaler = session.precision.scaler
    saved = session.seam.state_dict()
    own = {"algorithms": saved["algorithms"], "listeners": saved["callbacks"]}
    generators = GlobalGenerators.capture(session.device).to_state()
    position = session.feed.position(in_epoch=session.batches is not None)
    status = session.status.state_dict()
    evaluators = {label: of_loader(loader) for label, loader in state.evaluators.items()}
    # A dataset with a generator of its own draws for the rows of its rank.
    of_rank = {"feed": position} if session.feed.is_local else {"own": position["own"]}
    of_rank |= {"generators": generators, "evaluation": status["evaluation"], "evaluators": evaluators}
    of_ranks = gather_parts(state.ranks, own, **of_rank)
    return {
        "clock": saved["clock"],
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


def _copies(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copy(value) for name, value in tensors.items()}


def _copy(value: Any) -> Any:
    if isinstance(value, TensorSlice):
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


def gather_parts(ranks: Ranks, parts: Mapping[str, Mapping[str, Any]], **own: Any) -> list[dict[str, Any]]:
    """Return for each rank its `own` and those entries of states, by kind and name, that differ between ranks."""
    if ranks.size == 1:
        return []
    marks = ranks.each(
        {
            kind: {name: {str(key): mark_of(value) for key, value in state.items()} for name, state in states.items()}
            for kind, states in parts.items()
        }
    )
    differing = {
        kind: {
            name: {key: value for key, value in state.items() if _differs(marks, kind, name, str(key))}
            for name, state in states.items()
        }
        for kind, states in parts.items()
    }
    return ranks.each({**own, **differing})


def part_of_rank(saved: list[Any], ranks: Ranks) -> dict[str, Any] | None:
    """Return a rank's part of what was saved; None for a rank of a run that had another number of them."""
    return saved[ranks.rank] if len(saved) == ranks.size else None


def states_of_rank(saved: list[Any], ranks: Ranks, kind: str, states: Mapping[str, Any]) -> dict[str, Any]:
    """Return the states that a rank resumes: those of all ranks, with its own entries where ranks differ.

    Of a run with another number of ranks, all resume what rank 0 had.
    """
    own = (part_of_rank(saved, ranks) or {}).get(kind, {})
    return {name: {**states.get(name, {}), **own.get(name, {})} for name in {**states, **own}}


def _differs(marks: list[Any], kind: str, name: str, key: str) -> bool:
    """Do the ranks that have this state differ in an entry? A rank may lack a callback, and with it its state."""
    return len({each[kind][name].get(key) for each in marks if name in each[kind]}) > 1
