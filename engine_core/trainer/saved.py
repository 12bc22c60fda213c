"""A whole run as a checkpoint, with what differs between its ranks for each of them, and put back. Knows no folders."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from .. import loop as seam
from ..checkpoint import Checkpoint, Tensors, TensorSlice, check_tensor, flatten, restore
from ..errors import CheckpointError, CheckpointWarning
from ..loop import algorithms_of, load_part, prepare_to_load, put_states_back
from ..messages import warn
from ..parallel import gathered, in_slices, is_sharded, mark_of, shard_like, shard_state_like
from ..randomness import GlobalGenerators, load_generator, seed_generators
from ..ranks import Ranks
from .evaluation import find_average
from .loaders import keeps_position, of_loader, own_generators, restart_workers
from .manifest import describe_run, names_in, other_optimizers
from .optimizers import at_evaluation, begin_training, has_two_points, pass_for_stepped
from .session import Session
from .weights import is_by_weights, load_weights, modes_of, put_modes_back, warn_of_shapes


def take_snapshot(session: Session, *, whole: bool = False) -> Checkpoint:
    """Return all that the rest of the run depends on, as copies on the CPU; `whole`: sharded tensors are gathered."""
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
    copied = {name: _copy(value) for name, value in tensors.items()}
    with at_evaluation(session.state.optimizers):  # for readers of the weights alone; see `_training_point`
        weights = _copied(_of_rank(weights_of(model), session, whole=whole))
    warn_of_shapes(session, weights)
    return Checkpoint(weights, state, copied, manifest)


def _of_rank(tree: dict[str, Any], session: Session, *, whole: bool) -> dict[str, Any]:
    """Return what this rank saves of a tree: its slices of sharded tensors, or all of them."""
    return in_slices(tree, gathered if whole else None) if session.state.ranks.is_sharded else tree


def weights_of(model: Any) -> dict[str, Any]:
    """Return a model's weights and buffers, by their names in its state_dict."""
    return {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}


def copy_weights(model: Any) -> Tensors:
    """Return copies on the CPU of a model's weights and buffers; sharded ones are gathered when they are written."""
    weights = weights_of(model)
    copied = _copied({name: value for name, value in weights.items() if not is_sharded(value)})
    return {name: copied.get(name, value) for name, value in weights.items()}


def _copied(weights: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in weights.items():
        check_tensor(value.tensor if isinstance(value, TensorSlice) else value, f"model.{name}")
    return {name: _copy(value) for name, value in weights.items()}


def _copy(value: Any) -> Any:
    if isinstance(value, TensorSlice):
        return value._replace(tensor=value.tensor.to("cpu", copy=True))
    return value.detach().to("cpu", copy=True)


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
    of_ranks = _gather_parts(state.ranks, own, **of_rank)
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
                **_training_point(optimizer, state.model),
            }
            for optimizer in state.optimizers
        ],
        "schedulers": [scheduler.state_dict() for scheduler in state.schedulers],
        "scaler": None if scaler is None else scaler.state_dict(),
        "loss": _state_of_loss(state.loss_fn),
        "modes": {"given": session.given_modes, "now": modes_of(state)},
        "evaluators": evaluators,
        **own,
        **({"ranks": of_ranks} if of_ranks else {}),
    }


def _state_of_loss(loss_fn: Any) -> dict[str, Any]:
    """Return the parameters and buffers of a loss function that is a module, else nothing."""
    return dict(loss_fn.state_dict()) if isinstance(loss_fn, torch.nn.Module) else {}


def _training_point(optimizer: torch.optim.Optimizer, model: Any) -> dict[str, Any]:
    """Return the model's weights where an optimizer with two points has them, as it continues from there."""
    if not has_two_points(optimizer):
        return {}
    own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return {"training_point": {name: p for name, p in model.named_parameters() if id(p) in own}}


