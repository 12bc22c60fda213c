"""Does the constructor refuse nonsense, and can instances be shown and compared?"""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from typing import Any, Literal, Union

import pytest

from ..kit import AlgorithmKit, Fault
from ..runs import train

_SCALARS: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool, "None": type(None)}
_LONGEST_REPR = 1000
_NO_ARGUMENT = "no_such_argument_of_the_conformance_kit"


def test_arguments(kit: AlgorithmKit) -> Fault | None:
    """Give the constructor an unknown argument and wrong values, then compare instances."""
    algorithm, given = recorded(kit)
    given, missing = _kept(algorithm) if given is None else (given, [])
    fault = None if missing else _wrong_arguments(type(algorithm), given)
    fault = fault or _comparison(kit)
    if fault is None and missing:
        pytest.skip(
            f"equality is fine, but it is not known with which {', '.join(missing)} "
            f"{type(algorithm).__name__} was made: let make_algorithm call the class itself, or keep them as attributes"
        )
    return fault


def test_repr(kit: AlgorithmKit) -> Fault | None:
    """Show two instances made alike, and one after a run, when it has something to show."""
    one, other, used = (kit.make_algorithm() for _ in range(3))
    train(kit, [used], max_duration="1ba")
    try:
        shown = {"repr": (repr(one), repr(one)), "repr after a run": (repr(used), repr(used))}
        again = repr(other)
    except Exception as error:  # noqa: BLE001
        return Fault(f"repr raised {type(error).__name__} ({error})", error)
    for what, (first, second) in shown.items():
        if first != second:
            return Fault(f"{what} is {first[:100]!r}, and the second time {second[:100]!r}")
        if wrong := _wrong_text(first, type(one).__name__):
            return Fault(f"{what} {wrong}")
    if shown["repr"][0] != again:
        return Fault(f"repr is {shown['repr'][0][:100]!r}, and of another instance made alike {again[:100]!r}")
    return None


def _wrong_text(shown: str, name: str) -> str | None:
    if address := re.search(r"\b0x[0-9a-fA-F]{6,}", shown):
        return f"holds the address {address[0]}: {shown[:100]!r}"
    if len(shown) > _LONGEST_REPR or "tensor(" in shown:
        return f"has {len(shown)} characters: {shown[:60]!r}..."
    return None if shown.startswith(name) else f"does not begin with {name}: {shown[:100]!r}"


def recorded(kit: AlgorithmKit) -> tuple[Any, inspect.BoundArguments | None]:
    """Return a new algorithm and its constructor's arguments; None if wrapping `__init__` can't record them."""
    cls: Any = type(kit.make_algorithm())
    signature, original = inspect.signature(cls), cls.__init__
    if original is object.__init__:
        return kit.make_algorithm(), None if signature.parameters else signature.bind()
    calls: dict[int, inspect.BoundArguments] = {}

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if type(self) is cls:
            calls[id(self)] = signature.bind(*args, **kwargs)
        original(self, *args, **kwargs)

    was_own = "__init__" in vars(cls)
    try:
        cls.__init__ = init
    except (TypeError, AttributeError):  # the class forbids it
        return kit.make_algorithm(), None
    try:
        algorithm = kit.make_algorithm()
    finally:
        if was_own:
            cls.__init__ = original
        else:
            del cls.__init__
    return algorithm, calls.get(id(algorithm))


def _kept(algorithm: Any) -> tuple[inspect.BoundArguments, list[str]]:
    """Return the required arguments kept as `name` or `_name`, and the names of the others."""
    signature = inspect.signature(type(algorithm))
    given, missing = signature.bind_partial(), []
    for name, parameter in signature.parameters.items():
        if parameter.default is not parameter.empty or parameter.kind in _VARIADIC:
            continue
        kept = next((own for own in (name, f"_{name}") if hasattr(algorithm, own)), None)
        if kept is None:
            missing.append(name)
        else:
            given.arguments[name] = getattr(algorithm, kept)
    return given, missing


def _wrong_arguments(make: Any, given: inspect.BoundArguments) -> Fault | None:
    parameters, hints = given.signature.parameters, _hints(make)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    wrong: list[tuple[str, Any]] = [] if takes_any else [(_NO_ARGUMENT, 1)]
    for name, parameter in parameters.items():
        now = given.arguments.get(name)
        kinds = _scalar_kinds(parameter, hints, now) if parameter.kind not in _VARIADIC else set()
        wrong += [(name, object())] if kinds else []
        wrong += [(name, float("nan"))] if float in kinds else []
    for name, value in wrong:
        shown = "object()" if type(value) is object else repr(value)
        changed = given.signature.bind_partial(*given.args, **given.kwargs)
        extra = {name: value} if name == _NO_ARGUMENT else {}
        changed.arguments.update({} if extra else {name: value})
        try:
            make(*changed.args, **changed.kwargs, **extra)
        except (TypeError, ValueError):
            continue
        except Exception as error:  # noqa: BLE001
            return Fault(f"{make.__name__}({name}={shown}) raised {type(error).__name__} ({error})", error)
        return Fault(f"{make.__name__}({name}={shown}) was accepted")
    return None


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _hints(make: type) -> dict[str, Any]:
    """Return the types of the constructor's arguments, as text where they can't be resolved."""
    init: Any = make.__init__  # type: ignore[misc]
    try:
        return typing.get_type_hints(init)
    except Exception:  # noqa: BLE001  what only type checkers import can't be resolved
        return dict(getattr(init, "__annotations__", {}))


def _scalar_kinds(parameter: inspect.Parameter, hints: dict[str, Any], given: Any) -> set[type]:
    """Return the plain types that an argument may have by its annotation, else by what was given, or its default.

    What a `key` may be depends on the batch, so `validate` checks it; without an annotation a flag accepts anything, as
    anything is true or false.
    """
    hint = hints.get(parameter.name)
    if parameter.name.endswith("key"):
        return set()
    if hint is None:
        return {type(parameter.default if given is None else given)} & {int, float, str}
    if isinstance(hint, str):
        members: list[Any] = [_SCALARS.get(part.strip()) for part in hint.split("|")]
    elif typing.get_origin(hint) is Literal:
        members = [type(value) for value in typing.get_args(hint)]
    else:
        members = list(typing.get_args(hint)) if typing.get_origin(hint) in (Union, types.UnionType) else [hint]
    kinds = set(members)
    return kinds - {type(None)} if kinds <= set(_SCALARS.values()) else set()


def _comparison(kit: AlgorithmKit) -> Fault | None:
    """Compare instances after a run, when they hold something."""
    one: Any = kit.make_algorithm()
    other: Any = kit.make_algorithm()
    for algorithm in (one, other):
        train(kit, [algorithm], max_duration="1ba")
    try:
        answers = {"a == a": one == one, "a == b": one == other, "a != b": one != other, "a == 1": one == 1}  # noqa: PLR0124
        hashes = None if type(one).__hash__ is None else (hash(one), hash(other))
    except Exception as error:  # noqa: BLE001
        return Fault(f"comparing two instances raised {type(error).__name__} ({error})", error)
    if wrong := [f"{how} is {answer!r}" for how, answer in answers.items() if not isinstance(answer, bool)]:
        return Fault(wrong[0])
    if not answers["a == a"] or answers["a == b"] is answers["a != b"] or answers["a == 1"]:
        return Fault(f"equality contradicts itself: {', '.join(f'{how}: {a}' for how, a in answers.items())}")
    if answers["a == b"] and hashes is not None and hashes[0] != hashes[1]:
        return Fault("two instances are equal and have different hashes")
    return None
