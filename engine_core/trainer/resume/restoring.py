"""Put a saved run back: the state of each of its parts, the position in the epoch, the generators. Knows no folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ... import embed
from ...checkpoint import Checkpoint, restore
from ...embed import algorithms_of, load_part, put_states_back
from ...errors import CheckpointError, CheckpointWarning
from ...messages import warn
from ...parallel import shard_like
from ...randomness import GlobalGenerators, load_generator, seed_generators
from ..data import keeps_position, own_generators, restart_workers
from ..optimizers import begin_training
from ..session import Session
from .modes import put_modes_back
from .optimizing import load_optimizers, reload_optimizers
from .snapshot import part_of_rank, state_of_loss, states_of_rank, weights_of
from .weights import is_by_weights, load_weights


def put_back(session: Session, content: Checkpoint, *, strict: bool) -> Callable[[], None]:
    """Restore all of a saved run except the train loader and the global generators.

    Return what loads the parts of optimizers and schedulers that the run has only after AFTER_LOAD.
    """
    saved, state = _restored(session, content), session.state
    of_weights = [
        name for name in algorithms_of(session.engine) if is_by_weights(saved["algorithms"].get(name), content.model)
    ]
    fresh = ", ".join(["optimizers", "schedulers", *of_weights])
    left_too = f"the states of {fresh} were not loaded either and start fresh"
    begin_training(state.optimizers)  # before they are told what training they continue
    # First: if not all weights fit, what was learned about the former ones is left out too.
    if load_weights(state.model, {**content.model, **saved["model"]}, strict=strict, left_too=left_too):
        of_weights = []
        load_rest = load_optimizers(session, saved, content)
    else:
        load_rest = _nothing
    put_modes_back(state, saved.get("modes", {}).get("now", {}))  # older versions saved none
    session.left_in_eval = "modes" in saved and not saved.get("has_ended") and not session.is_training()
    _load_scaler(session, saved["scaler"])
    _load_loss(state.loss_fn, saved["loss"])
    own = {**saved, **(part_of_rank(saved.get("ranks") or [], state.ranks) or {})}
    _load_evaluators(state.evaluators, own["evaluators"])
    state.metrics = {str(name): float(value) for name, value in saved["metrics"].items()}
    state.results.load(saved.get("results", {}))  # older versions saved none
    session.status.load_state_dict({**saved, "evaluation": own.get("evaluation")})
    session.readings.load_state_dict(saved)
    algorithms = _states_in(saved, "algorithms", session)
    algorithms = {name: own for name, own in algorithms.items() if name not in of_weights}
    callbacks = _states_in(saved, "listeners", session)
    embed.put_back(session.engine, {"clock": saved["clock"], "algorithms": algorithms, "callbacks": callbacks})
    return load_rest


def _nothing() -> None:
    pass


def _states_in(saved: Mapping[str, Any], kind: str, session: Session) -> dict[str, Any]:
    return states_of_rank(saved.get("ranks", []), session.state.ranks, kind, saved[kind])


def _restored(session: Session, content: Checkpoint) -> Any:
    """Return the saved state, with tensors as this rank holds its own: of a sharded one its part."""
    saved = restore({**content.state, "average": {}}, content.tensors)  # which is in the algorithm's state too
    if not session.state.ranks.is_sharded:
        return saved
    weights = weights_of(session.state.model)
    saved["algorithms"] = _by_name(saved["algorithms"], weights)
    optimizers = saved.pop("optimizers")  # each is read when it has the parameters that were saved
    return {**_by_name(saved, {}), "optimizers": optimizers}


def _by_name(value: Any, weights: Mapping[str, Any], name: str = "") -> Any:
    """Return a tree in which what has the name and the shape of a weight is sharded as that is, and all is read."""
    if isinstance(value, dict):
        return type(value)({key: _by_name(item, weights, str(key)) for key, item in value.items()})
    if type(value) in (list, tuple):
        return type(value)(_by_name(item, weights) for item in value)
    own = weights.get(name)
    return shard_like(value, own if own is not None and getattr(value, "shape", None) == own.shape else None)


def resume_feed(session: Session, content: Checkpoint) -> None:
    """Restore the position in the epoch, if the run was saved within one, and then the global generators."""
    needed = {name: content.state.get(name) for name in ("feed", "generators", "ranks")}
    saved, state = _by_name(restore(needed, content.tensors), {}), session.state
    parts = saved["ranks"] or []
    own = part_of_rank(parts, state.ranks) if state.world_size > 1 else None
    was_local, is_local = any("feed" in part for part in parts), session.feed.is_local
    is_alone = state.world_size == 1 and not parts  # and was: it has the rows of all, whoever deals them
    is_same = is_alone or (was_local == is_local and (own is not None or not is_local))
    if saved["feed"]["in_epoch"] and not is_same:
        now = "gives each rank its own rows" if is_local else "gives the rows of all ranks"
        warn(
            f"the train_dataloader {now}, and that of the saved run gave others: the epoch begins anew",
            CheckpointWarning,
        )
        state.timestamp = state.timestamp._replace(batch_in_epoch=0, sample_in_epoch=0)
    else:
        position = own["feed"] if own and is_local and is_same else saved["feed"]
        if own and "own" in own:
            position = {**position, "own": own["own"]}
        session.batches = session.feed.resume(position)
    # Last: to restart an epoch, the feed sets these and draws from them.
    own = saved if state.rank == 0 else own
    if own is None:  # the saved run had another number of ranks
        seed_generators(state.derive_seed(f"rank/{state.timestamp.batch}"))
    else:
        GlobalGenerators.of_state(own["generators"], session.device).restore()


def go_back(session: Session, content: Checkpoint) -> None:
    """Roll back to a checkpoint: weights, loss function, states of optimizers, scaler and algorithms.

    Clock, schedules, loader and generators stay as they are, so that training continues on different data.

    Raises:
        CheckpointError: if the content is not of such a run, with the part that differs.
    """
    saved = _restored(session, content)
    optimizers = session.state.optimizers
    scheduled = [[{k: group[k] for k in _SCHEDULED if k in group} for group in o.param_groups] for o in optimizers]
    load_weights(session.state.model, {**content.model, **saved["model"]}, strict=True)
    reload_optimizers(session, saved["optimizers"], content.model)
    for optimizer, groups in zip(optimizers, scheduled, strict=True):
        for group, kept in zip(optimizer.param_groups, groups, strict=True):
            group.update(kept)
    _load_scaler(session, saved["scaler"])
    _load_loss(session.state.loss_fn, saved["loss"])
    put_states_back(session.engine, _states_in(saved, "algorithms", session))


_SCHEDULED = ("lr", "momentum", "betas", "weight_decay")
"""The entries of an optimizer's groups that schedulers change."""


