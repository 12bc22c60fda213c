"""In what a run differs from the one that was saved, as their manifests tell it. Decides nothing.

What a saved manifest says may be anybody's: of its texts only `readable` ones and reprs come into a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from ...errors import CheckpointError
from ...messages import escaped, readable

__all__ = ["differences", "missing_algorithms", "other_length", "other_optimizers", "what_is_missing"]


def missing_algorithms(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what the saved manifest tells of the algorithms that this run does not have."""
    names = _by_name(now)
    return [entry for name, entry in _by_name(saved).items() if name not in names]


def what_is_missing(entry: Mapping[str, Any]) -> str:
    """Return a sentence that names a missing algorithm, its distribution and version, and what to do."""
    shipped, version = entry["distribution"], entry["version"]
    pinned = _pinned(shipped, version)
    origin = f" ({shipped} {version})" if pinned else f" (of {shipped!r:.80} {version!r:.80})" if shipped else ""
    remedy = f"pip install {pinned}, and " if pinned else ""
    name, registered = readable(str(entry["name"])), readable(str(entry["registered"]))
    return escaped(f"the saved run had {name}{origin}: {remedy}add {registered!r} to algorithms")


def other_optimizers(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each optimizer that can't go on with the state of the saved run's, which another class had.

    A class that has only moved to another module can.
    """
    was, has = (_values(manifest, "training").get("optimizers", []) for manifest in (saved, now))
    return [
        f"optimizers[{place}] is {after}, and was {readable(before)}, whose state it can't take: put that one back, "
        "or begin anew with the saved weights (load_path with load_weights_only=True)"
        for place, (before, after) in enumerate(zip(was, has, strict=False))
        if before.rpartition(".")[2] != after.rpartition(".")[2]
    ]


def other_length(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a sentence if the training is to be longer or shorter: the ordinary way of going on, if not the same run.

    `fit("2ep")` sets a length too, so that nothing but a run that has to be the very same is told of it.
    """
    was, has = (_values(manifest, "training") for manifest in (saved, now))
    changes = _changed("it", was, {name: has[name] for name in ("max_duration",) if name in has})
    return [f"{change}: schedules that depend on it go on otherwise" for change in changes]


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each difference that may change bits, missing algorithms aside.

    What only one of both manifests tells is not compared: an older version has not written it, or it is of a callback
    that the other does not have.

    Example:
        >>> then = {"settings": {}, "versions": {"torch": "2.4"}, "algorithms": [], "order": {}}
        >>> differences(then, {**then, "versions": {"torch": "2.5"}, "machine": {"threads": 8}})
        ["it has torch='2.5', and had '2.4'"]
    """
    was, has = _by_name(saved), _by_name(now)
    return [
        *_changed("it", _values(saved, "settings"), _values(now, "settings")),
        *_changes_of_training(_values(saved, "training"), _values(now, "training")),
        *_changed("it", _versions(saved), _versions(now)),
        *_changed("it", _values(saved, "machine"), _values(now, "machine")),
        *(f"{name} was not in the saved run, and begins anew" for name in has if name not in was),
        *(change for name in has if name in was for change in _changes_of(name, was[name], has[name])),
        *_reordered(saved, now, was.keys() & has.keys()),
    ]


def _by_name(manifest: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {entry["name"]: entry for entry in manifest["algorithms"]}


def _values(manifest: Mapping[str, Any], section: str) -> Mapping[str, Any]:
    values = manifest.get(section, {})
    if not isinstance(values, dict):
        raise CheckpointError(f"the checkpoint's manifest has {values!r:.80} where its {section} have to be")
    return values


def _versions(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the versions; of Python without the last number, since a patch changes no bit."""
    versions = _values(manifest, "versions")
    return {name: _minor(value) if name == "python" else value for name, value in versions.items()}


def _minor(version: Any) -> str:
    return ".".join(str(version).split(".")[:2])


def _pinned(distribution: Any, version: Any) -> str | None:
    """Return what pip is to install, if this is a name and a version, and nothing else that pip would obey."""
    try:
        requirement = Requirement(f"{distribution}=={Version(version)}")
    except (InvalidRequirement, InvalidVersion, TypeError):
        return None
    return str(requirement) if requirement.name == distribution else None


def _changed(who: str, saved: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield what both have and have otherwise."""
    for name, value in now.items():
        if name in saved and saved[name] != value:
            yield f"{who} has {readable(name)}={value!r}, and had {saved[name]!r:.200}"


def _changes_of_training(saved: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield what trains otherwise; other numbers of optimizers and schedulers are refused where they are loaded."""
    for name in ("optimizers", "schedulers"):
        if len(saved.get(name, [])) == len(now.get(name, [])):
            yield from _changed("it", {name: saved.get(name)}, {name: now.get(name)} if name in saved else {})
    yield from _changed("it", saved, {name: now[name] for name in ("loss_fn",) if name in now})
    given = [manifest.get("hyperparameters", []) for manifest in (saved, now)]
    for place, (then, values) in enumerate(zip(*given, strict=True) if len({*map(len, given)}) == 1 else ()):
        for name, value in values.items():
            if name in then and then[name] != value:
                given_then = f"{name}={then[name]!r:.200}"
                yield f"optimizers[{place}] was given {name}={value!r}, and goes on as saved: it was given {given_then}"


def _changes_of(name: str, saved: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    if saved["distribution"] != now["distribution"]:
        before, after = (f"{entry['distribution']} {entry['version']}" for entry in (saved, now))
        yield f"{name} is of {after}, and was of {readable(before)}"
    was, has = saved["settings"], now["settings"]
    every = dict.fromkeys({**was, **has})
    yield from _changed(name, {**every, **was}, {**every, **has})


def _reordered(saved: Mapping[str, Any], now: Mapping[str, Any], common: set[str]) -> Iterator[str]:
    """Yield each event at which the algorithms that both have run in another order, or not all of them."""
    was, has = _values(saved, "order"), _values(now, "order")
    for event in dict.fromkeys([*was, *has]):
        before, after = ([name for name in order.get(event, []) if name in common] for order in (was, has))
        if before != after:
            runs, ran = (", ".join(names) or "nothing" for names in (after, before))
            yield f"it runs {runs} at {readable(event)}, and ran {ran}"
