"""Read a YAML file as a tree of values, each with the line that it is from, and change it from the command line.

The dialect is YAML 1.2's core schema: `1e-3` is a number, and `off`, `no`, `1:30` and `2026-01-01` are text. Of configs
it knows where they name plugins, and that they may have one evaluation loader; the rest is for the check.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

import yaml

from ..arguments import path_of
from ..errors import ConfigError, did_you_mean, suggestion
from ..files import DEEPEST
from ..messages import join_words, readable

NODES = 100_000
"""How many values and keys a file may hold, each alias counted as what it stands for."""
LONGEST = 200
"""How many characters of a value a message shows."""
PLUGINS = ("algorithms", "callbacks", "loggers", "passes")
"""The lists in which a bare name stands for `{name: ...}`."""

Keys: TypeAlias = "tuple[str | int, ...]"
"""The path to a value, as in `("algorithms", 0, "args")`."""

_OVERRIDE = re.compile(
    r"(?P<path>(?:\[[^\[\]]*\]|\[(?![^\[\]]*\])|[^=\[])*?)(?P<operator>[+-]?=)(?P<value>.*)", re.DOTALL
)
_STEP = re.compile(r"(?:^|\.)([^.\[\]]+)|\[([^\[\]]+)\]")
_PATH = re.compile(rf"(?:{_STEP.pattern})+")
_INDEX = re.compile(r"-?[0-9]{1,9}")


@dataclass
class Node:
    """A scalar, or a list or mapping of nodes, with the line that it is from, or the text of an override."""

    value: Any
    origin: int | str | None = None

    def plain(self) -> Any:
        """Return the value without origins."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        return [node.plain() for node in self.value] if isinstance(self.value, list) else self.value

    def copied(self, origin: int | str | None = None) -> Node:
        """Return a copy, which has another origin if one is given."""
        value = self.value
        if isinstance(value, dict):
            value = {key: node.copied(origin) for key, node in value.items()}
        elif isinstance(value, list):
            value = [node.copied(origin) for node in value]
        return Node(value, origin or self.origin)

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
    """The file that values came from, and what it holds; no file for values made in Python.

    `overrides` are the changes made since, `added` what a recipe added and why, as lines to print.
    """

    file: str = ""
    root: Node = Node({})
    overrides: tuple[str, ...] = ()
    added: tuple[str, ...] = ()


class Place(NamedTuple):
    """A value's place in a file, as in `run.yaml:12: algorithms[0].args`."""

    source: SourceFile = SourceFile()
    keys: Keys = ()

    def at(self, *keys: str | int) -> Place:
        """Return the place of a nested value."""
        return Place(self.source, (*self.keys, *keys))

    def error(self, problem: str) -> ConfigError:
        """Return an error about this place; long words in it are cut, since they are of a file."""
        problem = re.sub(rf"\S{{{LONGEST + 1},}}", lambda long: f"{long[0][: LONGEST - 3]}...", problem)
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
        return ": ".join(filter(None, (f"{where} with {join_words(changes)}" if changes else where, self.path)))


def _option(override: str) -> str:
    """Return an override as it is written on the command line, for a message."""
    return f"--set {readable(override, LONGEST) or repr('')}"


