"""Read a YAML file as a tree of values, each with the line that it is from. Knows no config.

The dialect is YAML 1.2's core schema: `1e-3` is a number, and `off`, `no`, `1:30` and `2026-01-01` are text.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
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


class Node(NamedTuple):
    """A scalar, or a list or mapping of nodes, with the line that it is from, or the text of an override."""

    value: Any
    origin: int | str | None = None

    def plain(self) -> Any:
        """Return the value without origins."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        return [node.plain() for node in self.value] if isinstance(self.value, list) else self.value

    def at(self, key: str | int) -> Node | None:
        """Return the node at a key or index, None if there is none."""
        if isinstance(self.value, dict):
            return next((node for each, node in self.value.items() if str(each) == str(key)), None)
        is_there = isinstance(self.value, list) and isinstance(key, int) and key < len(self.value)
        return self.value[key] if is_there else None

    def origins(self) -> Iterator[int | str | None]:
        """Yield the origin of the node and of each in it."""
        yield self.origin
        inner = self.value.values() if isinstance(self.value, dict) else self.value
        for node in inner if isinstance(self.value, (dict, list)) else ():
            yield from node.origins()


class SourceFile(NamedTuple):
    """The file that values came from, and what it holds; no file for values made in Python."""

    file: str = ""
    root: Node = Node({})
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

    def nodes(self) -> list[Node]:
        """Return the nodes on the way to the value, as far as there are any."""
        found = [self.source.root]
        for key in self.keys:
            if (node := found[-1].at(key)) is None:
                break
            found.append(node)
        return found

    @property
    def origin(self) -> int | str | None:
        """The line of the value, or of the nearest around it that has one; the text of the override that gave it."""
        return next((node.origin for node in reversed(self.nodes()) if node.origin is not None), None)

    @property
    def path(self) -> str:
        """The keys as they are written, as in `algorithms[0].args`."""
        names = (f"[{key}]" if isinstance(key, int) else f".{readable(key, LONGEST)}" for key in self.keys)
        return "".join(names).removeprefix(".")

    def __str__(self) -> str:
        nodes, origin = self.nodes(), self.origin
        inside = nodes[-1].origins() if len(nodes) > len(self.keys) else ()
        changes = [_option(text) for text in dict.fromkeys(inside) if isinstance(text, str) and text != origin]
        line = "" if origin is None else f":{origin}"
        where = _option(origin) if isinstance(origin, str) else f"{self.source.file}{line}"
        return ": ".join(filter(None, (f"{where} with {enumerated(changes)}" if changes else where, self.path)))


def read_yaml(path: Path | str) -> SourceFile:
    """Return the content of a YAML file.

    Raises:
        ConfigError: (a ValueError) that says what is wrong with the file, and in which line.
    """
    return SourceFile(str(path), read_text(_text(path_of(path)), str(path)))


def read_text(text: str, file: str = "") -> Node:
    """Return what a text in YAML holds; errors name the file."""
    loader, problem, line = None, "", 1
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return Node(None) if node is None else _Tree(loader, file).of(node)._replace(origin=None)
    except yaml.reader.ReaderError as error:
        problem = f"the character {text[error.position]!r} is not allowed"
        line += text.count("\n", 0, error.position)
    except yaml.MarkedYAMLError as error:
        problem = ", ".join(filter(None, (error.context, error.problem)))
        line += (error.problem_mark or error.context_mark).line  # type: ignore[union-attr]
    except (ArithmeticError, RecursionError, ValueError) as error:  # of PyYAML, as for the escape "\UFFFFFFFF"
        if isinstance(error, ConfigError):
            raise
        problem = str(error)
        line += loader.get_mark().line if loader else 0
    raise Place(SourceFile(file, Node({}, line))).error(f"not valid YAML: {readable(problem, LONGEST)}")


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


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the core schema of YAML 1.2 in place of 1.1's."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own way to hold them


class _Tree:
    """Makes nodes of PyYAML's, with merges (`<<`) and aliases written out; what is too large or too deep is refused."""

    def __init__(self, loader: _Loader, file: str) -> None:
        self._loader, self._file, self._count = loader, file, 0

    def of(self, node: Any, keys: Keys = ()) -> Node:
        """Return a node of ours."""
        self._count += 1
        if len(keys) > LEVELS or self._count > NODES:
            what = f"nested deeper than {LEVELS} levels" if len(keys) > LEVELS else f"more than {NODES} values"
            raise self._error(node, (), f"{what}, with its aliases written out")
        value: Any
        if isinstance(node, yaml.ScalarNode):
            value = self._scalar(node)
        elif node.tag not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
            raise self._error(node, (), f"not valid YAML here: the tag {readable(node.tag, LONGEST)!r}")
        elif isinstance(node, yaml.MappingNode):
            value = self._mapping(node, keys)
        else:
            value = [self.of(item, (*keys, index)) for index, item in enumerate(node.value)]
        return Node(value, node.start_mark.line + 1)

    def _mapping(self, node: yaml.MappingNode, keys: Keys) -> dict[Any, Node]:
        merged: dict[Any, Node] = {}
        own: dict[Any, Node] = {}
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                found = self.of(value, (*keys, "<<"))
                for each in reversed(found.value if isinstance(found.value, list) else [found]):
                    if not isinstance(each.value, dict):
                        raise self._error(value, keys, "only mappings can be merged")
                    merged |= each.value
                continue
            name: Any = self._scalar(key) if isinstance(key, yaml.ScalarNode) else key
            if isinstance(name, (yaml.Node, bytes, dt.date)):
                raise self._error(key, keys, f"a key has to be text, not a {key.tag.rpartition(':')[2]}")
            if name in own:
                first = own[name].origin
                raise self._error(key, (*keys, name), f"duplicate key, first used in line {first}; remove one")
            own[name] = self.of(value, (*keys, name))._replace(origin=key.start_mark.line + 1)
        return {**merged, **own}

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        try:
            return self._loader.construct_object(node)
        except yaml.YAMLError:
            raise
        except Exception as error:  # what PyYAML's constructors let through
            kind = readable(node.tag.rpartition(":")[2], LONGEST)
            problem = f"not valid YAML: {node.value!r:.{LONGEST}} is not a valid {kind}"
            raise self._error(node, (), problem) from error

    def _error(self, node: yaml.Node, keys: Keys, problem: str) -> ConfigError:
        return Place(SourceFile(self._file, Node({}, node.start_mark.line + 1)), tuple(map(str, keys))).error(problem)


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