def _gather_parts(ranks: Ranks, parts: Mapping[str, Mapping[str, Any]], **own: Any) -> list[dict[str, Any]]:
    """Return for each rank its `own` and those entries of states, by kind and name, that differ between ranks."""
    if ranks.size == 1:
        return []
    flat = {
        (kind, name, key): value
        for kind, states in parts.items()
        for name, state in states.items()
        for key, value in state.items()
    }
    marks = ranks.each({(kind, name, str(key)): mark_of(value) for (kind, name, key), value in flat.items()})
    there = [{each[:2] for each in of_rank} for of_rank in marks]  # a rank may lack a callback, and with it its state
    differing: dict[str, Any] = {kind: {name: {} for name in states} for kind, states in parts.items()}
    for (kind, name, key), value in flat.items():
        if len({m.get((kind, name, str(key))) for m, has in zip(marks, there, strict=True) if (kind, name) in has}) > 1:
            differing[kind][name][key] = value
    return ranks.each({**own, **differing})


def _part_of_rank(saved: list[Any], ranks: Ranks) -> dict[str, Any] | None:
    """Return a rank's part of what was saved; None for a rank of a run that had another number of them."""
    return saved[ranks.rank] if len(saved) == ranks.size else None


def _states_in(saved: Mapping[str, Any], kind: str, session: Session) -> dict[str, Any]:
    """Return the states that a rank resumes: rank 0's, with its own entries where the same number of ranks differed."""
    states, own = saved[kind], (_part_of_rank(saved.get("ranks", []), session.state.ranks) or {}).get(kind, {})
    return {name: {**states.get(name, {}), **own.get(name, {})} for name in {**states, **own}}


_LARGEST = torch.finfo(torch.float32).max
_HINT = "; a callback that adds parameter groups or optimizers in training has to add them in its after_load too"


def load_optimizers(session: Session, saved: Mapping[str, Any], content: Checkpoint) -> Callable[[], None]:
    """Load what the run has; return what loads the rest after AFTER_LOAD, and raises if then anything differs.

    The groups that the run has come first, so that callbacks find them as saved and may change them.
    """
    state, entries, weights = session.state, saved["optimizers"], content.model
    known = list[tuple[Any, int]]()  # optimizers, with how many groups of each are loaded
    for label, optimizer, entry in _labelled("optimizers", state.optimizers, entries):
        names = names_in(optimizer, state.model)
        if _difference(names, entry["parameters"][: len(names)], state.model, weights) is None:
            _load_groups(session, label, optimizer, entry)
            known.append((optimizer, len(names)))
    has_all = [count for _, count in known] == [len(entry["parameters"]) for entry in entries]
    is_complete = has_all and len(known) == len(state.optimizers)
    is_complete = is_complete and len(state.schedulers) == len(saved["schedulers"])
    if is_complete:
        _load_schedulers(session, saved["schedulers"])

    def load_rest() -> None:
        if is_complete and [id(one) for one, _ in known] == [*map(id, state.optimizers)]:  # none was replaced
            return
        if others := other_optimizers(content.manifest, describe_run(session)):
            raise CheckpointError("; ".join(others))
        for label, optimizer, entry in _paired("optimizers", state.optimizers, entries):
            names = names_in(optimizer, state.model)
            _check_names(label, _difference(names, entry["parameters"], state.model, weights), _HINT)
            first = next((count for one, count in known if one is optimizer), 0)
            if first < len(names):
                _load_groups(session, label, optimizer, entry, first)
        _load_schedulers(session, saved["schedulers"])

    return load_rest


def _check_names(label: str, difference: str | None, hint: str = "") -> None:
    if difference is not None:
        raise CheckpointError(
            f"{label} differs from the saved one in its parameters or their order: {difference}{hint}"
        )


def _load_schedulers(session: Session, saved: list[Any]) -> None:
    for label, scheduler, own in _paired("schedulers", session.state.schedulers, saved):
        check_alike(scheduler.state_dict(), own, f"the state of {label}")
        load_part(label, scheduler.load_state_dict, own)


def _labelled(what: str, owners: Iterable[Any], states: list[Any]) -> list[tuple[str, Any, Any]]:
    """Return the label for errors, the owner and its state, as far as there are both."""
    pairs = enumerate(zip(owners, states, strict=False))
    return [(f"{what}[{place}] ({type(owner).__name__})", owner, state) for place, (owner, state) in pairs]


