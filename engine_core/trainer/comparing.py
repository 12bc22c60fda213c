"""In what a run differs from the one that was saved, as their manifests tell it. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import CheckpointError

__all__ = ["differences", "missing_algorithms", "what_is_missing"]

_NO_BITS = ("python",)
"""Versions that change no bit of a training."""


def missing_algorithms(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what the saved manifest tells of the algorithms that this run does not have."""
    names = _by_name(now)
    return [entry for name, entry in _by_name(saved).items() if name not in names]


def what_is_missing(entry: Mapping[str, Any]) -> str:
    """Return a sentence that names a missing algorithm, its distribution and version, and what to do."""
    shipped, version = entry["distribution"], entry["version"]
    origin = f" ({shipped} {version})" if shipped else ""
    remedy = f"pip install {shipped}=={version}, and " if shipped else ""
    return f"the saved run had {entry['name']}{origin}: {remedy}add {entry['registered']!r} to algorithms"


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
        *_changed("it", _values(saved, "versions"), _values(now, "versions"), without=_NO_BITS),
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


def _changed(
    who: str, saved: Mapping[str, Any], now: Mapping[str, Any], without: tuple[str, ...] = ()
) -> Iterator[str]:
    """Yield what both have and have otherwise."""
    for name, value in now.items():
        if name in saved and saved[name] != value and name not in without:
            yield f"{who} has {name}={value!r}, and had {saved[name]!r:.200}"


def _changes_of(name: str, saved: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    if saved["distribution"] != now["distribution"]:
        before, after = (f"{entry['distribution']} {entry['version']}" for entry in (saved, now))
        yield f"{name} is of {after}, and was of {before}"
    was, has = saved["settings"], now["settings"]
    every = dict.fromkeys({**was, **has})
    yield from _changed(name, {**every, **was}, {**every, **has})


def _reordered(saved: Mapping[str, Any], now: Mapping[str, Any], common: set[str]) -> Iterator[str]:
    """Yield each event at which the algorithms that both have run in another order, or not all of them."""
    was, has = _values(saved, "order"), _values(now, "order")
    for event in dict.fromkeys([*was, *has]):
        before, after = ([name for name in order.get(event, []) if name in common] for order in (was, has))
        if before != after:
            yield f"it runs {', '.join(after) or 'nothing'} at {event}, and ran {', '.join(before) or 'nothing'}"
