"""Random generators: the global ones, seeded for a run and otherwise left alone, and those of algorithms."""

from __future__ import annotations

import random
import secrets
import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from .algorithm import Algorithm
from .arguments import check_whole
from .errors import ArgumentError, ArgumentTypeError
from .state import State
from .time import as_number

__all__ = [
    "AnyGenerator",
    "GlobalGenerators",
    "OwnGenerator",
    "check_seed",
    "is_generator",
    "load_generator",
    "preserve_generators",
    "private_unless",
    "seed_generators",
    "state_of_generator",
]

AnyGenerator: TypeAlias = Any
"""A generator of torch, of Python (`random.Random`), or of NumPy (`Generator`, `RandomState`)."""


def check_seed(seed: Any) -> int:
    """Return the seed, or draw one if it is None."""
    if seed is None:
        return secrets.randbits(32)
    seed = as_number(seed)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ArgumentError(f"seed has to be an int from 0 to 2**63 - 1 or None, not {seed!r}")
    return seed


def seed_generators(seed: int) -> None:
    """Seed torch (all devices), Python, and NumPy if the program uses it."""
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


@dataclass(frozen=True)
class GlobalGenerators:
    """The states of the global generators of torch (CPU and one device), Python and NumPy, at one moment."""

    device: torch.device
    of_cpu: torch.Tensor
    of_device: torch.Tensor | None
    of_python: tuple[Any, ...]
    of_numpy: tuple[Any, ...] | None

    @classmethod
    def capture(cls, device: torch.device) -> GlobalGenerators:
        """Return the states as they are now; NumPy's if the program uses it."""
        numpy: Any = sys.modules.get("numpy")
        module, where = _module_of(device)
        return cls(
            device,
            torch.get_rng_state(),
            None if module is None else module.get_rng_state(*where),
            random.getstate(),
            numpy.random.get_state() if numpy else None,
        )

    def restore(self) -> None:
        """Make all generators continue from these states."""
        random.setstate(self.of_python)
        torch.set_rng_state(self.of_cpu)
        if self.of_numpy is not None:
            sys.modules["numpy"].random.set_state(self.of_numpy)
        module, where = _module_of(self.device)
        if module is not None and self.of_device is not None:
            module.set_rng_state(self.of_device, *where)

    def to_state(self) -> dict[str, Any]:
        """Return the states as tensors and plain values."""
        version, words, gauss = self.of_python
        state = {"torch": self.of_cpu, "python": [version, torch.tensor(words), gauss]}
        if self.of_device is not None:
            state[self.device.type] = self.of_device
        if self.of_numpy is not None:
            kind, key, *rest = self.of_numpy
            state["numpy"] = [kind, torch.tensor([int(word) for word in key]), *rest]
        return state

    @classmethod
    def of_state(cls, state: Mapping[str, Any], device: torch.device) -> GlobalGenerators:
        """Return the states from what `to_state` returned; a generator of another device keeps its present state."""
        now = cls.capture(device)
        try:
            version, words, gauss = state["python"]
            python = (version, tuple(words.tolist()), gauss)
            numpy = now.of_numpy
            if numpy is not None and "numpy" in state:
                kind, key, *rest = state["numpy"]
                _check_place(rest[0], key)
                numpy = (kind, key.tolist(), *rest)
            states = cls(device, state["torch"], state.get(device.type, now.of_device), python, numpy)
            states.restore()
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise ArgumentError(f"the states of the random generators are invalid: {error!r}") from error
        finally:
            now.restore()
        return states


def is_generator(item: Any) -> bool:
    """Is this a generator of torch, Python or NumPy, with a state?"""
    numpy: Any = sys.modules.get("numpy")  # without it there are none of its own
    theirs = (numpy.random.Generator, numpy.random.RandomState) if numpy else ()
    return isinstance(item, (torch.Generator, random.Random, *theirs)) and not isinstance(item, random.SystemRandom)


def state_of_generator(generator: AnyGenerator) -> Any:
    """Return the state of one generator as a tensor, or as plain values."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        version, words, gauss = generator.getstate()
        return [version, torch.tensor(words), gauss]
    state = generator.get_state(legacy=False) if hasattr(generator, "get_state") else generator.bit_generator.state
    return _plain(state)


def load_generator(generator: AnyGenerator, state: Any) -> None:
    """Make a generator continue from what `state_of_generator` returned."""
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        version, words, gauss = state
        generator.setstate((version, tuple(words.tolist()), gauss))
    elif hasattr(generator, "set_state"):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state


def _plain(state: Any) -> Any:
    """Return NumPy's state of a generator with lists in place of arrays."""
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    return [int(word) for word in state] if hasattr(state, "dtype") and state.shape else state


