"""The states of the global generators of torch, NumPy and random, where in use. Imports neither torch nor NumPy."""

from __future__ import annotations

import random
import sys
from typing import Any


def generator_states() -> dict[str, Any]:
    """Return the state of each global generator by the library's name."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy.random")
    states: dict[str, Any] = {} if torch is None else {"torch": torch.get_rng_state()}
    states["random"] = random.getstate()
    if numpy is not None:
        states["numpy"] = numpy.get_state()
    if torch is not None and torch.cuda.is_initialized():
        states["torch.cuda"] = torch.cuda.get_rng_state_all()
    return states


def moved_since(before: dict[str, Any]) -> list[str]:
    """Return the names of the generators whose states are not these any more."""
    after = generator_states()
    return [name for name in before if not same_state(before[name], after[name])]


def same_state(one: Any, other: Any) -> bool:
    """Are two states of a generator equal, in whatever form its library has them?"""
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same_state, one, other))
    return bool((one == other).all()) if hasattr(one, "shape") else bool(one == other)
