"""What functions ask of the models they take."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from engine_core.errors import ArgumentError, ArgumentTypeError, did_you_mean

__all__ = ["check_model", "check_path", "module_at"]

Kind = TypeVar("Kind", bound=nn.Module)


def check_model(model: object) -> None:
    """Raise an ArgumentTypeError, with the words of `replace_modules`, unless this is a module."""
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"model: {type(model).__name__} is not a torch.nn.Module")


def check_path(argument: str, path: object) -> str | None:
    """Return the path of a module that an argument names; None: it names none."""
    if path is None or isinstance(path, str):
        return path
    raise ArgumentTypeError(f"{argument}={path!r} ({type(path).__name__}) has to be the path of a module, or None")


def module_at(model: nn.Module, argument: str, path: str, kind: type[Kind]) -> Kind:
    """Return the module of a class at the path that an argument names.

    Raises:
        ArgumentError: (a ValueError) if there is none, or it is of another class.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    if path not in modules:
        raise ArgumentError(
            f"{argument}={path!r} is not a module of {type(model).__name__}{did_you_mean(path, modules)}"
        )
    if not isinstance(found := modules[path], kind):
        own = [name for name, module in modules.items() if isinstance(module, kind)]
        raise ArgumentError(
            f"{argument}={path!r} is a {type(found).__name__}, not a {kind.__name__}, of which "
            f"{type(model).__name__} has {', '.join(map(repr, own)) or 'none'}"
        )
    return found