def _check_place(place: Any, key: torch.Tensor) -> None:
    """Raise for a position outside the words of NumPy's generator; reading there would crash the process."""
    if type(place) is not int or not 0 <= place <= 624 or tuple(key.shape) != (624,):
        raise ValueError(f"NumPy's generator has 624 words and can't be at {place!r} of {tuple(key.shape)}")


def private_unless(generator: torch.Generator | None) -> torch.Generator:
    """Return the given generator, or a new one on the CPU, seeded by the system.

    A new one each time: a kept one would draw the same numbers in forked processes.

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
    """Restore the global generators of torch, Python and NumPy at the end of the block."""
    states = GlobalGenerators.capture(device)
    try:
        yield
    finally:
        states.restore()


def _module_of(device: torch.device) -> tuple[Any, tuple[Any, ...]]:
    """Return torch's module for a device that has a generator of its own, and the arguments that select it."""
    if device.type == "cpu":
        return None, ()
    return getattr(torch, device.type, None), (device,) if device.type == "cuda" else ()  # there may be several


class OwnGenerator:
    """The generator of an algorithm: reseeded for each run, from the run's seed, and saved with it.

    It is on the CPU, so that a run draws the same numbers on every device.

    Args:
        seed: used instead of the run's, so that runs with different seeds draw the same numbers.
        shared: all ranks draw the same numbers, which suits one draw for a batch, and draws for the rows of all ranks
            together. False: each rank draws its own, which suits draws for each row.

    Example:
        >>> from engine_core import State
        >>> own = OwnGenerator("noise")
        >>> own.of(State(seed=1)).initial_seed() == State(seed=1).derive_seed("noise")
        True
    """

    def __init__(self, name: str, seed: int | None = None, *, shared: bool = True) -> None:
        self._name = name
        self._seed = seed
        self._shared = shared
        self._rank = 0
        self._run: weakref.ref[State] | None = None
        self._generator = torch.Generator()
        self._loaded: tuple[torch.Tensor, int] | None = None

    def of(self, state: State, owner: Algorithm | None = None) -> torch.Generator:
        """Return the generator of the run of `state`.

        Args:
            owner: the algorithm that draws. The second of its class in the run draws from the seed of `"<name>-2"`,
                and so on, so it does not repeat the first one's numbers.
        """
        if self._run is None or self._run() is not state:
            self._run, self._rank = weakref.ref(state), state.rank
            alike = [id(each) for each in state.algorithms if type(each) is type(owner)]
            place = alike.index(id(owner)) if id(owner) in alike else 0
            name = self._name if place == 0 else f"{self._name}-{place + 1}"
            seed = state.derive_seed(name, seed=self._seed, shared=self._shared)
            self._generator = torch.Generator().manual_seed(seed)
        if self._loaded is not None:
            saved, rank = self._loaded
            if self._shared or rank == state.rank:
                self._generator.set_state(saved)
            self._loaded = None
        return self._generator

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the generator, with its rank if only another one than rank 0 draws these numbers.

        Before the first draw it is what was loaded, or nothing.
        """
        if self._loaded is None and self._run is None:
            return {}
        saved, rank = self._loaded or (self._generator.get_state(), self._rank)
        return {"generator": saved} if self._shared or not rank else {"generator": saved, "rank": rank}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the saved run's numbers, in whichever run draws next; a state of `{}` starts over.

        A rank's own numbers are continued on that rank only; another one begins with the seed.
        """
        if state and "generator" not in state:
            raise ArgumentError(f"the state of {self._name} has no 'generator', only {', '.join(map(repr, state))}")
        if not state:
            self._run = self._loaded = None
            return
        try:
            torch.Generator().set_state(state["generator"])
        except (TypeError, RuntimeError) as error:
            raise ArgumentError(f"the state of {self._name} has an invalid 'generator': {error}") from error
        rank = check_whole("rank", state.get("rank", 0), "[0, inf)", f"whose numbers the state of {self._name} has")
        self._loaded = state["generator"].clone(), rank
