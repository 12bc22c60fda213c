"""A run described, for its checkpoints and loggers, and how it differs from the saved one and between its ranks."""

from __future__ import annotations

import functools
import json
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ..algorithm import kept_arguments
from ..callback import is_used_on
from ..changes import ABSENT, changes, leaves
from ..errors import ArgumentError, CheckpointError
from ..event import Event
from ..loop import what_is_missing
from ..messages import join_words, readable
from ..passes import Member
from ..registry import CORE, Registry
from ..state import length_of
from .session import Session


def describe_run(session: Session) -> dict[str, Any]:
    """Return a checkpoint's manifest: versions, machine, settings, training, algorithms, order, config."""
    engine, state, members = session.engine, session.state, session.engine.members
    explained = {event.value: [step.algorithm for step in engine.explain(event)] for event in Event}
    return {
        "run_name": state.run_name,
        "seed": state.seed,
        "settings": {
            "precision": state.precision,
            "microbatch_size": session.microbatch_size,
            "grad_clip_norm": session.grad_clip_norm,
            "batches": _described("Batches", state.batches.settings()),
        },
        "training": _training_of(session),
        "clock": {"epoch": state.timestamp.epoch, "batch": state.timestamp.batch},
        "attempt": session.attempt,
        "world_size": state.world_size,
        "parallel": None if state.world_size == 1 or session.parallel is None else session.parallel.name,
        "versions": versions_of([*state.algorithms, *state.callbacks], engine.passes.registry),
        "machine": _machine_of(session.device),
        "algorithms": [
            {
                "name": member.name,
                "required_on_load": bool(getattr(member.algorithm, "required_on_load", bool)()),
                **_algorithm_in(member),
            }
            for member in members
        ],
        "surgery": _surgery_of(members, explained[Event.INIT.value]),
        "order": {event: names for event, names in explained.items() if names},
        # YAML has infinities and dates, and JSON has neither
        "config": json.loads(json.dumps(state.config, default=str), parse_constant=str),
        "import_from": [*state.import_from],
    }


def _algorithm_in(member: Member) -> dict[str, Any]:
    distribution, version = member.origin or (None, None)
    settings = _in_json(kept_arguments(member.algorithm))
    return {"registered": member.registered, "distribution": distribution, "version": version, "settings": settings}


def _surgery_of(members: Sequence[Member], ran: Sequence[str]) -> list[dict[str, Any]]:
    """Return what is needed to change a model again as the algorithms tagged `surgery` did at INIT, in their order.

    `place` is where an algorithm is in the user's list; `omitted` names its arguments that JSON can't hold.
    """
    found = [(place, member) for place, member in enumerate(members) if "surgery" in member.metadata.tags]
    found.sort(key=lambda item: ran.index(item[1].name) if item[1].name in ran else len(ran))
    entries = [(place, kept_arguments(member.algorithm), _algorithm_in(member)) for place, member in found]
    return [
        {"place": place, **entry, "omitted": [name for name in kept if name not in entry["settings"]]}
        for place, kept, entry in entries
    ]


def versions_of(plugins: Iterable[object], registry: Registry) -> dict[str, Any]:
    """Return the versions of Python, torch, the core, and the distributions of these plugins."""
    owners = {owner for owner in map(registry.distribution_of, plugins) if owner not in (None, CORE)}
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        **{owner: registry.version_of(owner) for owner in (CORE, *sorted(owners))},
    }


def hyperparameters_of(session: Session) -> dict[str, Any]:
    """Return the hyperparameters that logger destinations get."""
    state = session.state
    return {
        "run_name": state.run_name,
        "seed": state.seed,
        "max_duration": None if state.max_duration is None else str(state.max_duration),
        "precision": state.precision,
        "device": str(session.device),
        "microbatch_size": session.microbatch_size,
        "grad_clip_norm": session.grad_clip_norm,
        "algorithms": [type(algorithm).__name__ for algorithm in state.algorithms],
    }


def _machine_of(device: torch.device) -> dict[str, Any]:
    """Return what a sum's bits depend on besides the program, such as the number of threads and their instructions."""
    machine: dict[str, Any] = {"device": device.type, "deterministic": torch.are_deterministic_algorithms_enabled()}
    if device.type == "cpu":
        return {**machine, "threads": torch.get_num_threads(), "instructions": torch.backends.cpu.get_cpu_capability()}
    if device.type == "cuda":
        return {**machine, "device_name": torch.cuda.get_device_name(device)}
    return machine


