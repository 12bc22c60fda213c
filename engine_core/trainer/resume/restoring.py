"""Put a saved run back: the state of each of its parts, the position in the epoch, the generators. Knows no folders."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch

from ...checkpoint import Content, Opened, restore
from ...embed import algorithms_of
from ...errors import CheckpointError, CheckpointWarning
from ...messages import warn
from ...parallel import as_in, kept_as_in
from ...randomness import GlobalGenerators, seed_generators
from ...time import Timestamp
from ..data import own_generators
from ..optimizers import begin_training, pass_for_stepped
from ..session import Session
from .compatibility import check_alike
from .of_ranks import part_of_rank, states_of_rank
from .snapshot import listeners_of, names_in, state_of_loss, weights_of
from .weights import is_by_weights, load_weights


def put_back(session: Session, content: Content | Opened, *, strict: bool) -> None:
    """Restore all of a saved run except the train loader and the global generators."""
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
        _load_optimizers(session, saved["optimizers"])
        for label, scheduler, own in _paired("schedulers", state.schedulers, saved["schedulers"]):
            check_alike(scheduler.state_dict(), own, f"the state of {label}")
            _load(label, scheduler.load_state_dict, own)
    _load_scaler(session, saved["scaler"])
    _load_loss(state.loss_fn, saved["loss"])
    _load_evaluators(state.evaluators, saved["evaluators"])
    state.timestamp = _clock_of(saved["clock"])
    state.metrics = {str(name): float(value) for name, value in saved["metrics"].items()}
    state.results.load(saved.get("results", {}))  # older versions saved none
    session.status.load_state_dict(saved)
    session.readings.load_state_dict(saved)
    algorithms = _states_in(saved, "algorithms", session)
    _load_named(
        "algorithm", algorithms_of(session.engine), {k: own for k, own in algorithms.items() if k not in of_weights}
    )
    _load_named("callback", listeners_of(session), _states_in(saved, "listeners", session))


def _states_in(saved: Mapping[str, Any], kind: str, session: Session) -> dict[str, Any]:
    return states_of_rank(saved.get("ranks", []), session.state.ranks, kind, saved[kind])


def _restored(session: Session, content: Content | Opened) -> Any:
    """Return the saved state, with tensors as this rank holds its own: of a sharded one its part."""
    saved = restore(content.state, content.tensors)
    if not session.state.ranks.is_sharded:
        return saved
    weights = weights_of(session.state.model)
    for optimizer, entry in zip(session.state.optimizers, saved["optimizers"], strict=False):
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        values = entry["state"]["state"]
        entry["state"]["state"] = {k: kept_as_in(v, parameters[k]) for k, v in values.items() if k < len(parameters)}
    saved["algorithms"] = _by_name(saved["algorithms"], weights)
    return _by_name(saved, {})


def _by_name(value: Any, weights: Mapping[str, Any], name: str = "") -> Any:
    """Return a tree in which what has the name and the shape of a weight is sharded as that is, and all is read."""
    if isinstance(value, dict):
        return type(value)({key: _by_name(item, weights, str(key)) for key, item in value.items()})
    if type(value) in (list, tuple):
        return type(value)(_by_name(item, weights) for item in value)
    own = weights.get(name)
    return as_in(value, own if own is not None and getattr(value, "shape", None) == own.shape else None)


def resume_feed(session: Session, content: Content | Opened) -> None:
    """Restore the position in the epoch, if the run was saved within one, and then the global generators."""
    needed = {name: content.state.get(name) for name in ("feed", "generators", "ranks")}
    saved, state = _by_name(restore(needed, content.tensors), {}), session.state
    parts = saved["ranks"] or []
    own = part_of_rank(parts, state.ranks) if state.world_size > 1 else None
    was_local, is_local = any("feed" in part for part in parts), session.feed.is_local
    is_same = was_local == is_local and (own is not None or not is_local)
    if saved["feed"]["in_epoch"] and not is_same:
        now = "gives each rank its own rows" if is_local else "gives the rows of all ranks"
        warn(
            f"the train_dataloader {now}, and that of the saved run gave others: the epoch begins anew",
            CheckpointWarning,
        )
        state.timestamp = state.timestamp._replace(batch_in_epoch=0, sample_in_epoch=0)
    else:
        session.batches = session.feed.resume(own["feed"] if own and is_local and is_same else saved["feed"])
    # Last: to restart an epoch, the feed sets these and draws from them.
    own = saved if state.rank == 0 else own
    if own is None:  # the saved run had another number of ranks
        seed_generators(state.derive_seed(f"rank/{state.timestamp.batch}"))
    else:
        GlobalGenerators.of_state(own["generators"], session.device).restore()


def go_back(session: Session, content: Content) -> None:
    """Roll back to a checkpoint: weights, loss function, states of optimizers, scaler and algorithms.

    Clock, schedules, loader and generators stay as they are, so that training continues on different data.

    Raises:
        CheckpointError: if the content is not of such a run, with the part that differs.
    """
    saved = _restored(session, content)
    optimizers = session.state.optimizers
    scheduled = [[{k: group[k] for k in _SCHEDULED if k in group} for group in o.param_groups] for o in optimizers]
    load_weights(session.state.model, {**content.model, **saved["model"]}, strict=True)
    _load_optimizers(session, saved["optimizers"])
    for optimizer, groups in zip(optimizers, scheduled, strict=True):
        for group, kept in zip(optimizer.param_groups, groups, strict=True):
            group.update(kept)
    _load_scaler(session, saved["scaler"])
    _load_loss(session.state.loss_fn, saved["loss"])
    _load_named("algorithm", algorithms_of(session.engine), _states_in(saved, "algorithms", session))


_SCHEDULED = ("lr", "momentum", "betas", "weight_decay")
"""The entries of an optimizer's groups that schedulers change."""


