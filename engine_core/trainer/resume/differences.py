"""Describe how a run differs from the saved one, by their manifests. Decides nothing.

A saved manifest is untrusted, so its text enters a message only through `readable` or as a repr.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...changes import ABSENT, changes
from ...embed import what_is_missing
from ...errors import CheckpointError
from ...messages import readable
from ...registry import Origin


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
