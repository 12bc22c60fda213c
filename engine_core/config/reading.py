"""Read a YAML file as plain data that remembers the line of every key. Knows no config.

The dialect is YAML 1.2's core schema: `1e-3` is a number, and `off`, `no`, `1:30` and `2026-01-01` are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import yaml

from ..errors import ConfigError, did_you_mean

Keys: TypeAlias = "tuple[str | int, ...]"
"""The path to a value, as in `("algorithms", 0, "args")`."""


class SourceFile(NamedTuple):
    """The file that values came from, and the line of each; no file for values made in Python."""

    file: str = ""
    lines: Mapping[Keys, int] = {}


class Place(NamedTuple):
    """A value's place in a file, as in `run.yaml:12: algorithms[0].args`."""

    source: SourceFile = SourceFile()
    keys: Keys = ()

    def at(self, *keys: str | int) -> Place:
        """Return the place of a nested value."""
        return Place(self.source, (*self.keys, *keys))

    def error(self, problem: str) -> ConfigError:
        """Return an error about this place."""
        return ConfigError(f"{self}: {problem}" if str(self) else problem)

    def __str__(self) -> str:
        path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.keys).removeprefix(".")
        lines = (self.source.lines.get(self.keys[:length]) for length in range(len(self.keys), -1, -1))
        line = next((f":{line}" for line in lines if line is not None), "")
        return ": ".join(filter(None, (f"{self.source.file}{line}", path)))


def read_yaml(path: Path | str) -> tuple[Any, SourceFile]:
    """Return the content of a YAML file and the line of each key; ConfigError says what is wrong with the file."""
    path = Path(path)
    text = _text(path)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, SourceFile(str(path))
        lines = dict(_lines(node, (), str(path), ()))
        return loader.construct_document(node), SourceFile(str(path), lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = ", ".join(filter(None, (error.context, error.problem)))
        raise ConfigError(f"{where}: not valid YAML: {problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error


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


def _lines(node: yaml.Node, keys: Keys, file: str, above: tuple[yaml.Node, ...]) -> Iterator[tuple[Keys, int]]:
    """Walk the YAML nodes, where each key still has its line."""
    if any(node is other for other in above):
        raise ConfigError(f"{file}:{node.start_mark.line + 1}: not valid here: it contains itself")
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*keys, index), item.start_mark.line + 1
            yield from _lines(item, (*keys, index), file, (*above, node))
    elif isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, value in node.value:
            line, name = key.start_mark.line + 1, str(key.value)
            if name in first and name != "<<":
                place = Place(SourceFile(file, {(*keys, name): line}), (*keys, name))
                raise place.error(f"duplicate key, first used in line {first[name]}; remove one")
            first[name] = line
            yield (*keys, name), line
            yield from _lines(value, (*keys, name), file, (*above, node))


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the core schema of YAML 1.2 in place of 1.1's."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own way to hold them


def _integer(_: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    return int(node.value, 0) if node.value.lstrip("+-")[:2] in ("0o", "0x") else int(node.value)


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first)
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