def read_yaml(path: Path | str) -> SourceFile:
    """Return the content of a YAML file.

    Raises:
        ConfigError: (a ValueError) that says what is wrong with the file, and in which line.
    """
    return SourceFile(str(path), _read_text(_text(path_of(path)), str(path)))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        siblings = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        raise ConfigError(f"{path}: there is no such file{suggestion(path.name, siblings)}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error


def _read_text(text: str, file: str = "") -> Node:
    """Return what a text in YAML holds; errors name the file."""
    loader, problem, line = None, "", 1
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return Node(None if node is None else loader.tree(node).value)
    except yaml.reader.ReaderError as error:
        problem = f"the character {text[error.position]!r} is not allowed"
        line += text.count("\n", 0, error.position)
    except yaml.MarkedYAMLError as error:
        problem = ", ".join(filter(None, (error.context, error.problem)))
        line += (error.problem_mark or error.context_mark).line  # type: ignore[union-attr]
    except (ArithmeticError, RecursionError, ValueError) as error:  # of PyYAML, as for the escape "\UFFFFFFFF"
        problem = str(error)
        line += loader.get_mark().line if loader else 0
    raise Place(SourceFile(file, Node({}, line))).error(f"not valid YAML: {readable(problem, LONGEST)}")


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the core schema of YAML 1.2 in place of 1.1's, which makes nodes of ours.

    Merges (`<<`) and aliases are written out; what is too large or too deep is refused.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own way to hold them
    yaml_constructors: ClassVar[dict[Any, Any]] = {None: yaml.SafeLoader.construct_undefined}
    _count = 0

    def tree(self, node: Any, level: int = 0) -> Node:
        """Return a node of ours."""
        self._count += 1
        if level > DEEPEST or self._count > NODES:
            what = f"nested deeper than {DEEPEST} levels" if level > DEEPEST else f"more than {NODES} values"
            raise _invalid(node, f"{what}, with its aliases written out")
        value: Any
        if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
            value = self._mapping(node, level + 1)
        elif isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
            value = [self.tree(item, level + 1) for item in node.value]
        else:
            value = self._scalar(node)
        return Node(value, node.start_mark.line + 1)

    def _mapping(self, node: yaml.MappingNode, level: int) -> dict[Any, Node]:
        merged: dict[Any, Node] = {}
        own: dict[Any, Node] = {}
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                found = self.tree(value, level)
                for each in reversed(found.value if isinstance(found.value, list) else [found]):
                    if not isinstance(each.value, dict):
                        raise _invalid(value, "only mappings can be merged")
                    merged |= each.value
                continue
            if not isinstance(key, yaml.ScalarNode):
                raise _invalid(key, f"a key has to be text, not a {key.tag.rpartition(':')[2]}")
            if (name := self._scalar(key)) in own:
                raise _invalid(key, f"duplicate key {name!r}, first used in line {own[name].origin}; remove one")
            own[name] = Node(self.tree(value, level).value, key.start_mark.line + 1)
        return {**merged, **own}

    def _scalar(self, node: yaml.Node) -> Any:
        try:
            return self.construct_object(node)
        except (LookupError, ValueError):  # of PyYAML's constructors
            raise _invalid(node, f"{node.value!r:.100} is not a valid {node.tag.rpartition(':')[2]}") from None


def _invalid(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _integer_of(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text: str = loader.construct_scalar(node)
    number = int(text, 0) if text.lstrip("+-")[:2] in ("0o", "0x") else int(text)
    str(number)  # raises for a hexadecimal one that Python can't write out
    return number


_FLOAT = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
for _tag, _pattern, _first, _make in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""], yaml.SafeLoader.construct_yaml_null),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF"), yaml.SafeLoader.construct_yaml_bool),
    ("int", r"[-+]?[0-9]+|0o[0-9]+|0x[0-9a-fA-F]+", list("-+0123456789"), _integer_of),
    ("float", _FLOAT, list("-+.0123456789"), yaml.SafeLoader.construct_yaml_float),
    ("merge", r"<<", ["<"], yaml.SafeLoader.construct_undefined),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first)
    _Loader.yaml_constructors[f"tag:yaml.org,2002:{_tag}"] = _make
_Loader.yaml_constructors["tag:yaml.org,2002:str"] = yaml.SafeLoader.construct_yaml_str


def apply_overrides(source: SourceFile, overrides: Iterable[str]) -> SourceFile:
    """Return the content with changes such as `optimizer.args.lr=1e-3` or `algorithms+=flip` made in order.

    Raises:
        ConfigError: (a ValueError) with the text of the override that can't be read, or changes what is not there.
    """
    texts, root = tuple(overrides), source.root.copied()
    for text in texts:
        _Override(text).change(root)
    root.origin = None
    return source._replace(root=root, overrides=(*source.overrides, *texts))


