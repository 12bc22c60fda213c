"""The generator of functions that draw and were given none."""

from __future__ import annotations

import torch

__all__ = ["private_unless"]


def private_unless(generator: torch.Generator | None) -> torch.Generator:
    """Return the generator that was given, or a private one, seeded by the system, so that the global one stays."""
    if generator is None:
        generator = torch.Generator()
        generator.seed()
    return generator