def _training_of(session: Session) -> dict[str, Any]:
    state = session.state
    evaluators = {label: length_of(loader) for label, loader in state.evaluators.items()}
    horizon = {} if state.max_duration is None else {"max_duration": str(state.max_duration)}
    keys = {key: each for each in state.optimizers if (key := vars(each).get("taken_by")) is not None}
    taken = {key: [name for group in names_in(each, state.model) for name in group] for key, each in keys.items()}
    return {
        "optimizers": [_name_of(optimizer) for optimizer in state.optimizers],
        "hyperparameters": [_in_json(optimizer.defaults) for optimizer in state.optimizers],
        **({"by_name": taken} if taken else {}),
        "schedulers": [f"{_name_of(s.scheduler)} every {s.interval.length}" for s in session.schedulers],
        "loss_fn": None if state.loss_fn is None else _name_of(state.loss_fn),
        "objective": _described(type(state.objective).__name__, state.objective.settings()),
        **({"evaluators": evaluators} if evaluators else {}),
        **horizon,
    }


def names_in(optimizer: torch.optim.Optimizer, model: Any) -> list[list[str]]:
    """Return the names of the parameters in each group, empty for those that are not the model's."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [[names.get(id(parameter), "") for parameter in group["params"]] for group in optimizer.param_groups]


def _described(kind: str, settings: Mapping[str, Any]) -> str:
    """Return what was said of batches or of the objective, as text; functions by their names."""
    said = {name: _name_of(value) if callable(value) else repr(value) for name, value in settings.items()}
    return f"{kind}({', '.join(f'{name}={value}' for name, value in said.items())})"


def _name_of(thing: Any) -> str:
    """Return the name of a function or of an object's class, with its module except in torch, where modules move."""
    if isinstance(thing, functools.partial):
        return _name_of(thing.func)
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    module = getattr(named, "__module__", None) or "torch"
    return str(named.__qualname__) if module.partition(".")[0] == "torch" else f"{module}.{named.__qualname__}"


def _in_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that JSON can represent, as JSON represents them."""
    converted = {}
    for name, value in values.items():
        try:
            converted[name] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError):
            continue
    return converted


def missing_algorithms(saved: Mapping[str, Any], now: Mapping[str, Any], *, required: bool = False) -> list[str]:
    """Return a message for each algorithm of the saved run that this one lacks, or that is also required on load."""
    names = {entry["name"] for entry in now["algorithms"]}
    return [
        what_is_missing(*(entry[key] for key in ("name", "registered", "distribution", "version")))
        for entry in saved["algorithms"]
        if entry["name"] not in names and (entry["required_on_load"] or not required)
    ]


_REMEDY = "change it back, or start a new run from the saved weights (load_path with load_weights_only=True)"


def other_optimizers(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a message for each optimizer whose class has a different name than the saved one's; modules may differ.

    Where the keys of `by_name` give parameters to other optimizers, it names those instead.
    """
    before, after = (_values(manifest, "training").get("by_name", {}) for manifest in (saved, now))
    then, there = (
        {n: (i, key) for i, (key, names) in enumerate(each.items()) for n in names} for each in (before, after)
    )
    if moved := [n for n in there if n in then and there[n][0] != then[n][0]]:
        told = [f"{readable(n)} by {there[n][1]!r}, was by {readable(repr(then[n][1]))}" for n in moved]
        if before == after:  # but for the order
            told = [f"its keys are {[*after]}, were {readable(repr([*before]))}"]
        return [f"by_name gives parameters to other optimizers: {join_words(told)}: {_REMEDY}"]
    was, has = (_values(manifest, "training").get("optimizers", []) for manifest in (saved, now))
    return [
        f"optimizers[{place}] is {after} and can't load the saved state of {readable(before)}: {_REMEDY}"
        for place, (before, after) in enumerate(zip(was, has, strict=False))
        if before.rpartition(".")[2] != after.rpartition(".")[2]
    ]


