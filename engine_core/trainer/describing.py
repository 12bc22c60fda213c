"""What is good to know of a run: for a checkpoint's manifest, and for the logger destinations. Knows no weights."""

from __future__ import annotations

import inspect
import json
import platform
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from ..event import Event
from ..order import record_of
from ..registry import CORE, Registry

if TYPE_CHECKING:
    from .run import Run

__all__ = ["describe_run", "hyperparameters_of"]


def describe_run(run: Run) -> dict[str, Any]:
    """Return the manifest of a checkpoint of this run: versions, machine, settings, algorithms, order, config."""
    engine, state, registry = run.engine, run.state, Registry.scan()
    members, _ = engine.lineup
    owners = [registry.distribution_of(plugin) for plugin in (*state.algorithms, *state.callbacks)]
    versions = {owner: registry.version_of(owner) for owner in sorted({o for o in owners if o not in (None, CORE)})}
    records = [(member, record_of(member.algorithm, member.name)) for member in members]
    explained = {event.value: [step.algorithm for step in engine.explain(event)] for event in Event}
    return {
        "run_name": state.run_name,
        "seed": state.seed,
        "settings": {
            "precision": state.precision,
            "microbatch_size": run.microbatch_size,
            "grad_clip_norm": run.grad_clip_norm,
        },
        "clock": {"epoch": state.timestamp.epoch, "batch": state.timestamp.batch},
        "versions": {
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            CORE: registry.version_of(CORE),
            **versions,
        },
        "machine": _machine_of(run.device),
        "algorithms": [
            {
                "name": record.algorithm,
                "registered": record.name,
                "distribution": record.distribution,
                "version": record.version,
                "required_on_load": bool(getattr(member.algorithm, "required_on_load", bool)()),
                "settings": _settings_of(member.algorithm),
            }
            for member, record in records
        ],
        "order": {event: names for event, names in explained.items() if names},
        "config": state.config,
    }


def _arguments_of(cls: type) -> Iterable[str]:
    try:
        return inspect.signature(cls).parameters
    except ValueError:  # of a class that is written in C, as SimpleNamespace
        return ()


def hyperparameters_of(run: Run) -> dict[str, Any]:
    """Return what the logger destinations are told about the run."""
    state = run.state
    return {
        "run_name": state.run_name,
        "seed": state.seed,
        "max_duration": None if state.max_duration is None else str(state.max_duration),
        "precision": state.precision,
        "device": str(run.device),
        "microbatch_size": run.microbatch_size,
        "grad_clip_norm": run.grad_clip_norm,
        "algorithms": [type(algorithm).__name__ for algorithm in state.algorithms],
    }


def _machine_of(device: torch.device) -> dict[str, Any]:
    """Return what the bits of a sum depend on, beside the program: how many add it up, and with which instructions."""
    machine: dict[str, Any] = {"device": device.type, "deterministic": torch.are_deterministic_algorithms_enabled()}
    if device.type == "cpu":
        return {**machine, "threads": torch.get_num_threads(), "instructions": torch.backends.cpu.get_cpu_capability()}
    if device.type == "cuda":
        return {**machine, "device_name": torch.cuda.get_device_name(device)}
    return machine


def _settings_of(algorithm: object) -> dict[str, Any]:
    """Return the attributes of an algorithm that are called as arguments of its constructor, and that JSON can say."""
    settings, attributes = {}, getattr(algorithm, "__dict__", {})
    for name in _arguments_of(type(algorithm)):
        if name in attributes:
            try:
                settings[name] = json.loads(json.dumps(attributes[name], allow_nan=False))
            except (TypeError, ValueError):
                continue
    return settings
