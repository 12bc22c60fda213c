"""Alias of `engine_core.loop`, by the name that it had; `EmbeddedLoop` is `Loop` now."""

from __future__ import annotations

from typing import Any

from .messages import warn


def __getattr__(name: str) -> Any:
    from . import loop  # noqa: PLC0415  it imports torch

    now = "Loop" if name == "EmbeddedLoop" else name
    if now not in loop.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn(
        f"{__name__} is engine_core.loop now: import {now} from there; the old name goes away soon", DeprecationWarning
    )
    return getattr(loop, now)
