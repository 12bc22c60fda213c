"""Describe a run, for a checkpoint's manifest and for logger destinations, and say how two runs differ."""

from __future__ import annotations

import functools
import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from ...algorithm import kept_arguments
from ...changes import ABSENT, changes
from ...engine import Engine
from ...errors import CheckpointError
from ...event import Event
from ...loop import what_is_missing
from ...messages import readable
from ...passes import AlgorithmRecord, Member
from ...registry import CORE, Origin, Registry
from ...state import length_of
from ..session import Session


def describe_run(session: Session) -> dict[str, Any]:
    """Return a checkpoint's manifest: versions, machine, settings, training, algorithms, order, config."""
    engine, state = session.engine, session.state
    members, passes = engine.members, engine.passes
    explained = {event.value: [step.algorithm for step in engine.explain(event)] for event in Event}
    records = [(member, AlgorithmRecord.of(member)) for member in members]
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
        "versions": versions_of([*state.algorithms, *state.callbacks], passes.registry),
        "machine": _machine_of(session.device),
        "algorithms": [
            {
                "name": record.algorithm,
                "registered": record.name,
                "distribution": record.distribution,
                "version": record.version,
                "required_on_load": bool(getattr(member.algorithm, "required_on_load", bool)()),
                "settings": _in_json(kept_arguments(member.algorithm)),
            }
            for member, record in records
        ],
        "surgery": _surgery_of(engine),
        "order": {event: names for event, names in explained.items() if names},
        # YAML has infinities and dates, and JSON has neither
        "config": json.loads(json.dumps(state.config, default=str), parse_constant=str),
        "import_from": [*state.import_from],
    }


def _surgery_of(engine: Engine) -> list[dict[str, Any]]:
    """Return what is needed to change a model again as the algorithms tagged `surgery` did at INIT, in their order.

    `place` is where an algorithm is in the user's list; `omitted` names its arguments that JSON can't hold.
    """
    members = engine.members
    ran = [step.algorithm for step in engine.explain(Event.INIT)]
    found = [(place, member) for place, member in enumerate(members) if "surgery" in member.metadata.tags]
    found.sort(key=lambda item: ran.index(item[1].name) if item[1].name in ran else len(ran))
    return [_surgery_by(place, member) for place, member in found]


def _surgery_by(place: int, member: Member) -> dict[str, Any]:
    kept = kept_arguments(member.algorithm)
    settings = _in_json(kept)
    return {
        "place": place,
        "registered": member.registered,
        "distribution": None if member.origin is None else member.origin.distribution,
        "version": None if member.origin is None else member.origin.version,
        "settings": settings,
        "omitted": [name for name in kept if name not in settings],
    }


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
    return {
        "optimizers": [_name_of(optimizer) for optimizer in state.optimizers],
        "hyperparameters": [_in_json(optimizer.defaults) for optimizer in state.optimizers],
        "schedulers": [f"{_name_of(s.scheduler)} every {s.interval.length}" for s in session.schedulers],
        "loss_fn": None if state.loss_fn is None else _name_of(state.loss_fn),
        "objective": _described(type(state.objective).__name__, state.objective.settings()),
        **({"evaluators": evaluators} if evaluators else {}),
        **horizon,
    }


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


