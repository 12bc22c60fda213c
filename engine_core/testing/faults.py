"""What a check has found. A leaf; no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A broken rule: what was seen, as a sentence without its full stop, and the exception behind it."""

    seen: str
    cause: BaseException | None = None
