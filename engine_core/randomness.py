"""The global random generators: seed them for a run, and leave them as they were where nobody may notice."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["preserve_generators", "seed_generators"]


def seed_generators(seed: int) -> None:
    """Seed torch (all devices), Python, and NumPy if the program uses it."""
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


@contextmanager
def preserve_generators(device: torch.device) -> Iterator[None]:
    """Put the global generators of torch, Python and NumPy back at the end."""
    numpy: Any = sys.modules.get("numpy")
    python_state, torch_state = random.getstate(), torch.get_rng_state()
    numpy_state = numpy.random.get_state() if numpy else None
    module: Any = getattr(torch, device.type, None) if device.type != "cpu" else None
    where = (device,) if device.type == "cuda" else ()  # there may be several
    device_state = module.get_rng_state(*where) if module is not None else None
    try:
        yield
    finally:
        random.setstate(python_state)
        torch.set_rng_state(torch_state)
        if numpy_state is not None:
            numpy.random.set_state(numpy_state)
        if module is not None:
            module.set_rng_state(device_state, *where)