def other_optimizers(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a message for each optimizer whose class has a different name than the saved one's; modules may differ."""
    was, has = (_values(manifest, "training").get("optimizers", []) for manifest in (saved, now))
    return [
        f"optimizers[{place}] is {after} and can't load the saved state of {readable(before)}: change it back, "
        "or start a new run from the saved weights (load_path with load_weights_only=True)"
        for place, (before, after) in enumerate(zip(was, has, strict=False))
        if before.rpartition(".")[2] != after.rpartition(".")[2]
    ]


def other_length(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a message if max_duration differs, which matters only where nothing may change."""
    changes = _changed("", _values(saved, "training"), _values(now, "training"), "max_duration")
    return [f"{change}: schedules that depend on it will differ" for change in changes]


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a message for each difference that may change bits, missing algorithms aside.

    Values that only one manifest has are skipped: an older version did not write them, or one run lacks the plugin.
    """
    was, has = ({entry["name"]: entry for entry in manifest["algorithms"]} for manifest in (saved, now))
    return [
        *_changed("", _values(saved, "settings"), _values(now, "settings")),
        *_changed("", saved, now, "world_size", "parallel"),
        *_changes_of_data(saved.get("config"), now.get("config")),
        *_changes_of_training(_values(saved, "training"), _values(now, "training")),
        *_changed("", _versions(saved), _versions(now)),
        *_changed("", _values(saved, "machine"), _values(now, "machine")),
        *(f"{name} was not in the saved run and starts fresh" for name in has if name not in was),
        *(change for name in has if name in was for change in _changes_of(name, was[name], has[name])),
        *_reordered(saved, now, was.keys() & has.keys()),
    ]


def _values(manifest: Mapping[str, Any], section: str) -> Mapping[str, Any]:
    values = manifest.get(section, {})
    if not isinstance(values, dict):
        raise CheckpointError(f"the checkpoint's manifest has {values!r:.80} for {section}, which has to be a mapping")
    return values


def _versions(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the versions, Python's without its last number, since a patch release changes no bits."""
    versions = _values(manifest, "versions").items()
    return {name: ".".join(str(v).split(".")[:2]) if name == "python" else v for name, v in versions}


def _changed(owner: str, saved: Mapping[str, Any], now: Mapping[str, Any], *names: str) -> Iterator[str]:
    """Yield a message for each name, of those given or else of all, whose value changed."""
    for name, was, has in changes(saved, now):
        if ABSENT not in (was, has) and (not names or name in names):
            yield f"{owner}{readable(name)} is {has!r}, was {was!r:.200}"


def _changes_of_training(saved: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences in training; a different number of optimizers or schedulers is refused when they load."""
    alike = [name for name in ("optimizers", "schedulers") if len(saved.get(name, [])) == len(now.get(name, []))]
    yield from _changed("", saved, now, *alike, "loss_fn", "objective", "evaluators")
    given = [manifest.get("hyperparameters", []) for manifest in (saved, now)]
    for place, values in enumerate(zip(*given, strict=True) if len({*map(len, given)}) == 1 else ()):
        for name, was, has in changes(*values):
            if ABSENT not in (was, has):
                then = f"it was given {name}={was!r:.200}"
                yield f"optimizers[{place}] was given {name}={has!r} but resumes as saved: {then}"


def _changes_of_data(saved: Any, now: Any) -> Iterator[str]:
    """Yield what differs in data, evaluation data and metrics, if both runs were made from a config."""
    if isinstance(saved, dict) and isinstance(now, dict) and saved and now:
        was, has = ({name: config.get(name) for name in ("data", "eval_data", "metrics")} for config in (saved, now))
        yield from _changed("the config's ", was, has)


def _changes_of(name: str, saved: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    if saved["distribution"] != now["distribution"]:
        before, after = (
            Origin.of(entry["distribution"], entry["version"]) or "your own code" for entry in (saved, now)
        )
        yield f"{name} comes from {after}, came from {readable(str(before))}"
    was, has = saved["settings"], now["settings"]
    every = dict.fromkeys({**was, **has})
    yield from _changed(f"{name}: ", {**every, **was}, {**every, **has})


def _reordered(saved: Mapping[str, Any], now: Mapping[str, Any], common: set[str]) -> Iterator[str]:
    """Yield each event at which the algorithms that both runs have differ, or differ in order."""
    orders = (
        {event: ", ".join(name for name in names if name in common) or "empty" for event, names in order.items()}
        for order in (_values(saved, "order"), _values(now, "order"))
    )
    for event, *both in changes(*orders):
        ran, runs = ("empty" if order is ABSENT else order for order in both)
        if ran != runs:
            yield f"the order at {readable(event)} is {runs}; it was {ran}"
