"""How a run differs from the saved one, according to their manifests. Decides nothing.

A saved manifest may come from anywhere, so its texts get into a sentence only through `readable` or as a repr.
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
    """Return the saved manifest's entries for algorithms that this run does not have."""
    names = {entry["name"] for entry in now["algorithms"]}
    return [entry for entry in saved["algorithms"] if entry["name"] not in names]


def what_is_missing(entry: Mapping[str, Any]) -> str:
    """Return a sentence that names a missing algorithm, its distribution and version, and what to do."""
    shipped, version = entry["distribution"], entry["version"]
    pinned = _pinned(shipped, version)
    origin = f" ({shipped} {version})" if pinned else f" (of {shipped!r:.80} {version!r:.80})" if shipped else ""
    remedy = f"pip install {pinned}, and " if pinned else ""
    name, registered = readable(str(entry["name"])), readable(str(entry["registered"]))
    return escaped(f"the saved run had {name}{origin}: {remedy}add {registered!r} to algorithms")


def other_optimizers(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each optimizer whose class is another than the saved one's, wherever the class is now."""
    was, has = (_values(manifest, "training").get("optimizers", []) for manifest in (saved, now))
    return [
        f"optimizers[{place}] is {after}, and was {readable(before)}, whose state it can't take: put that one back, "
        "or begin anew with the saved weights (load_path with load_weights_only=True)"
        for place, (before, after) in enumerate(zip(was, has, strict=False))
        if before.rpartition(".")[2] != after.rpartition(".")[2]
    ]


def other_length(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a sentence if training is to be longer or shorter, which only a run that must be the very same minds."""
    changes = _changed("it", _values(saved, "training"), _values(now, "training"), "max_duration")
    return [f"{change}: schedules that depend on it go on otherwise" for change in changes]


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each difference that may change bits, missing algorithms aside.

    What only one manifest has is not compared: an older version has not written it, or the other run lacks the plugin.

    Example:
        >>> then = {"settings": {}, "versions": {"torch": "2.4"}, "algorithms": [], "order": {}}
        >>> differences(then, {**then, "versions": {"torch": "2.5"}, "machine": {"threads": 8}})
        ["it has torch='2.5', and had '2.4'"]
    """
    was, has = ({entry["name"]: entry for entry in manifest["algorithms"]} for manifest in (saved, now))
    return [
        *_changed("it", _values(saved, "settings"), _values(now, "settings")),
        *_changes_of_training(_values(saved, "training"), _values(now, "training")),
        *_changed("it", _versions(saved), _versions(now)),
        *_changed("it", _values(saved, "machine"), _values(now, "machine")),
        *(f"{name} was not in the saved run, and begins anew" for name in has if name not in was),
        *(change for name in has if name in was for change in _changes_of(name, was[name], has[name])),
        *_reordered(saved, now, was.keys() & has.keys()),
    ]


def _values(manifest: Mapping[str, Any], section: str) -> Mapping[str, Any]:
    values = manifest.get(section, {})
    if not isinstance(values, dict):
        raise CheckpointError(f"the checkpoint's manifest has {values!r:.80} where its {section} have to be")
    return values


def _versions(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the versions; of Python without the last number, since a patch changes no bit."""
    versions = _values(manifest, "versions").items()
    return {name: ".".join(str(v).split(".")[:2]) if name == "python" else v for name, v in versions}


def _pinned(distribution: Any, version: Any) -> str | None:
    """Return what pip is to install, if this is a name and a version and nothing else that pip would obey."""
    try:
        requirement = Requirement(f"{distribution}=={Version(version)}")
    except (InvalidRequirement, InvalidVersion, TypeError):
        return None
    return str(requirement) if requirement.name == distribution else None


def _changed(who: str, saved: Mapping[str, Any], now: Mapping[str, Any], *names: str) -> Iterator[str]:
    """Yield which of the names, or else of all names, have another value now."""
    for name in names or now:
        if name in now and name in saved and saved[name] != now[name]:
            yield f"{who} has {readable(name)}={now[name]!r}, and had {saved[name]!r:.200}"


def _changes_of_training(saved: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield what trains differently; if the number of optimizers or schedulers differs, loading them is refused."""
    alike = [name for name in ("optimizers", "schedulers") if len(saved.get(name, [])) == len(now.get(name, []))]
    yield from _changed("it", saved, now, *alike, "loss_fn")
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
    """Yield each event at which the algorithms of both run in another order, or not all of them."""
    was, has = _values(saved, "order"), _values(now, "order")
    for event in dict.fromkeys([*was, *has]):
        before, after = ([name for name in order.get(event, []) if name in common] for order in (was, has))
        if before != after:
            runs, ran = (", ".join(names) or "nothing" for names in (after, before))
            yield f"it runs {runs} at {readable(event)}, and ran {ran}"
