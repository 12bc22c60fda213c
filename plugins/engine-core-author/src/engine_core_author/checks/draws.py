"""Are the global random generators left alone?"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from engine_core.event import Event
from engine_core.messages import join_words
from engine_core.state import State

from ..generators import generator_states, moved_since, same_state
from ..kit import AlgorithmKit, Fault
from ..probes import Around, Prober, at_events
from ..runs import SEED, events_of, make_trainer, state_of, train, trained
from .arguments import recorded


def test_no_global_random_draw(kit: AlgorithmKit) -> Fault | None:
    """Compare the generators around everything that an algorithm is asked to do in a run."""
    found: list[str] = []
    with _compared("the constructor", found):
        algorithm: Any = kit.make_algorithm()
    fresh: Any = kit.make_algorithm()
    listed = events_of(algorithm)

    def look(event: Event, state: State) -> None:
        if event in listed:
            with _compared(f"match at {event.name}", found):
                algorithm.match(event, state)
        if event is Event.AFTER_DATALOADER and hasattr(algorithm, "validate"):
            with _compared("validate", found):
                algorithm.validate(state)

    def save(_event: Event, _state: State) -> None:
        with _compared("state_dict", found):
            state_of(algorithm)

    @contextmanager
    def around(_algorithm: Any, _name: str, event: Event, _state: State) -> Iterator[None]:
        with _compared(f"apply at {event.name}", found):
            yield

    watchers = [Around([algorithm], around), at_events([Event.BATCH_END], save)]
    trained(kit, [Prober(look), algorithm], callbacks=watchers)
    with make_trainer(kit, [fresh]), _compared("load_state_dict", found):
        if hasattr(fresh, "load_state_dict"):
            fresh.load_state_dict(state_of(algorithm))
    return Fault(found[0]) if found else _of_its_own(kit, algorithm)


def _of_its_own(kit: AlgorithmKit, used: Any) -> Fault | None:
    """Compare the generators that an instance owns after a run with those after a run with another seed.

    If make_algorithm passes a seed or a generator, its author has chosen them.
    """
    if not (owned := _owned(used)):
        return None
    other, given = recorded(kit)
    if given is not None and any("seed" in name or "generator" in name for name in given.arguments):
        return None
    train(kit, [other], seed=SEED + 1)
    then = _owned(other)
    same = sorted(name for name in owned if name in then and same_state(owned[name], then[name]))
    return Fault(f"its generator {same[0]} is the same after two runs with different seeds") if same else None


def _owned(algorithm: Any) -> dict[str, Any]:
    """Return the states of those generators among the attributes that were drawn from."""
    found: dict[str, Any] = {}
    for name, value in getattr(algorithm, "__dict__", {}).items():
        if isinstance(value, torch.Generator):
            state, fresh = value.get_state(), torch.Generator(value.device).manual_seed(value.initial_seed())
            found |= {} if same_state(state, fresh.get_state()) else {name: state}
        elif isinstance(value, random.Random):
            found[name] = value.getstate()
        elif hasattr(value, "bit_generator"):  # NumPy's
            found[name] = repr(value.bit_generator.state)
    return found


@contextmanager
def _compared(what: str, found: list[str]) -> Iterator[None]:
    _draw_from_each()  # so that reseeding them shows too
    before = generator_states()
    yield
    if moved := moved_since(before):
        found.append(f"{what} moved the global generator of {join_words(moved)}")


def _draw_from_each() -> None:
    torch.rand(())
    random.random()  # noqa: S311  not a secret
    if importlib.util.find_spec("numpy") is not None:
        importlib.import_module("numpy.random").random_sample()
    if torch.cuda.is_available():
        torch.cuda.init()  # type: ignore[no-untyped-call]  # only then its generator is compared too
