"""Runs that a signal cuts, at a counted place or by a timer, and what has to be whole when they have ended."""

from __future__ import annotations

import linecache
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.nn.modules import module as torch_modules

from engine_core import Callback, Logger, State, Trainer
from engine_core.testing.probes import Places

_HOOKS = [name for name in vars(torch.nn.Linear(1, 1)) if name.endswith("_hooks")]
_GLOBAL_HOOKS = [name for name in vars(torch_modules) if name.startswith("_global_") and name.endswith("_hooks")]
_HANDLED = (signal.SIGINT, signal.SIGTERM)


class Jumps(Places):
    """A trace function that counts the other places: jumps backward, at which a line comes that is not the next.

    The end of a `with` comes back to its line too, and is none: Python looks for a signal only after `__exit__`. What
    is raised before leaves a lock of torch's locked for ever.
    """

    def __call__(self, frame: FrameType, kind: str, argument: Any) -> Any:
        last = frame.f_lineno

        def look(frame: FrameType, kind: str, argument: Any) -> Any:
            nonlocal last
            if kind == "line" and frame.f_lineno <= last and not _is_of_with(frame):
                sys.settrace(None) if self.passed == self._cut_at else None
                Places.__call__(self, frame, "call", argument)
            last = frame.f_lineno
            return look

        return look


def _is_of_with(frame: FrameType) -> bool:
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")


def count_places(run: Callable[[], object], kind: type[Places] = Places) -> int:
    """Return how many places of a kind there are in a run."""
    places = kind()
    _looking(places, run)
    return places.passed


def cut(run: Callable[[], object], place: int, kind: type[Places] = Places) -> BaseException | None:
    """Cut a run at a place; return what it raised, None if it has fewer places."""
    places = kind(place)
    with _swallowed() as swallowed:
        try:
            _looking(places, run)
        except BaseException as error:  # noqa: BLE001  what it is the test says
            return error
    assert swallowed or not places.where, f"nothing was raised, though it was cut {places.where}"
    return KeyboardInterrupt() if swallowed else None


def _looking(places: Places, run: Callable[[], object]) -> None:
    install = sys.settrace if isinstance(places, Jumps) else sys.setprofile
    install(places)
    try:
        run()
    finally:
        install(None)


def cut_after(run: Callable[[], object], seconds: float) -> BaseException | None:
    """Cut a run by a timer; return what it raised, None if it had ended before."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGALRM, handle)
    with _swallowed() as swallowed:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            run()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except BaseException as error:  # noqa: BLE001  as above
            return error
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, former)
    return KeyboardInterrupt() if swallowed else None


@contextmanager
def _swallowed() -> Iterator[list[Any]]:
    """Collect what is raised in finalizers, from which Python lets nothing out."""
    swallowed: list[Any] = []
    former, sys.unraisablehook = sys.unraisablehook, lambda what: swallowed.append(repr(what.exc_value))
    try:
        yield swallowed
    finally:
        sys.unraisablehook = former


class Steps(Callback):
    """Keeps what the current step began with, and the weights after each number of batches."""

    def __init__(self) -> None:
        self.weights: dict[int, list[torch.Tensor]] = {}
        self.batch: Any = None
        self.begun = -1

    def fit_start(self, state: State, logger: Logger) -> None:
        self.batch_end(state, logger)

    def batch_start(self, state: State, logger: Logger) -> None:
        self.batch = state.batch
        self.begun = state.timestamp.batch

    def batch_end(self, state: State, logger: Logger) -> None:
        assert state.model is not None
        self.weights[state.timestamp.batch] = [p.detach().clone() for p in state.model.parameters()]


def surroundings(state: State) -> dict[str, Any]:
    """Return what a cut run leaves as it found it."""
    assert state.model is not None
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    modules = dict(state.model.named_modules())
    return {
        "modes": {name: module.training for name, module in modules.items()},
        "statistics": {name: getattr(module, "track_running_stats", None) for name, module in modules.items()},
        "forwards": [name for name, module in modules.items() if "forward" in vars(module)],
        "hooks": {name: [list(getattr(module, kind)) for kind in _HOOKS] for name, module in modules.items()},
        "global hooks": [list(getattr(torch_modules, name)) for name in _GLOBAL_HOOKS],
        "parameters": [id(parameter) for parameter in state.model.parameters()],
        "buffers": [id(buffer) for buffer in state.model.buffers()],
        "grad mode": torch.is_grad_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), depth),
        "autocast cache": torch.is_autocast_cache_enabled(),
        "handlers": [signal.getsignal(number) for number in _HANDLED],
    }


def not_whole(state: State, before: dict[str, Any], steps: Steps, whole_run: Steps, data: list[Any]) -> list[str]:
    """Return which promises a cut run has broken.

    Args:
        before: the surroundings before the run.
        whole_run: the same run, not cut.
        data: copies of the loader's batches.
    """
    after = surroundings(state)
    found = [kind for kind in before if before[kind] != after[kind]]
    assert state.model is not None
    done = state.timestamp.batch
    near = [whole_run.weights[batch] for batch in (done, done + 1) if batch in whole_run.weights]
    for place, (name, weight) in enumerate(state.model.named_parameters()):
        if not any(torch.equal(weight, weights[place]) for weights in near):
            found.append(f"weight {name}")
    frozen = [not p.requires_grad for p in state.model.parameters()]
    if frozen != sorted(frozen, reverse=True):
        found.append("requires_grad")
    loader: Any = state.train_dataloader
    for was, now in zip(data, loader, strict=True):
        found += [f"loader's {i}" for i, (a, b) in enumerate(zip(was, now, strict=True)) if not _same(a, b)]
    if steps.begun == done and state.batch is not steps.batch:
        found.append("state.batch")
    return found


def broken_by(
    trainer: Trainer, whole_run: Steps, data: list[Any], run: Callable[[Callable[[], object]], Any]
) -> list[str]:
    """Return what a fit that `run` cuts has broken, and the next one; nothing if it ended before."""
    (steps,) = (callback for callback in trainer.state.callbacks if isinstance(callback, Steps))
    before = surroundings(trainer.state)
    error = run(trainer.fit)
    if error is None:
        return []
    found = [] if type(error) is KeyboardInterrupt and error.__cause__ is None else [f"{error!r} arrived"]
    found += not_whole(trainer.state, before, steps, whole_run, data)
    torch.set_grad_enabled(True)
    trainer.fit("2ba")
    assert trainer.state.loss is not None
    if not trainer.state.loss.isfinite():
        found.append("the next loss")
    return found + [
        f"{kind} in the next fit" for kind, was in before.items() if surroundings(trainer.state)[kind] != was
    ]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.requires_grad == other.requires_grad and torch.equal(one, other)
