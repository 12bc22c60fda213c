"""Does an algorithm work on batches of each form and size?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from engine_core.batch import Batches
from engine_core.event import Event
from engine_core.losses import with_reduction

from ..kit import AlgorithmKit, Fault
from ..probes import at_events
from ..runs import (
    Attempt,
    Loader,
    attempt,
    can_split,
    data_of,
    described,
    difference,
    required_by,
    train,
    trained,
    weights_of,
)


def test_batches(kit: AlgorithmKit) -> Fault | None:
    """Train on the same rows in tuples, lists and, with a model that has its own loss, dicts and nested batches."""
    batches = list(data_of(kit))
    if kit.make_loss() is None or not all(isinstance(b, (tuple, list)) and len(b) == 2 for b in batches):
        pytest.skip("make_batches returns no (inputs, targets) for a loss function, so there are no other forms to try")
    by_tuple = attempt(kit, [kit.make_algorithm()])
    for form, (pack, unpack) in _FORMS.items():
        settings: dict[str, Any] = {"data": Loader([pack(*batch) for batch in batches])}
        if unpack is not None:
            settings |= {"model": _OwnLoss(kit.make_model(), kit.make_loss(), unpack), "loss_fn": None}
        run = attempt(kit, [kit.make_algorithm()], **settings)
        if fault := _failure(run, f"with {form} batches"):
            return fault
        if run.outcome is not None and by_tuple.outcome is not None:
            then, now = by_tuple.outcome.applied, run.outcome.applied
            if then != now:
                return Fault(
                    f"with {form} batches validate raises nothing, and it runs {_times(now)}, "
                    f"with tuples {_times(then)}"
                )
    return None


def test_ragged_batches(kit: AlgorithmKit) -> Fault | None:
    """Train on batches of other sizes, and without ever matching; sizes that the model can't take are skipped."""
    whole = list(data_of(kit))
    single = [_rows(batch, row, row + 1) for batch in whole[:2] for row in range(2)]
    ragged = [*whole[:2], _rows(whole[0], 0, 3), single[0]]
    for batches, what in ((ragged, "with a smaller last batch"), (single, "with batches of one row")):
        settings: dict[str, Any] = {"data": Loader(batches), "max_duration": "1ep"}
        if attempt(kit, [], **settings).error is None:
            run = attempt(kit, [kit.make_algorithm()], **settings)
            if fault := _failure(run, what, may_refuse=batches is single):
                return fault
    return _without_a_match(kit)


def _rows(batch: Any, start: int, stop: int) -> Any:
    return Batches().part(batch, slice(start, stop))


def test_microbatches(kit: AlgorithmKit) -> Fault | None:
    """Train with whole batches and with microbatches, also of unequal size, and count how often it runs."""
    rows = Batches().rows(next(iter(data_of(kit))))
    whole, always = _counted(kit)
    if whole.outcome is None:
        raise whole.error or AssertionError
    for size in sorted({max(1, rows // 2), max(1, rows // 2 - 1)}):
        if not can_split(kit, size):
            continue
        run, fired = _counted(kit, microbatch_size=size)
        if fault := _failure(run, f"with microbatches of {size} rows", may_refuse=False):
            return fault
        for name, then in whole.outcome.applied.items():
            event, now = name.rpartition("/")[2], run.outcome.applied[name]  # type: ignore[union-attr]
            if now == 0 or (then == always[event] and now not in (fired[event], then)):
                return Fault(
                    f"with microbatches of {size} rows it runs at {now} of {fired[event]} {event}, "
                    f"with whole batches at {then} of {always[event]}"
                )
    return None


def _counted(kit: AlgorithmKit, **settings: Any) -> tuple[Attempt, Counter[str]]:
    """Train, and count how often each event comes."""
    fired: Counter[str] = Counter()
    counter = at_events(list(Event), lambda event, _: fired.update([event.name]))
    return attempt(kit, [kit.make_algorithm()], callbacks=[counter], **settings), fired


def _without_a_match(kit: AlgorithmKit) -> Fault | None:
    """Train with an algorithm whose `match` is always false: it has to change nothing."""
    algorithm: Any = kit.make_algorithm()
    cls = type(algorithm)
    try:
        algorithm.__class__ = type(cls.__name__, (cls,), {"match": lambda *_: False})
    except TypeError:
        return None  # the class forbids it
    try:
        trainer = trained(kit, [algorithm])
    except Exception as error:  # noqa: BLE001  what it is goes into the message
        return Fault(f"in a run in which match is always false {described(error)}", error)
    plain = train(kit, required_by(kit, [algorithm]))
    different = difference(weights_of(trainer.state), plain.weights)
    return Fault(f"in a run in which match is always false it changes the results: {different}") if different else None


def _failure(run: Attempt, what: str, *, may_refuse: bool = True) -> Fault | None:
    if run.outcome is not None:
        return None if run.outcome.is_finite() else Fault(f"{what} the weights become NaN or infinite")
    return None if run.refused and may_refuse else Fault(f"{what} {described(run.error)}", run.error)


def _times(applied: Counter[str]) -> str:
    return " and ".join(f"{times} times at {name}" for name, times in applied.items()) or "never"


class _OwnLoss(nn.Module):
    """A model with its own loss, for batches of a form that `unpack` turns into inputs and targets."""

    def __init__(self, model: nn.Module, loss_fn: Any, unpack: Callable[[Any], tuple[Any, Any]]) -> None:
        super().__init__()
        self.model = model
        self._loss_fn, self._unpack = loss_fn, unpack

    def forward(self, batch: Any) -> Any:
        """Return the outputs of the model."""
        return self.model(self._unpack(batch)[0])

    def loss(self, outputs: Any, batch: Any, reduction: str = "mean") -> Any:
        """Return the loss, also for each row."""
        loss_fn = self._loss_fn
        if reduction != "mean":
            loss_fn = with_reduction(loss_fn, reduction) or loss_fn
        return loss_fn(outputs, self._unpack(batch)[1])

    def eval_forward(self, batch: Any) -> tuple[Any, Any]:
        """Return outputs and targets."""
        return self(batch), self._unpack(batch)[1]


def _nested(inputs: Any, targets: Any) -> Any:
    return {"inputs": {"image": inputs, "row": torch.arange(len(inputs))}, "targets": (targets,)}


_FORMS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], tuple[Any, Any]] | None]] = {
    "tuple": (lambda inputs, targets: (inputs, targets), None),
    "list": (lambda inputs, targets: [inputs, targets], None),
    "dict": (
        lambda inputs, targets: {"inputs": inputs, "targets": targets},
        lambda batch: (batch["inputs"], batch["targets"]),
    ),
    "nested": (_nested, lambda batch: (batch["inputs"]["image"], batch["targets"][0])),
}
