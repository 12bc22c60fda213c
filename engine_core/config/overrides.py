"""Change a config's values before they are checked, as in `optimizer.args.lr=1e-3` or `algorithms+=flip`.

Knows where a config names plugins, and where its keys are the user's own labels; the rest is for the check.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import ConfigError, did_you_mean, suggestion
from ..messages import enumerated, readable
from .reading import LEVELS, LONGEST, Keys, Place, SourceFile, read_value

PLUGINS = ("algorithms", "callbacks", "loggers", "passes")
"""The lists in which a bare name stands for `{name: ...}`."""
LABELLED = ("eval_data", "metrics")
"""The mappings from labels to targets."""
TARGET = ("target", "args")

_OVERRIDE = re.compile(r"(?P<path>[^=]*?)(?P<operator>[+-]?=)(?P<value>.*)", re.DOTALL)
_STEP = re.compile(r"(?:^|\.)(?P<key>[^.\[\]]+)|\[(?P<entry>[^\[\]]+)\]")
_INDEX = re.compile(r"-?[0-9]{1,9}")


class _Step(NamedTuple):
    """A part of a path: `.name`, or as the entry of a list `[name]` or `[0]`."""

    name: str
    is_entry: bool


def apply_overrides(values: Any, source: SourceFile, overrides: Iterable[str]) -> tuple[Any, SourceFile]:
    """Return the values with the overrides applied in order, and where each value came from.

    Raises:
        ConfigError: (a ValueError) with the text of the override that can't be read, or changes what is not there.
    """
    texts = tuple(overrides)
    for text in texts:
        change = _Change(text, dict(source.lines))
        values, source = change.applied(values), source._replace(lines=change.lines)
    return values, source._replace(overrides=texts)


def contradicting(values: Mapping[str, Any], place: Place, value: object) -> str | None:
    """Return the override that says something else about a place than `value`, if there is one."""
    inner: Any = values
    for depth, key in enumerate(place.keys, start=1):
        is_open = isinstance(inner, Mapping) and key not in inner
        if is_open and place.keys[:depth] not in place.source.lines:
            return None  # it replaced what is around it, and leaves this to others
        inner = inner.get(key) if isinstance(inner, Mapping) else None
    return place.origin if isinstance(place.origin, str) and inner != value else None


class _Change:
    """One override. What is on its path is copied, since an alias may have the same object elsewhere."""

    def __init__(self, text: str, lines: dict[Keys, int | str]) -> None:
        self._text, self.lines = text, lines
        found = _OVERRIDE.fullmatch(text)
        if found is None:
            raise self._error((), "has to be KEY=VALUE, as in optimizer.args.lr=1e-3")
        self._operator, self._value = found["operator"], found["value"]
        self._steps = self._steps_of(found["path"].strip())

    def applied(self, values: Any) -> Any:
        """Return the values with the change made."""
        return self._changed(values, self._steps, ())

    def _place(self, keys: Keys) -> Place:
        return Place(SourceFile(lines={(): self._text}), keys)

    def _error(self, keys: Keys, problem: str, *values: object) -> ConfigError:
        return self._place(keys).error(problem, *values)

    def _steps_of(self, path: str) -> list[_Step]:
        steps, end = [], 0
        while end < len(path):
            found = _STEP.match(path, end)
            if found is None or not found[0].isprintable():
                rest = readable(path[end:], LONGEST)
                raise self._error((), f"'{rest}' can't be read as part of a path such as algorithms[flip].args.p")
            steps.append(_Step(found["key"] or found["entry"], is_entry=found["key"] is None))
            end = found.end()
        if not steps:
            raise self._error((), f"there is no key before {self._operator}, as in optimizer.args.lr=1e-3")
        if len(steps) > LEVELS:
            raise self._error((), f"nested deeper than {LEVELS} levels")
        return steps

    def _changed(self, outer: Any, steps: Sequence[_Step], keys: Keys) -> Any:
        """Return what is at `keys`, changed further along the path."""
        (step, *rest), outer = steps, self._opened(outer, steps[0], keys)
        key = self._key_of(outer, step, keys)
        here = (*keys, key)
        inner = outer[key] if isinstance(outer, list) else outer.get(key)
        if isinstance(outer, dict):
            self._check_key(outer, inner, here, rest)
        if not rest:
            self._end(outer, key, inner, here)
            return outer
        if inner is None:
            self.lines[here] = self._text
        elif isinstance(inner, str) and len(here) == 2 and here[0] in PLUGINS:
            inner = {"name": inner}
        elif here == ("eval_data",) and isinstance(inner, dict) and "target" in inner:
            inner = {"eval": inner}  # the label of a file's only loader
            self._rename(here, lambda rest: ("eval", *rest))
            rest = [*([_Step("eval", is_entry=False)] if rest[0].name in TARGET else []), *rest]
        outer[key] = self._changed(inner, rest, here)
        return outer

    def _opened(self, outer: Any, step: _Step, keys: Keys) -> Any:
        """Return a copy of a mapping or list; a new mapping where there is nothing."""
        if outer is None:
            return {}
        if isinstance(outer, (dict, list)):
            return outer.copy()
        raise self._error(keys, f"is {outer!r}, so there is no {step.name!r} in it", outer)

    def _key_of(self, outer: Any, step: _Step, keys: Keys) -> Any:
        if isinstance(outer, dict):
            return next((key for key in outer if str(key) == step.name), step.name)  # 1 is a key too
        if not step.is_entry:
            raise self._error(keys, f"is a list; name an entry in brackets: {self._place(keys).path}[{step.name}]")
        if not _INDEX.fullmatch(step.name):
            return self._index_of(outer, step.name, keys)
        index, count = int(step.name), len(outer)
        if not -count <= index < count:
            there = f"its {count} entries are [0] to [{count - 1}]" if count else "it is empty"
            raise self._error(keys, f"there is no entry [{index}]; {there}")
        return index % count

    def _index_of(self, entries: Sequence[Any], wanted: Any, keys: Keys) -> int:
        """Return the index of the only entry that is the value, or has it as its name or target."""
        found = [index for index, entry in enumerate(entries) if wanted in _names_of(entry)]
        if len(found) == 1:
            return found[0]
        if found:
            choices, example = enumerated([f"[{index}]" for index in found]), f"{self._place(keys).path}[{found[-1]}]"
            how = f"{example}=null" if self._operator == "-=" else example
            problem = f"{choices} are both {wanted!r}" if len(found) == 2 else f"{choices} are all {wanted!r}"
            raise self._error(keys, f"{problem}; name one by its index, as in {how}", wanted)
        near = did_you_mean(str(wanted), {str(_names_of(entry)[-1]) for entry in entries})
        raise self._error(keys, f"there is no entry {wanted!r}{near}", wanted)

    def _check_key(self, outer: dict[Any, Any], inner: Any, here: Keys, rest: Sequence[_Step]) -> None:
        """Refuse an entry of a list that is not there, and an unknown label unless it becomes that of a new target."""
        key, others = here[-1], [str(other) for other in outer if other != here[-1]]
        if inner is None and rest and rest[0].is_entry and key not in LABELLED:
            raise self._error(here, f"is empty, so there is no {rest[0].name!r} in it{suggestion(str(key), others)}")
        is_label = len(here) == 2 and here[0] in LABELLED and key not in outer
        if is_label and others and "target" not in outer and (key in TARGET or (rest and rest[0].name != "target")):
            raise self._error(here[:1], f"there is no label {key!r}{did_you_mean(str(key), others)}")

    def _end(self, outer: Any, key: Any, old: Any, here: Keys) -> None:
        """Set, add or take out at the end of the path."""
        value = read_value(self._value, self._place(here))
        if self._operator != "=":
            outer[key] = self._listed(old, value, here)
        elif value is not None:
            self._rename(here, None)
            self.lines[here] = self._text
            outer[key] = value
        elif isinstance(outer, list):
            self._take_out(outer, key, here[:-1])
        elif key in outer:
            self._rename(here, None)
            self.lines[here] = self._text
            del outer[key]
        else:
            raise self._error(here, f"is not there, so it can't be taken out{suggestion(key, map(str, outer))}")

    def _listed(self, old: Any, value: Any, here: Keys) -> list[Any]:
        """Return a list with the value, or those of a list, added; or with it taken out."""
        if not isinstance(old, (list, type(None))):
            raise self._error(here, f"{self._operator} is for lists, and this is {old!r}", old)
        entries = list(old or ())
        if self._operator == "-=":
            self._take_out(entries, self._index_of(entries, value, here), here)
            return entries
        added = value if isinstance(value, list) else [value]
        if None in added:
            raise self._error(here, "null can't be added to a list")
        if old is None:
            self.lines[here] = self._text
        self.lines.update({(*here, len(entries) + place): self._text for place in range(len(added))})
        return [*entries, *added]

    def _take_out(self, entries: list[Any], index: int, here: Keys) -> None:
        """Take an entry out of a list; those after it move up."""
        del entries[index]
        self._rename((*here, index), None)
        self._rename(here, lambda rest: (rest[0] - 1, *rest[1:]) if int(rest[0]) > index else rest)  # type: ignore[operator]

    def _rename(self, keys: Keys, renamed: Callable[[Keys], Keys] | None) -> None:
        """Move what is known of values nested at `keys`, given by the rest of their keys; None: forget it."""
        depth, lines = len(keys), self.lines
        inside = {found: lines.pop(found) for found in [*lines] if len(found) > depth and found[:depth] == keys}
        if renamed is not None:
            lines.update({(*keys, *renamed(found[depth:])): line for found, line in inside.items()})


def _names_of(entry: Any) -> list[Any]:
    """Return an entry of a list, and by what it can be named; the shortest name is last."""
    names = (
        [entry, *(entry[key] for key in ("name", "target") if key in entry)] if isinstance(entry, Mapping) else [entry]
    )
    return [*names, *(name.rpartition(":")[2] for name in names if isinstance(name, str))]
