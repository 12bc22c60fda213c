"""The draws that the stochastic blocks of a model share. Independent of the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Draws"]


class Draws:
    """What the stochastic blocks of a model share: a generator, and what is known about their outputs.

    A copy continues the draws of the original on its own.

    Args:
        refresh: called with this before each draw, to take over what a run has loaded in the meantime.

    Attributes:
        share: how much of their rates applies, in [0, 1], which grows in a warm-up.
        gives: by a block's name, the dtype of its output, or None if its shape differs from the input's; missing until
            the block has run.
    """

    def __init__(self, generator: torch.Generator, refresh: Callable[[Draws], None] | None = None) -> None:
        self.generator = generator
        self.share = 1.0
        self.gives: dict[str, torch.dtype | None] = {}
        self._refresh = refresh

    def applied(self, rate: float) -> float:
        """Return how much of a rate applies now, after taking over what was loaded."""
        if self._refresh is not None:
            self._refresh(self)
        return rate * self.share

    def kept(self, rate: float, n: int) -> torch.Tensor:
        """Draw n times whether to keep, with probability 1 - rate."""
        return torch.rand(n, generator=self.generator, device=self.generator.device) >= rate  # (n,)

    def __getstate__(self) -> dict[str, Any]:
        """Return what makes a copy; early torch can't copy a generator."""
        if self._refresh is not None:
            self._refresh(self)
        generator = self.generator
        return {
            "device": generator.device,
            "state": generator.get_state(),
            "gives": dict(self.gives),
            "share": self.share,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.generator = torch.Generator(state["device"])
        self.generator.set_state(state["state"])
        self.gives, self.share = state["gives"], state["share"]
        self._refresh = None
