"""A whole run as what a checkpoint holds, and back. Knows the run's parts, and no folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..algorithm import unique_names
from ..checkpoint.files import Content
from ..checkpoint.tree import Tensors, flatten, restore
from ..errors import CheckpointError, add_note
from ..randomness import GlobalGenerators
from ..time import Timestamp
from .describing import describe_run
from .weights import load_weights

if TYPE_CHECKING:
    from .run import Run

__all__ = ["Snapshot", "put_back", "resume_feed", "take_snapshot"]


class Snapshot(NamedTuple):
    """A copy of a run at one moment, on the CPU: nothing that trains on changes it."""

    at: Timestamp
    content: Content


def take_snapshot(run: Run) -> Snapshot:
    """Return all that the rest of the run depends on, as it is between two batches.

    Raises:
        CheckpointError: for a state that a checkpoint can't hold, with whose it is.
    """
    run.readings.flush()
    model: Any = run.state.model
    weights: Tensors = {}
    extra: dict[str, Any] = {}
    for name, value in model.state_dict().items():
        (weights if isinstance(value, torch.Tensor) else extra)[name] = value
    tensors: Tensors = {}
    state = {name: flatten(part, name, tensors) for name, part in {**_parts(run), "model": extra}.items()}
    content = Content(_copies(weights), state, _copies(tensors), describe_run(run.engine))
    return Snapshot(run.state.timestamp, content)


def put_back(run: Run, content: Content, *, strict: bool) -> None:
    """Let a run go on where the saved one stood; the global generators last.

    Raises:
        CheckpointError: if the content is not of such a run, with the part that differs.
    """
    saved = restore(content.state, content.tensors)
    state = run.state
    try:
        load_weights(run.state.model, {**content.model, **saved["model"]}, strict=strict)
        _load_each("optimizers", state.optimizers, saved["optimizers"])
        for optimizer in state.optimizers:
            optimizer.__dict__["_opt_called"] = True  # or a scheduler warns that it steps before the optimizer
        _load_each("schedulers", state.schedulers, saved["schedulers"])
        _load_scaler(run, saved["scaler"])
        state.timestamp = Timestamp(**saved["clock"])
        state.metrics = dict(saved["metrics"])
        run.evaluated_at, run.awaited = saved["evaluated_at"], saved["awaited"]
        run.readings.was_finite = saved["was_finite"]
        _load_named("algorithm", _algorithms(run), saved["algorithms"])
        _load_named("callback", _listeners(run), saved["listeners"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"the state in the checkpoint is none of a run: {error!r}") from error


def resume_feed(run: Run, content: Content) -> None:
    """Go on in the middle of the epoch, if the run was saved there, and let the global generators go on."""
    saved = restore({name: content.state[name] for name in ("feed", "generators")}, content.tensors)
    if saved["feed"] is not None:
        run.batches = run.feed.resume(saved["feed"])
    GlobalGenerators.of_state(saved["generators"], run.device).restore()


def _parts(run: Run) -> dict[str, Any]:
    state = run.state
    scaler = run.precision.scaler
    return {
        "clock": state.timestamp._asdict(),
        "metrics": dict(state.metrics),
        "evaluated_at": run.evaluated_at,
        "awaited": run.awaited,
        "was_finite": run.readings.was_finite,
        "feed": run.feed.position() if run.batches is not None else None,
        "generators": GlobalGenerators.capture(run.device).to_state(),
        "optimizers": [optimizer.state_dict() for optimizer in state.optimizers],
        "schedulers": [scheduler.state_dict() for scheduler in state.schedulers],
        "scaler": None if scaler is None else scaler.state_dict(),
        "algorithms": _states(_algorithms(run), "algorithm"),
        "listeners": _states(_listeners(run), "callback"),
    }


def _algorithms(run: Run) -> dict[str, Any]:
    members, _ = run.engine.lineup
    return {member.name: member.algorithm for member in members}


def _listeners(run: Run) -> dict[str, Any]:
    listeners = [*run.state.callbacks, *run.engine.logger.destinations]
    return dict(zip(unique_names(listeners), listeners, strict=True))


def _states(owners: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the states by name of those that have any."""
    states: dict[str, Any] = {}
    for name, owner in owners.items():
        own_state = getattr(owner, "state_dict", dict)
        try:
            states[name] = own_state()
        except BaseException as error:
            add_note(error, f"raised by state_dict of {kind} {name}, for a checkpoint")
            raise
    return {name: state for name, state in states.items() if state}


def _copies(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def _load_each(what: str, owners: Iterable[Any], states: list[Any]) -> None:
    owners = list(owners)
    if len(owners) != len(states):
        raise CheckpointError(f"the checkpoint has {len(states)} {what}, and this run {len(owners)}")
    for place, (owner, state) in enumerate(zip(owners, states, strict=True)):
        _load(f"{what}[{place}], a {type(owner).__name__},", owner.load_state_dict, state)


def _load_scaler(run: Run, saved: Any) -> None:
    scaler = run.precision.scaler
    if (scaler is None) != (saved is None):
        one, other = ("has", "none") if saved is not None else ("has none", "one")
        raise CheckpointError(
            f"the checkpoint {one} a loss scaler and this run {other}: set the precision of the saved run"
        )
    if scaler is not None:
        scaler.load_state_dict(saved)


def _load_named(kind: str, owners: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    for name, state in states.items():
        if name in owners:
            _load(f"{kind} {name}", owners[name].load_state_dict, state)


def _load(who: str, load: Callable[[Any], Any], state: Any) -> None:
    try:
        load(state)
    except Exception as error:
        raise CheckpointError(f"{who} can't take back its state from the checkpoint: {error}") from error
