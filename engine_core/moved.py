"""Former names, found where they have moved with a warning, and only until the next minor version."""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

GROUP = "moved_from_engine_core"
"""The group of entry points whose names are former modules, and whose values are where their names are now."""

FORMER = {
    **dict.fromkeys(("audit", "callbacks.audit", "doctor", "scaffold", "testing"), "author"),
    **dict.fromkeys(("callbacks.gradient_norm", "callbacks.profiler", "callbacks.train_metrics"), "insight"),
    **dict.fromkeys(("diff", "report"), "report"),
    "embed": "",
}
"""The modules that have moved, and the extras that bring their distributions; they go with the next minor version."""
LOGITS = "transformers"
"""The extra that brings the loss of logits, which was in `loop`."""
_RENAMED = {"EmbeddedLoop": "Loop"}


def moved(module: str, *names: str, extra: str) -> Callable[[str], Any]:
    """Return a module's `__getattr__`, which takes some of its names from where an installed distribution has them.

    Args:
        names: those that have moved; none: all.
        extra: the extra of engine-core that installs them.

    Raises:
        ImportError: from `__getattr__`, if no installed distribution has them.
    """

    def find(name: str) -> Any:
        if name.startswith("__") or (names and name not in names):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        from importlib_metadata import entry_points  # noqa: PLC0415  no other import of the package needs it

        from .messages import warn  # noqa: PLC0415

        found = [*entry_points(group=GROUP, name=module)]
        if not found:
            raise ImportError(f"{module}.{name} has moved out of engine-core: pip install 'engine-core[{extra}]'")
        now = _RENAMED.get(name, name)
        value = getattr(found[0].load(), now)
        told = f"has moved: import {'it' if now == name else now} from {found[0].value}"
        warn(f"{module}.{name} {told}; the old name goes with the next minor version", DeprecationWarning)
        return value

    return find


class FormerModules:
    """Finds and makes the modules of `FORMER`, as the last of all finders, so that no other import pays for it."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return what Python makes a former module from."""
        is_former = name.startswith(f"{__package__}.") and name.partition(".")[2] in FORMER
        return ModuleSpec(name, self) if is_former else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python."""

    def exec_module(self, module: ModuleType) -> None:
        """Give the module what finds its names."""
        vars(module)["__getattr__"] = moved(module.__name__, extra=FORMER[module.__name__.partition(".")[2]])
