"""Do the results depend on the place in the list where no order is declared?"""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from engine_core.event import Event

from ..kit import AlgorithmKit, Fault
from ..runs import attempt, described, events_of, make_trainer
from .execution import close


def test_order_independent(kit: AlgorithmKit) -> Fault | None:
    """Train with each of the others, in both orders of the list."""
    others = [type(other).__name__ for other in kit.make_others()]
    if not others:
        pytest.skip("there is no other algorithm: no installed one can be made without arguments")
    left_out: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what others warn about on the kit's tiny net is not the author's concern
        for place, name in enumerate(others):
            fault = _compared(kit, place, name) if _depends_on_the_list(kit, place) else None
            if fault is not None and (own_fault := _alone(kit, place)):
                left_out.append(f"{name} ({own_fault})")
            elif fault is not None:
                return fault
    if left_out:
        tried = len(others) - len(left_out)
        pytest.skip(f"left out because of their own faults: {', '.join(left_out)}; {tried} others are fine")
    return None


def _alone(kit: AlgorithmKit, place: int) -> str | None:
    """Train with one of the others alone, twice, and say what is wrong with it."""
    first, second = (attempt(kit, [kit.make_others()[place]], max_duration="1ep") for _ in range(2))
    for run in (first, second):
        if run.error is not None:
            return f"alone too {described(run.error)}"
    if first.outcome is None or second.outcome is None:
        return None
    different = close(first.outcome, second.outcome)
    return f"two runs with it alone differ: {different}" if different else None


def _pair(kit: AlgorithmKit, place: int) -> tuple[Any, Any]:
    return kit.make_algorithm(), kit.make_others()[place]


def _depends_on_the_list(kit: AlgorithmKit, place: int) -> bool:
    """Is there an event at which both run, in an order that the list decides?"""
    one, other = _pair(kit, place)
    shared = set(events_of(one)) & set(events_of(other))
    orders = []
    for algorithms in ((one, other), (other, one)):
        try:
            with make_trainer(kit, algorithms) as trainer:
                orders.append([[e.name for e in trainer.engine.explain(event)] for event in Event if event in shared])
        except Exception:  # noqa: BLE001  refused, or worse; whether always shows later
            return True
    return orders[0] != orders[1]


def _compared(kit: AlgorithmKit, place: int, name: str) -> Fault | None:
    first, second = (attempt(kit, _pair(kit, place)[::step], max_duration="1ep") for step in (1, -1))
    own = type(kit.make_algorithm()).__name__
    orders = (f"[{own}, {name}]", f"[{name}, {own}]")
    for run, order in ((first, orders[0]), (second, orders[1])):
        if run.outcome is None and not run.refused:
            return Fault(f"with {order} {described(run.error)}", run.error)
    if first.refused is not second.refused:
        refused = orders[0] if first.refused else orders[1]
        return Fault(f"{refused} is refused, but the other order of the list is not")
    if first.outcome is None or second.outcome is None:
        return None
    different = close(first.outcome, second.outcome)
    return Fault(f"{orders[0]} and {orders[1]} end with different results: {different}") if different else None