def _load_loss(loss_fn: Any, saved: Mapping[str, Any]) -> None:
    own = state_of_loss(loss_fn)
    if differing := sorted(own.keys() ^ saved.keys()):
        where = "the checkpoint" if differing[0] in saved else "this run"
        raise CheckpointError(f"the loss functions differ: only that of {where} has {differing[0]!r}")
    if own:
        load_part("the loss function", loss_fn.load_state_dict, saved)


def _load_evaluators(evaluators: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Restore the loaders' own generators, and start workers that persist; generators beyond the saved start fresh."""
    for label, given in saved.items():
        loader = evaluators.get(label)
        position = given if isinstance(given, dict) else {"own": given, "persists": False}  # of schema 2
        if not keeps_position(loader):
            restart_workers(loader, persists=position["persists"] is True)  # before: it draws
        for generator, state in zip(own_generators(loader), position["own"], strict=False):
            load_part(f"the generator of the evaluation loader {label!r}", partial(load_generator, generator), state)


def _load_scaler(session: Session, saved: Any) -> None:
    scaler = session.precision.scaler
    if (scaler is None) != (saved is None):
        one, other = ("a", "none") if saved is not None else ("no", "one")
        raise CheckpointError(
            f"the checkpoint has {one} loss scaler and this run has {other}: set the precision of the saved run"
        )
    if scaler is not None:
        scaler.load_state_dict(saved)