class _Override:
    """One override: a path, an operator, and a value in YAML."""

    def __init__(self, text: str) -> None:
        self._text = text
        found = _OVERRIDE.fullmatch(text)
        if found is None:
            raise self._error((), "has to be KEY=VALUE, as in optimizer.args.lr=1e-3")
        self._operator, self._value, path = found["operator"], found["value"], found["path"].strip()
        self._steps = [key or entry for key, entry in _STEP.findall(path)]
        if not _PATH.fullmatch(path) or not path.isprintable() or len(self._steps) > DEEPEST:
            raise self._error((), f"'{readable(path, LONGEST)}' is not a path such as algorithms[flip].args.p")

    def change(self, node: Node, here: Keys = ()) -> None:
        """Change the node at `here`."""
        step = self._steps[len(here)]
        if node.value is None:
            node.value, node.origin = {}, self._text
        if not isinstance(node.value, (dict, list)):
            raise self._error(here, f"is {node.value!r:.{LONGEST}}, so there is no {step!r} in it")
        key = self._key_of(node.value, step, here)
        here = (*here, key)
        if len(here) == len(self._steps):
            self._end(node.value, key, here)
            return
        inner = node.value.setdefault(key, Node(None, self._text)) if isinstance(node.value, dict) else node.value[key]
        if isinstance(inner.value, str) and len(here) == 2 and here[0] in PLUGINS:
            inner.value = {"name": Node(inner.value, inner.origin)}
        elif here == ("eval_data",) and isinstance(inner.value, dict) and "target" in inner.value:
            inner.value = {"eval": Node(inner.value, inner.origin)}  # the label of a file's only loader
            if self._steps[1] in ("target", "args"):
                self._steps.insert(1, "eval")
        self.change(inner, here)

    def _error(self, keys: Keys, problem: str) -> ConfigError:
        return Place(SourceFile(root=Node({}, self._text)), keys).error(problem)

    def _key_of(self, outer: dict[Any, Node] | list[Node], step: str, here: Keys) -> Any:
        if isinstance(outer, dict):
            return next((key for key in outer if str(key) == step), step)  # 1 is a key too
        if not _INDEX.fullmatch(step):
            return self._index_of(outer, step, here)
        if not -len(outer) <= int(step) < len(outer):
            raise self._error(here, f"there is no entry [{int(step)}] among its {len(outer)}; the first is [0]")
        return int(step) % len(outer)

    def _index_of(self, entries: Sequence[Node], wanted: Any, here: Keys) -> int:
        """Return the index of the only entry that is the value, or has it as its name or target."""
        names = [names_of(entry.plain()) for entry in entries]
        found = [index for index, known in enumerate(names) if wanted in known]
        if len(found) == 1:
            return found[0]
        if found:
            places, how = join_words([f"[{index}]" for index in found]), "=null" if self._operator == "-=" else ""
            example = f"{Place(keys=(*here, found[-1])).path}{how}"
            raise self._error(here, f"{wanted!r} is at {places}; name one by its index, as in {example}")
        raise self._error(here, f"there is no entry {wanted!r}{did_you_mean(str(wanted), {str(k[-1]) for k in names})}")

    def _end(self, outer: Any, key: Any, here: Keys) -> None:
        """Set, add or take out at the end of the path."""
        try:
            new = _read_text(self._value).copied(self._text)
        except ConfigError as error:
            raise self._error(here, str(error).partition(": ")[2]) from error  # without ":1", of no use in one value
        if new.value is None and self._value.lstrip()[:1] in ("", "#"):
            problem = "has no value; write null to take it out, and quotes around text that begins with #"
            raise self._error(here, problem)
        if self._operator != "=":
            old = outer[key] if isinstance(outer, list) else outer.setdefault(key, Node(None, self._text))
            self._edit(old, new, here)
        elif new.value is None and isinstance(outer, dict) and key not in outer:
            raise self._error(here, f"is not there, so it can't be taken out{suggestion(key, map(str, outer))}")
        elif new.value is not None or len(here) == 1:  # a section without a value counts as absent
            outer[key] = new
        else:
            del outer[key]

    def _edit(self, old: Node, new: Node, here: Keys) -> None:
        """Add to a list the value, or those of a list; or take it out."""
        if old.value is None:
            old.value, old.origin = [], self._text
        if not isinstance(old.value, list):
            raise self._error(here, f"{self._operator} is for lists, and this is {old.plain()!r:.{LONGEST}}")
        if self._operator == "-=":
            del old.value[self._index_of(old.value, new.plain(), here)]
        else:
            old.value += new.value if isinstance(new.value, list) else [new]


def names_of(entry: Any) -> list[Any]:
    """Return an entry of a list, and by what it can be named; the shortest name is last."""
    names = [entry, *(entry[key] for key in ("name", "target") if key in entry)] if isinstance(entry, dict) else [entry]
    return [*names, *(name.rpartition(":")[2] for name in names if isinstance(name, str))]
