"""Read a YAML file as plain data that remembers the line of every key. Knows no config.

The dialect is YAML 1.2's core schema: `1e-3` is a number, and `off`, `no`, `1:30` and `2026-01-01` are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import yaml

from ..arguments import path_of
from ..errors import ConfigError, did_you_mean
from ..messages import enumerated, readable

NODES = 100_000
"""How many values and keys a file may hold, each alias counted as what it stands for."""
LEVELS = 100
"""How deeply lists and mappings may be nested: far more than any config, and still safe for Python to walk."""
LONGEST = 200
"""How many characters of a value a message shows."""

Keys: TypeAlias = "tuple[str | int, ...]"
"""The path to a value, as in `("algorithms", 0, "args")`."""


class SourceFile(NamedTuple):
    """The file that values came from, and the line of each; no file for values made in Python.

    Where one of the `overrides` gave a value, its text is in `lines`.
    """

    file: str = ""
    lines: Mapping[Keys, int | str] = {}
    overrides: tuple[str, ...] = ()


class Place(NamedTuple):
    """A value's place in a file, as in `run.yaml:12: algorithms[0].args`."""

    source: SourceFile = SourceFile()
    keys: Keys = ()

    def at(self, *keys: str | int) -> Place:
        """Return the place of a nested value."""
        return Place(self.source, (*self.keys, *keys))

    def error(self, problem: str, *values: object) -> ConfigError:
        """Return an error about this place; those of the values that the text contains are cut if they are long."""
        for value in _within(values):
            for whole in (repr(value), str(value)):
                if len(whole) > LONGEST:
                    problem = problem.replace(whole, f"{whole[: LONGEST - 3]}...")
        return ConfigError(f"{self}: {problem}" if str(self) else problem)

    @property
    def origin(self) -> int | str | None:
        """The line of the value, or of the nearest around it that has one; the text of the override that gave it."""
        origins = (self.source.lines.get(self.keys[:length]) for length in range(len(self.keys), -1, -1))
        return next((origin for origin in origins if origin is not None), None)

    @property
    def path(self) -> str:
        """The keys as they are written, as in `algorithms[0].args`."""
        names = (f"[{key}]" if isinstance(key, int) else f".{readable(key, LONGEST)}" for key in self.keys)
        return "".join(names).removeprefix(".")

    def __str__(self) -> str:
        line = "" if self.origin is None else f":{self.origin}"
        origin = _option(self.origin) if isinstance(self.origin, str) else f"{self.source.file}{line}"
        inside = [text for keys, text in self.source.lines.items() if keys[: len(self.keys)] == self.keys]
        changes = [_option(text) for text in dict.fromkeys(inside) if isinstance(text, str) and text != self.origin]
        where = f"{origin} with {enumerated(changes)}" if changes else origin
        return ": ".join(filter(None, (where, self.path)))


def read_yaml(path: Path | str) -> tuple[Any, SourceFile]:
    """Return the content of a YAML file and the line of each key; ConfigError says what is wrong with the file."""
    return _read(_text(path_of(path)), str(path))


def read_value(text: str, place: Place) -> Any:
    """Return the value of an override, written in YAML, that goes to a place.

    Raises:
        ConfigError: (a ValueError) if there is none, or it would not be valid there in a file.
    """
    try:
        value, _ = _read(text, "", len(place.keys))
    except ConfigError as error:
        raise place.error(str(error).partition(": ")[2]) from error  # without ":1", which is of no use in one value
    if value is None and text.lstrip()[:1] in ("", "#"):
        raise place.error("has no value; write null to take it out, and quotes around text that begins with #")
    return value


def _read(text: str, file: str, level: int = 0) -> tuple[Any, SourceFile]:
    """Read YAML that is nested in so many levels."""
    loader = _Loader(text, file, level)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, SourceFile(file)
        lines = dict(_lines(node, (), file))
        return loader.construct_document(node), SourceFile(file, lines)
    except ConfigError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(filter(None, (error.context, error.problem)))
        raise loader.error(mark, f"not valid YAML: {readable(problem, LONGEST)}") from error
    except Exception as error:  # the scanner lets Python's own through, as for the escape "\UFFFFFFFF"
        raise loader.error(loader.get_mark(), f"not valid YAML: {readable(str(error), LONGEST)}") from error