def _paired(what: str, owners: Sequence[Any], states: list[Any]) -> list[tuple[str, Any, Any]]:
    if len(owners) != len(states):
        hint = _HINT if what == "optimizers" and len(owners) < len(states) else ""
        raise CheckpointError(f"the checkpoint has {len(states)} {what}, and this run has {len(owners)}{hint}")
    return _labelled(what, owners, states)


def _difference(names: Any, saved: Any, model: Any, weights: Mapping[str, Any]) -> str | None:
    """Return the first parameter that differs; a name that was changed where the model loaded its weights does not."""
    if names == saved:
        return None
    own = {name for name, _ in model.named_parameters()}
    now, then = ([name for group in groups for name in group] for groups in (names, saved))
    for has, had in itertools.zip_longest(now, then):
        is_renamed = has and had and had not in own and has not in weights
        if has != had and not is_renamed:
            return f"{has!r} where it had {had!r}"
    return None if [*map(len, names)] == [*map(len, saved)] else "the groups differ"


def _load_groups(session: Session, label: str, optimizer: Any, entry: Any, first: int = 0) -> None:
    """Load the saved groups from `first` on that the optimizer has; others stay as they are."""
    saved, sizes = entry["state"], [len(group["params"]) for group in optimizer.param_groups]
    if session.state.ranks.is_sharded:
        parts = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        own = {k: shard_state_like(v, parts[k]) for k, v in saved["state"].items() if k < len(parts)}
        groups = [{name: shard_like(value, None) for name, value in group.items()} for group in saved["param_groups"]]
        saved = {**saved, "state": own, "param_groups": groups}
    last = min(len(sizes), len(saved["param_groups"]))
    # With an lr, whose lack would show only at a step, and without the parameters, compared before by name.
    for place in range(first, last):
        group = {"lr": "", **saved["param_groups"][place], "params": []}
        check_alike(optimizer.param_groups[place], group, f"{label} param_groups[{place}]")
    if first or not last == len(sizes) == len(saved["param_groups"]):
        own, start, end = optimizer.state_dict(), sum(sizes[:first]), sum(sizes[:last])
        kept = {k: v for k, v in own["state"].items() if not start <= k < end}
        loaded = {k: v for k, v in saved["state"].items() if start <= k < end}
        groups = [
            {**saved["param_groups"][place], "params": group["params"]} if first <= place < last else group
            for place, group in enumerate(own["param_groups"])
        ]
        saved = {**saved, "state": kept | loaded, "param_groups": groups}
    load_part(label, optimizer.load_state_dict, saved)
    _keep_dtypes(optimizer, saved["state"])
    load_part(label, partial(_load_point, session.state.model), entry.get("training_point", {}))
    pass_for_stepped(optimizer)


@torch.no_grad()
def _load_point(model: Any, weights: Mapping[str, torch.Tensor]) -> None:
    own = dict(model.named_parameters())
    for name, value in weights.items():
        own[name].copy_(shard_like(value, own[name]))


def _keep_dtypes(optimizer: torch.optim.Optimizer, saved: Mapping[Any, Mapping[str, Any]]) -> None:
    """Restore the dtypes of tensors that torch cast to their parameter's dtype when it loaded them."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for place, values in saved.items():
        own = optimizer.state[parameters[place]]
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and value.dtype is not own[name].dtype:
                own[name] = value.to(own[name].device)


def check_alike(own: Any, saved: Any, what: str) -> None:
    """Raise unless a saved value, and all that it contains, could replace the run's own; missing entries are fine."""
    if isinstance(own, Mapping) and isinstance(saved, Mapping):
        other = next(iter(own.values()), None) if _counts(own) else None  # a Counter's items are all alike
        for key, value in saved.items():
            check_alike(own.get(key, other), value, f"{what}.{key}")
    elif isinstance(own, (list, tuple)) and isinstance(saved, (list, tuple)):
        for place, (one, other) in enumerate(zip(own, saved, strict=False)):
            check_alike(one, other, f"{what}[{place}]")
    elif own is not None and not _is_alike(own, saved):
        raise CheckpointError(f"{what} is {saved!r:.80} in the checkpoint but {own!r:.80} in this run")


