"""Random generators: the global ones, seeded for a run and left alone by all others, and those of algorithms."""

from __future__ import annotations

import random
import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from .algorithm import Algorithm
from .errors import ArgumentError, ArgumentTypeError
from .state import State

__all__ = ["OwnGenerator", "preserve_generators", "private_unless", "seed_generators"]


def seed_generators(seed: int) -> None:
    """Seed torch (all devices), Python, and NumPy if the program uses it."""
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def private_unless(generator: torch.Generator | None) -> torch.Generator:
    """Return what was given, or a new generator of the CPU, seeded by the system.

    A new one each time: one that is kept would draw the same numbers in forked processes.

    Raises:
        ArgumentTypeError: (a TypeError) for what is no generator, as a seed.

    Example:
        >>> given = torch.Generator()
        >>> private_unless(given) is given, private_unless(None) is private_unless(None)
        (True, False)
    """
    if generator is None:
        own = torch.Generator()
        own.seed()
        return own
    given: Any = generator
    if not isinstance(given, torch.Generator):
        remedy = f": torch.Generator().manual_seed({given!r})" if isinstance(given, int) else ""
        raise ArgumentTypeError(
            f"generator={given!r} ({type(given).__name__}) has to be a torch.Generator or None{remedy}"
        )
    return given


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


class OwnGenerator:
    """The generator of an algorithm: it begins anew with each run, from the run's seed, and is saved with it.

    It is one of the CPU, so that a run draws the same on each device.

    Example:
        >>> from engine_core import State
        >>> own = OwnGenerator("noise")
        >>> own.of(State(seed=1)).initial_seed() == State(seed=1).derive_seed("noise")
        True
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._run: weakref.ref[State] | None = None
        self._generator = torch.Generator()
        self._loaded: torch.Tensor | None = None

    def of(self, state: State, owner: Algorithm | None = None) -> torch.Generator:
        """Return the generator of the run of `state`.

        Args:
            owner: the algorithm that draws. The second of its class in the run draws from the seed of `"<name>-2"`,
                and so on, not the numbers of the first once more.
        """
        if self._run is None or self._run() is not state:
            self._run = weakref.ref(state)
            place = _place_of(owner, state)
            name = self._name if place == 0 else f"{self._name}-{place + 1}"
            self._generator = torch.Generator().manual_seed(state.derive_seed(name))
        if self._loaded is not None:
            self._generator.set_state(self._loaded)
            self._loaded = None
        return self._generator

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the state of the generator; before the first draw what was loaded, or nothing."""
        if self._loaded is not None:
            return {"generator": self._loaded}
        return {} if self._run is None else {"generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on drawing where the saved run stood, in whichever run draws next; a state of `{}` begins anew.

        Raises:
            ArgumentError: (a ValueError) for a state that `state_dict` can't have made.
        """
        if state and "generator" not in state:
            raise ArgumentError(f"the state of {self._name} has no 'generator', only {', '.join(map(repr, state))}")
        if not state:
            self._run = self._loaded = None
            return
        try:
            torch.Generator().set_state(state["generator"])
        except (TypeError, RuntimeError) as error:
            raise ArgumentError(
                f"the state of {self._name} has a 'generator' that is no state of one: {error}"
            ) from error
        self._loaded = state["generator"].clone()


def _place_of(owner: Algorithm | None, state: State) -> int:
    """Return how many of an algorithm's class are before it in the run; 0 for one that is in none."""
    alike = [algorithm for algorithm in state.algorithms if type(algorithm) is type(owner)]
    return next((place for place, algorithm in enumerate(alike) if algorithm is owner), 0)
