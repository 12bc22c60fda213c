"""The states of the global random generators of torch, NumPy and random, as far as they are installed."""

from __future__ import annotations

import importlib
import importlib.util
import random
from typing import Any

import torch


def generator_states() -> dict[str, Any]:
    """Return the state of each global generator by the library's name."""
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "random": random.getstate()}
    if (numpy := _numpy_random()) is not None:
        states["numpy"] = numpy.get_state()
    if torch.cuda.is_available():
        states["torch.cuda"] = torch.cuda.get_rng_state_all()
    return states


def set_generator_states(states: dict[str, Any]) -> None:
    """Put back what `generator_states` returned."""
    torch.set_rng_state(states["torch"])
    random.setstate(states["random"])
    if "numpy" in states:
        _numpy_random().set_state(states["numpy"])
    if "torch.cuda" in states:
        torch.cuda.set_rng_state_all(states["torch.cuda"])


def seed_parts(seed: int) -> None:
    """Seed each, so that parts are the same each time they are made."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a millisecond
    random.seed(seed)
    if (numpy := _numpy_random()) is not None:
        numpy.seed(seed)


def move_generators() -> None:
    """Draw a number from each."""
    torch.rand(())
    random.random()  # noqa: S311  not a secret
    if (numpy := _numpy_random()) is not None:
        numpy.random_sample()


def _numpy_random() -> Any:
    return importlib.import_module("numpy.random") if importlib.util.find_spec("numpy") else None