def other_length(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a message if max_duration differs, which matters only where nothing may change."""
    was, has = (_values(manifest, "training").get("max_duration") for manifest in (saved, now))
    words = f"max_duration is {has!r}, was {was!r:.200}: schedules that depend on it will differ"
    return [] if None in (was, has) or was == has else [words]


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a message for each difference that may change bits, missing algorithms aside.

    Values that only one manifest has are skipped: an older version did not write them, or one run lacks the plugin.
    """
    names = [entry["name"] for entry in saved["algorithms"]]
    both = changes(_compared(saved, now), _compared(now, saved))
    given = [_values(manifest, "training").get("hyperparameters", []) for manifest in (saved, now)]
    pairs = zip(*given, strict=True) if len({*map(len, given)}) == 1 else ()
    return [
        *(
            f"{each['name']} was not in the saved run and starts fresh"
            for each in now["algorithms"]
            if each["name"] not in names
        ),
        *(f"{readable(path)} is {has!r}, was {was!r:.200}" for path, was, has in both if ABSENT not in (was, has)),
        *(
            f"optimizers[{place}] was given {name}={has!r} but resumes as saved: it was given {name}={was!r:.200}"
            for place, values in enumerate(pairs)
            for name, was, has in changes(*values)
            if ABSENT not in (was, has)
        ),
    ]


def _compared(manifest: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a manifest may change bits, by the names that it has in messages."""
    training, theirs = _values(manifest, "training"), _values(other, "training")
    config, algorithms = manifest.get("config"), {each["name"]: each for each in other["algorithms"]}
    common = [(each, algorithms[each["name"]]) for each in manifest["algorithms"] if each["name"] in algorithms]
    order = {
        event: [name for name in names if name in algorithms] for event, names in _values(manifest, "order").items()
    }
    # Another number of optimizers or schedulers is refused when they load.
    alike = [k for k in ("optimizers", "schedulers") if len(training.get(k, [])) == len(theirs.get(k, []))]
    return {
        **_values(manifest, "settings"),
        **{name: manifest[name] for name in ("world_size", "parallel") if name in manifest},
        **(
            {f"the config's {name}": config.get(name) for name in ("data", "eval_data", "metrics")}
            if isinstance(config, dict) and config
            else {}
        ),
        **({"by_name": [*training["by_name"]]} if "by_name" in training else {}),
        **{name: training[name] for name in (*alike, "loss_fn", "objective", "evaluators") if name in training},
        # A patch release of Python changes no bits.
        **{
            k: ".".join(str(v).split(".")[:2]) if k == "python" else v for k, v in _values(manifest, "versions").items()
        },
        **_values(manifest, "machine"),
        **{f"the distribution of {each['name']}": each["distribution"] for each, _ in common},
        **{
            f"{each['name']}: {name}": each["settings"].get(name)
            for each, its in common
            for name in {**each["settings"], **its["settings"]}
        },
        **{f"the order at {event}": ", ".join(order.get(event, ())) for event in {**order, **_values(other, "order")}},
    }


def _values(manifest: Mapping[str, Any], section: str) -> Mapping[str, Any]:
    values = manifest.get(section, {})
    if not isinstance(values, dict):
        raise CheckpointError(f"the checkpoint's manifest has {values!r:.80} for {section}, which has to be a mapping")
    return values


_MOST = 8
"""How many differences of ranks are shown."""


def check_alike(session: Session, describe: Callable[[Session], Mapping[str, Any]]) -> None:
    """Raise on all ranks if what `describe` returns, which only several ranks call, differs between them."""
    ranks = session.state.ranks
    if ranks.size == 1:
        return
    mine = {path: str(value) for path, value in leaves(describe(session))}
    found = [
        f"{path} is {here} on rank {ranks.rank} and {first} on rank 0"
        for path, first, here in changes(ranks.first(mine), mine)
    ]
    if told := [line for lines in ranks.each(found) for line in lines]:
        more = f"\n  and {len(told) - _MOST} more" if len(told) > _MOST else ""
        raise ArgumentError(
            "the ranks of a run have to be alike, and they differ:\n  " + "\n  ".join(told[:_MOST]) + more
        )


def settings_of(session: Session) -> dict[str, Any]:
    """Return algorithms, their order, versions and the Trainer's settings."""
    run, state = describe_run(session), session.state
    settings = run["settings"] | {
        "device": session.device.type,
        "eval_interval": str(session.eval_interval.length),
        "max_duration": str(state.max_duration),
        "parallel": run["parallel"],
        "data": "local" if session.feed.is_local else "global",
        "evaluation loaders": ", ".join(state.evaluators),
        "metrics": ", ".join(state.metric_objects),
        "callbacks of all ranks": ", ".join(type(each).__name__ for each in state.callbacks if is_used_on(1, each)),
    }
    return {**{section: run[section] for section in ("versions", "algorithms", "order")}, "Trainer": settings}


def model_of(session: Session) -> dict[str, Any]:
    """Return names, classes, shapes and dtypes in the model, and what of it is trained."""
    model: Any = session.state.model
    tensors = {
        name: f"{tuple(tensor.shape)} {tensor.dtype}{', trained' if tensor.requires_grad else ''}"
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
    }
    modules = {name: type(module).__name__ for name, module in model.named_modules()}
    return {"model": {"class": modules.pop("")} | modules, "model's tensor": tensors}


def training_of(session: Session) -> dict[str, Any]:
    """Return the loss, the optimizers, what these were given, and the schedulers."""
    return {"training": _training_of(session)}