def _counts(own: Mapping[Any, Any]) -> bool:
    return all(type(key) is int and type(value) is int for key, value in own.items())


def _is_alike(own: Any, saved: Any) -> bool:
    if saved is None or _is_number(own):
        return saved is None or _is_number(saved)
    return type(saved) is type(own) if isinstance(own, (bool, str)) else isinstance(saved, type(own))


def _is_number(value: Any) -> bool:
    """Is it a number that a float of torch can hold, or a tensor of one element?"""
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 2**63
    if not isinstance(value, float) or math.isnan(value):
        return False
    return math.isinf(value) or abs(value) <= _LARGEST  # beyond, an optimizer's step overflows some steps later


def put_back(session: Session, content: Checkpoint, *, strict: bool) -> Callable[[], None]:
    """Restore a saved run but for train loader and generators; return what loads the rest of the optimizers later."""
    saved, state = _restored(session, content), session.state
    of_weights = [
        name for name in algorithms_of(session.engine) if is_by_weights(saved["algorithms"].get(name), content.model)
    ]
    fresh = ", ".join(["optimizers", "schedulers", *of_weights])
    left_too = f"the states of {fresh} were not loaded either and start fresh"
    prepare_to_load(session.engine, content.model)
    begin_training(state.optimizers)  # before they are told what training they continue
    # First: if not all weights fit, what was learned about the former ones is left out too.
    fits = load_weights(state.model, {**content.model, **saved["model"]}, strict=strict, left_too=left_too)
    load_rest = load_optimizers(session, saved, content) if fits else lambda: None
    put_modes_back(state, saved.get("modes", {}).get("now", {}))  # older versions saved none
    session.left_in_eval = "modes" in saved and not saved.get("has_ended") and not session.is_training()
    _load_scaler(session, saved["scaler"])
    _load_loss(state.loss_fn, saved["loss"])
    own = {**saved, **(_part_of_rank(saved.get("ranks") or [], state.ranks) or {})}
    _load_evaluators(state.evaluators, own["evaluators"])
    state.metrics = {str(name): float(value) for name, value in saved["metrics"].items()}
    state.results.load(saved.get("results", {}))  # older versions saved none
    session.status.load_state_dict({**saved, "evaluation": own.get("evaluation")})
    session.readings.load_state_dict(saved)
    algorithms = _states_in(saved, "algorithms", session)
    algorithms = {name: own for name, own in algorithms.items() if fits or name not in of_weights}
    callbacks = _states_in(saved, "listeners", session)
    seam.put_back(session.engine, {"clock": saved["clock"], "algorithms": algorithms, "callbacks": callbacks})
    return load_rest


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
    own = _part_of_rank(parts, state.ranks) if state.world_size > 1 else None
    was_local, is_local = any("feed" in part for part in parts), session.feed.is_local
    is_alone = state.world_size == 1 and not parts  # and was: it has the rows of all
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
    """
    saved = _restored(session, content)
    optimizers = session.state.optimizers
    scheduled = [[{k: group[k] for k in _SCHEDULED if k in group} for group in o.param_groups] for o in optimizers]
    model = session.state.model
    prepare_to_load(session.engine, content.model)
    load_weights(model, {**content.model, **saved["model"]}, strict=True)
    for label, optimizer, entry in _paired("optimizers", optimizers, saved["optimizers"]):
        names = names_in(optimizer, model)[: len(entry["parameters"])]  # groups that were added since stay
        _check_names(label, _difference(names, entry["parameters"], model, content.model))
        _load_groups(session, label, optimizer, entry)
    for optimizer, groups in zip(optimizers, scheduled, strict=True):
        for group, kept in zip(optimizer.param_groups, groups, strict=True):
            group.update(kept)
    _load_scaler(session, saved["scaler"])
    _load_loss(session.state.loss_fn, saved["loss"])
    put_states_back(session.engine, _states_in(saved, "algorithms", session))


_SCHEDULED = ("lr", "momentum", "betas", "weight_decay")
"""The entries of an optimizer's groups that schedulers change."""


def _load_loss(loss_fn: Any, saved: Mapping[str, Any]) -> None:
    own = _state_of_loss(loss_fn)
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
