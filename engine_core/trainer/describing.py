"""What is good to know of a run, in a checkpoint's manifest: versions, algorithms, their order. Knows no weights."""

from __future__ import annotations

import json
import platform
from typing import TYPE_CHECKING, Any

import torch

from ..event import Event
from ..order import record_of
from ..registry import CORE, Registry

if TYPE_CHECKING:
    from .run import Run

__all__ = ["describe_run"]


def describe_run(run: Run) -> dict[str, Any]:
    """Return the manifest of a checkpoint of this run: versions, settings, algorithms and their order, the config."""
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
        "algorithms": [
            {
                "name": record.algorithm,
                "registered": record.name,
                "distribution": record.distribution,
                "version": record.version,
                "required_on_load": bool(member.algorithm.required_on_load()),
                "settings": _settings_of(member.algorithm),
            }
            for member, record in records
        ],
        "order": {event: names for event, names in explained.items() if names},
        "config": state.config,
    }


def _settings_of(algorithm: object) -> dict[str, Any]:
    """Return the public attributes of an algorithm that JSON can say: what its constructor was given, by custom."""
    settings = {}
    for name, value in getattr(algorithm, "__dict__", {}).items():
        if not name.startswith("_") and name != "metadata":
            try:
                settings[name] = json.loads(json.dumps(value, allow_nan=False))
            except (TypeError, ValueError):
                continue
    return settings
