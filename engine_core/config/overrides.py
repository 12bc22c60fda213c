"""Change a config's values before they are checked, as in `optimizer.args.lr=1e-3` or `algorithms+=flip`.

Knows where a config names plugins, and that it may have one evaluation loader; the rest is for the check.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import ConfigError, did_you_mean, suggestion
from ..messages import enumerated, readable
from .reading import LEVELS, LONGEST, Keys, Node, Place, SourceFile, read_text

PLUGINS = ("algorithms", "callbacks", "loggers", "passes")
"""The lists in which a bare name stands for `{name: ...}`."""

_OVERRIDE = re.compile(r"(?P<path>[^=]*?)(?P<operator>[+-]?=)(?P<value>.*)", re.DOTALL)
_STEP = re.compile(r"(?:^|\.)([^.\[\]]+)|\[([^\[\]]+)\]")
_INDEX = re.compile(r"-?[0-9]{1,9}")


def apply_overrides(source: SourceFile, overrides: Iterable[str]) -> SourceFile:
    """Return the content with the overrides applied in order.

    Raises:
        ConfigError: (a ValueError) with the text of the override that can't be read, or changes what is not there.
    """
    texts = tuple(overrides)
    for text in texts:
        source = source._replace(root=_Change(text).applied(source.root))
    return source._replace(overrides=texts)


class _Change:
    """One override. What is on its path is copied, since the former content may still be in use."""

    def __init__(self, text: str) -> None:
        self._text = text
        found = _OVERRIDE.fullmatch(text)
        if found is None:
            raise self._error((), "has to be KEY=VALUE, as in optimizer.args.lr=1e-3")
        self._operator, self._value = found["operator"], found["value"]
        self._steps = self._steps_of(found["path"].strip())

    def applied(self, root: Node) -> Node:
        """Return the content with the change made."""
        return self._changed(root, self._steps, ())._replace(origin=None)

    def _error(self, keys: Keys, problem: str, *values: object) -> ConfigError:
        return Place(SourceFile(root=Node({}, self._text)), keys).error(problem, *values)

    def _steps_of(self, path: str) -> list[str]:
        steps, end = [], 0
        while end < len(path):
            found = _STEP.match(path, end)
            if found is None or not found[0].isprintable():
                rest = readable(path[end:], LONGEST)
                raise self._error((), f"'{rest}' can't be read as part of a path such as algorithms[flip].args.p")
            steps.append(found[1] or found[2])
            end = found.end()
        if not 0 < len(steps) <= LEVELS:
            raise self._error((), f"a path has from 1 to {LEVELS} keys, as in optimizer.args.lr=1e-3")
        return steps

    def _changed(self, node: Node, steps: Sequence[str], keys: Keys) -> Node:
        """Return the node at `keys`, changed further along the path."""
        step, *rest = steps
        outer = {} if node.value is None else node.value
        if not isinstance(outer, (dict, list)):
            raise self._error(keys, f"is {outer!r}, so there is no {step!r} in it", outer)
        outer = outer.copy()
        key = self._key_of(outer, step, keys)
        here = (*keys, key)
        inner = outer[key] if isinstance(outer, list) else outer.get(key, Node(None, self._text))
        if not rest:
            self._end(outer, key, inner, here)
        else:
            if isinstance(inner.value, str) and len(here) == 2 and here[0] in PLUGINS:
                inner = inner._replace(value={"name": inner})
            elif here == ("eval_data",) and isinstance(inner.value, dict) and "target" in inner.value:
                inner = Node({"eval": inner}, inner.origin)  # the label of a file's only loader
                rest = ["eval", *rest] if rest[0] in ("target", "args") else rest
            outer[key] = self._changed(inner, rest, here)
        return Node(outer, self._text if node.value is None else node.origin)

    def _key_of(self, outer: dict[Any, Node] | list[Node], step: str, keys: Keys) -> Any:
        if isinstance(outer, dict):
            return next((key for key in outer if str(key) == step), step)  # 1 is a key too
        if not _INDEX.fullmatch(step):
            return self._index_of(outer, step, keys)
        index, count = int(step), len(outer)
        if not -count <= index < count:
            there = f"its {count} entries are [0] to [{count - 1}]" if count else "it is empty"
            raise self._error(keys, f"there is no entry [{index}]; {there}")
        return index % count

    def _index_of(self, entries: Sequence[Node], wanted: Any, keys: Keys) -> int:
        """Return the index of the only entry that is the value, or has it as its name or target."""
        names = [_names_of(entry.plain()) for entry in entries]
        found = [index for index, known in enumerate(names) if wanted in known]
        if len(found) == 1:
            return found[0]
        if found:
            choices, how = enumerated([f"[{index}]" for index in found]), "=null" if self._operator == "-=" else ""
            problem = f"{choices} are {'both' if len(found) == 2 else 'all'} {wanted!r}"
            example = f"{Place(keys=(*keys, found[-1])).path}{how}"
            raise self._error(keys, f"{problem}; name one by its index, as in {example}", wanted)
        near = did_you_mean(str(wanted), {str(known[-1]) for known in names})
        raise self._error(keys, f"there is no entry {wanted!r}{near}", wanted)

    def _end(self, outer: Any, key: Any, old: Node, here: Keys) -> None:
        """Set, add or take out at the end of the path."""
        new = self._read(here)
        if self._operator != "=":
            outer[key] = self._listed(old, new, here)
        elif new.value is None and isinstance(outer, dict) and key not in outer:
            raise self._error(here, f"is not there, so it can't be taken out{suggestion(key, map(str, outer))}")
        elif new.value is not None or len(here) == 1:  # a section without a value counts as absent
            outer[key] = new
        else:
            del outer[key]

    def _read(self, here: Keys) -> Node:
        """Return the value, written in YAML."""
        try:
            value = read_text(self._value)
        except ConfigError as error:
            raise self._error(here, str(error).partition(": ")[2]) from error  # without ":1", of no use in one value
        if value.value is None and self._value.lstrip()[:1] in ("", "#"):
            raise self._error(
                here, "has no value; write null to take it out, and quotes around text that begins with #"
            )
        return self._own(value)

    def _own(self, node: Node) -> Node:
        """Return the node as one that this override gave."""
        value = node.value
        if isinstance(value, dict):
            value = {key: self._own(inner) for key, inner in value.items()}
        elif isinstance(value, list):
            value = [self._own(inner) for inner in value]
        return Node(value, self._text)

    def _listed(self, old: Node, new: Node, here: Keys) -> Node:
        """Return a list with the value, or those of a list, added; or with it taken out."""
        entries = [] if old.value is None else old.value
        if not isinstance(entries, list):
            raise self._error(here, f"{self._operator} is for lists, and this is {old.plain()!r}", old.plain())
        if self._operator == "-=":
            index = self._index_of(entries, new.plain(), here)
            return old._replace(value=[*entries[:index], *entries[index + 1 :]])
        added = new.value if isinstance(new.value, list) else [new]
        return Node([*entries, *added], self._text if old.value is None else old.origin)


def _names_of(entry: Any) -> list[Any]:
    """Return an entry of a list, and by what it can be named; the shortest name is last."""
    names = [entry, *(entry[key] for key in ("name", "target") if key in entry)] if isinstance(entry, dict) else [entry]
    return [*names, *(name.rpartition(":")[2] for name in names if isinstance(name, str))]