def _load_loss(loss_fn: Any, saved: Mapping[str, Any]) -> None:
    own = state_of_loss(loss_fn)
    if differing := sorted(own.keys() ^ saved.keys()):
        where = "the checkpoint" if differing[0] in saved else "this run"
        raise CheckpointError(f"the loss functions differ: only that of {where} has {differing[0]!r}")
    if own:
        _load("the loss function", loss_fn.load_state_dict, saved)


def _load_evaluators(evaluators: Mapping[str, Any], saved: Mapping[str, list[torch.Tensor]]) -> None:
    """Restore the loaders' own generators; those beyond the saved number start fresh."""
    for label, states in saved.items():
        own = own_generators(evaluators[label]) if label in evaluators else []
        for generator, state in zip(own, states, strict=False):
            _load(f"the generator of the evaluation loader {label!r}", generator.set_state, state)


def _paired(what: str, owners: Iterable[Any], states: list[Any]) -> list[tuple[str, Any, Any]]:
    """Return each owner's label for errors, the owner, and its state, if the numbers match."""
    owners = list(owners)
    if len(owners) != len(states):
        raise CheckpointError(f"the checkpoint has {len(states)} {what}, and this run has {len(owners)}")
    pairs = enumerate(zip(owners, states, strict=True))
    return [(f"{what}[{place}] ({type(owner).__name__})", owner, state) for place, (owner, state) in pairs]


def _load_optimizers(session: Session, saved: list[Any]) -> None:
    for label, optimizer, entry in _paired("optimizers", session.state.optimizers, saved):
        names = names_in(optimizer, session.state.model)
        if names != entry["parameters"]:
            now, then = ([name for group in groups for name in group] for groups in (names, entry["parameters"]))
            pairs = [(has, had) for has, had in itertools.zip_longest(now, then) if has != had]
            first = f"{pairs[0][0]!r} where it had {pairs[0][1]!r}" if pairs else "the groups differ"
            raise CheckpointError(f"{label} differs from the saved one in its parameters or their order: {first}")
        # With an lr, whose lack would show only at a step, and without the parameters, compared above by name.
        for place, group in enumerate(entry["state"]["param_groups"]):
            check_alike(
                optimizer.param_groups[place], {"lr": "", **group, "params": []}, f"{label} param_groups[{place}]"
            )
        _load(label, optimizer.load_state_dict, entry["state"])
        _keep_dtypes(optimizer, entry["state"]["state"])
        _load(label, partial(_load_point, session.state.model), entry.get("training_point", {}))
        pass_for_stepped(optimizer)


@torch.no_grad()
def _load_point(model: Any, weights: Mapping[str, torch.Tensor]) -> None:
    own = dict(model.named_parameters())
    for name, value in weights.items():
        own[name].copy_(as_in(value, own[name]))


def _keep_dtypes(optimizer: torch.optim.Optimizer, saved: Mapping[Any, Mapping[str, Any]]) -> None:
    """Restore the dtypes of tensors that torch cast to their parameter's dtype when it loaded them."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for place, values in saved.items():
        own = optimizer.state[parameters[place]]
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and value.dtype is not own[name].dtype:
                own[name] = value.to(own[name].device)


def _clock_of(saved: Mapping[str, Any]) -> Timestamp:
    clock = Timestamp(**saved)
    for name, value in clock._asdict().items():
        kinds: Any = (int, float) if name.startswith("elapsed") else int
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value < 2**63:
            raise CheckpointError(f"the clock in the checkpoint has {name}={value!r:.80}")
    return clock


def _load_scaler(session: Session, saved: Any) -> None:
    scaler = session.precision.scaler
    if (scaler is None) != (saved is None):
        one, other = ("a", "none") if saved is not None else ("no", "one")
        raise CheckpointError(
            f"the checkpoint has {one} loss scaler and this run has {other}: set the precision of the saved run"
        )
    if scaler is not None:
        scaler.load_state_dict(saved)


def _load_named(kind: str, owners: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    for name, state in states.items():
        if name in owners:
            _load(f"{kind} {name}", owners[name].load_state_dict, state)


def _load(label: str, load: Callable[[Any], Any], state: Any) -> None:
    try:
        load(state)
    except Exception as error:
        raise CheckpointError(f"{label} can't load its state from the checkpoint: {error}") from error
