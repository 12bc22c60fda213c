"""Move hooks to a module's replacement; those that a module registered on itself stay with it."""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from contextlib import ExitStack
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from engine_core.errors import ArgumentError

KINDS = {
    "_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",),
    "_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    "_backward_pre_hooks": (),
    "_backward_hooks": (),
    "_state_dict_pre_hooks": (),
    "_state_dict_hooks": (),
    "_load_state_dict_pre_hooks": (),
    "_load_state_dict_post_hooks": (),
}
"""Where a module keeps its hooks by id, and where it keeps how to call them; torch has no public way."""

FLAG = "_is_full_backward_hook"


def has_hooks(module: nn.Module) -> bool:
    """Was a hook registered by anything but torch and the module itself?"""
    return any(_moving(module, kind) for kind in KINDS)


def move_hooks(old: nn.Module, new: nn.Module, name: str, undo: ExitStack) -> None:
    """Move the hooks that user code registered on a module being replaced.

    Their handles keep working, because whole dictionaries move. Handles of hooks that stay with the module, and of
    those that `new` already had, no longer remove anything.

    The hooks that `new` already had run inside those that move: after them on the way in, before on the way out.

    Raises:
        ArgumentError: if full and non-full backward hooks would end up on one module.
    """
    for kind, extras in KINDS.items():
        moving = _moving(old, kind)
        if not moving:
            continue
        if kind == "_backward_hooks":
            _move_flag(old, new, name, undo)
        for hook in moving.values():
            if getattr(hook, "with_module", False) and hook.module() is old:  # it is called with the module it is on
                undo.callback(setattr, hook, "module", hook.module)
                hook.module = weakref.ref(new)
        for place in (kind, *extras):
            _move_dictionary(old, new, place, set(moving), undo)


def machinery_of(module: nn.Module) -> list[str]:
    """Return what was put on a module from outside and can't move as a hook, in words for a message."""
    if parametrize.is_parametrized(module):
        names = module.get_submodule("parametrizations").named_children()
        return [f"a parametrization of {name!r}" for name, _ in names]
    found = ["a forward() that was set on it"] if "forward" in vars(module) else []
    for kind in KINDS:
        for hook in getattr(module, kind).values():
            inner = _function_of(hook)
            if _origin(inner) == "torch" and getattr(inner, "__self__", None) is not module:
                found.append(f"a torch hook, {getattr(inner, '__name__', type(inner).__name__)}")
    return found


def _moving(module: nn.Module, kind: str) -> dict[int, Any]:
    return {key: hook for key, hook in getattr(module, kind).items() if not _is_own(_function_of(hook), module)}


def _function_of(hook: Any) -> Any:
    function = hook.hook if hasattr(hook, "with_module") else hook
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _origin(function: Any) -> str:
    return str(getattr(function, "__module__", None) or type(function).__module__).partition(".")[0]


def _is_own(function: Any, module: nn.Module) -> bool:
    """Was this registered by torch or the module's own class, not by user code?"""
    if _origin(function) == "torch" or getattr(function, "__self__", None) is module:
        return True
    source, name = getattr(function, "__module__", None), str(getattr(function, "__qualname__", ""))
    return any(source == cls.__module__ and name.startswith(f"{cls.__qualname__}.") for cls in type(module).__mro__)


def _move_dictionary(old: nn.Module, new: nn.Module, place: str, moving: set[int], undo: ExitStack) -> None:
    hooks, theirs = getattr(old, place), getattr(new, place)
    content = OrderedDict(hooks)
    outer = {key: hook for key, hook in content.items() if key in moving}
    inner = {key: hook for key, hook in theirs.items() if key not in moving}

    def restore() -> None:
        hooks.clear()
        hooks.update(content)
        setattr(old, place, hooks)
        setattr(new, place, theirs)

    undo.callback(restore)
    hooks.clear()
    hooks.update({**outer, **inner} if "_pre_" in place else {**inner, **outer})
    setattr(new, place, hooks)
    setattr(old, place, OrderedDict((key, hook) for key, hook in content.items() if key not in moving))


def _move_flag(old: nn.Module, new: nn.Module, name: str, undo: ExitStack) -> None:
    """Make `new` call its backward hooks as `old` did."""
    is_full, theirs = (getattr(module, FLAG) for module in (old, new))
    if getattr(new, "_backward_hooks") and theirs is not is_full:  # noqa: B009  as above
        raise ArgumentError(
            f"{name!r} and the {type(new).__name__} that replaces it have backward hooks of two kinds, full and "
            "non-full; register only full ones (register_full_backward_hook)"
        )
    undo.callback(setattr, new, FLAG, theirs)
    setattr(new, FLAG, is_full)