def _option(override: str) -> str:
    """Return an override as it is written on the command line, for a message."""
    return f"--set {readable(override, LONGEST) or repr('')}"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        siblings = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        hint = did_you_mean(path.name, siblings) if siblings else ""
        raise ConfigError(f"{path}: there is no such file{hint}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error


def _within(value: object) -> Iterator[object]:
    """Yield a value and all that is nested in it."""
    yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        yield from _within(item)


def _lines(node: yaml.Node, keys: Keys, file: str) -> Iterator[tuple[Keys, int]]:
    """Walk the YAML nodes, where each key still has its line."""
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*keys, index), item.start_mark.line + 1
            yield from _lines(item, (*keys, index), file)
    elif isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            kind = key.tag.rpartition(":")[2] if isinstance(key, yaml.ScalarNode) else key.id
            if kind in ("sequence", "mapping", "timestamp", "binary"):
                raise Place(SourceFile(file, {keys: line}), keys).error(f"a key has to be text, not a {kind}")
            name = key.value
            if name in first and name != "<<":
                place = Place(SourceFile(file, {(*keys, name): line}), (*keys, name))
                raise place.error(f"duplicate key, first used in line {first[name]}; remove one")
            first[name] = line
            yield (*keys, name), line
            yield from _lines(value, (*keys, name), file)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the core schema of YAML 1.2 in place of 1.1's, and with limits."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own way to hold them

    def __init__(self, text: str, file: str, level: int = 0) -> None:
        self._file = file
        self._nodes, self._level = 0, level
        self._sizes: dict[yaml.Node, tuple[int, int]] = {}
        super().__init__(text)

    def error(self, mark: Any, problem: str) -> ConfigError:
        """Return an error about a line of the file."""
        return ConfigError(f"{self._file}:{mark.line + 1}: {problem}")

    def check_printable(self, data: str) -> None:
        """Refuse characters that YAML does not have, with their line."""
        if found := self.NON_PRINTABLE.search(data):
            line = data.count("\n", 0, found.start()) + 1
            raise ConfigError(f"{self._file}:{line}: not valid YAML: the character {found.group()!r} is not allowed")

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node, and refuse one that is too large or too deep with its aliases written out.

        Each node is walked once: an alias has the size that was noted for what it stands for.
        """
        event, before = self.peek_event(), self._nodes  # type: ignore[no-untyped-call]
        is_nested = isinstance(event, yaml.CollectionStartEvent)
        self._level += is_nested
        self._check_size(event.start_mark, self._level)
        node: Any = super().compose_node(parent, index)
        self._level -= is_nested
        if isinstance(event, yaml.AliasEvent):
            if node not in self._sizes:
                raise self.error(node.start_mark, "not valid here: it contains itself")
            self._nodes += self._sizes[node][0]
        else:
            self._nodes += 1
            deepest = max((self._sizes[child][1] for child in _children(node)), default=0)
            self._sizes[node] = self._nodes - before, deepest + is_nested
        self._check_size(event.start_mark, self._level + self._sizes[node][1])
        return node

    def _check_size(self, mark: Any, level: int) -> None:
        if level > LEVELS:
            raise self.error(mark, f"nested deeper than {LEVELS} levels, with its aliases written out")
        if self._nodes > NODES:
            raise self.error(mark, f"more than {NODES} keys and values, with its aliases written out")

    def construct_object(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002  PyYAML's signature
        """Construct an object; what PyYAML's constructors raise becomes an error of the node's line."""
        try:
            return super().construct_object(node, deep)
        except (ConfigError, yaml.YAMLError):
            raise
        except Exception as error:
            what = f"{node.value!r:.{LONGEST}}" if isinstance(node, yaml.ScalarNode) else f"a {node.id}"
            kind = readable(node.tag.rpartition(":")[2], LONGEST)
            raise self.error(node.start_mark, f"not valid YAML: {what} is not a valid {kind}") from error


def _children(node: yaml.Node) -> Iterable[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return chain.from_iterable(node.value)
    return node.value if isinstance(node, yaml.SequenceNode) else ()


def _text_of(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    text: str = loader.construct_scalar(node)
    text.encode()  # raises for half of a surrogate pair, which no file or terminal takes
    return text


def _integer_of(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text: str = loader.construct_scalar(node)
    number = int(text, 0) if text.lstrip("+-")[:2] in ("0o", "0x") else int(text)
    str(number)  # raises for a hexadecimal one that Python can't write out
    return number


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-9]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first)
_Loader.add_constructor("tag:yaml.org,2002:int", _integer_of)
_Loader.add_constructor("tag:yaml.org,2002:str", _text_of)
