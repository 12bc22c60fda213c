"""Where random numbers come from if nobody gives a generator. Knows no engine."""

from __future__ import annotations

import torch

__all__ = ["seeded_by_the_system"]


def seeded_by_the_system() -> torch.Generator:
    """Return a new generator, seeded by the system; a kept one would draw the same numbers in forked processes."""
    generator = torch.Generator()
    generator.seed()
    return generator
