"""What the algorithms that average weights share: which run an average belongs to, evaluation with it, saving."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch

from engine_core import Algorithm, Event, Logger, State
from engine_core.arguments import check_whole
from engine_core.errors import ArgumentError, EngineError
from engine_core.messages import warn
from engine_core.time import Timestamp

from .averages import Average, Rule, check_tensors
from .buffers import Buffers, check_buffers

__all__ = ["KeptAverage", "WeightAveraging", "check_count", "model_of"]


class KeptAverage(Algorithm):
    """Keep an average of the weights for one run, save it and take it back.

    Args:
        buffers: see `Average`; None: there are none.
    """

    def __init__(self, buffers: Buffers | None) -> None:
        self.buffers = None if buffers is None else check_buffers(buffers)
        self._average: Average | None = None
        self._count = 0  # how many weights it averages
        self._moved_at = Timestamp()
        self._state: weakref.ref[State] | None = None
        self._loaded: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the average and what belongs to it; empty if there is none."""
        if self._average is not None:
            return {"average": self._average.copies(), "count": self._count, "copied": self._average.copied()}
        return {**self._loaded, "average": _copies(self._loaded["average"])} if self._loaded else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with a saved average, in the next run that fits or evaluates.

        Raises:
            ArgumentError: (a ValueError) for a state that is not from `state_dict`; nothing is loaded from it.
            ArgumentTypeError: (a TypeError) for one whose values have other types.
            EngineError: during an evaluation, whose weights could not be restored.
        """
        if state:
            expected = ("average", "count")
            missing = [f"no {name!r}, but {', '.join(map(repr, state))}" for name in expected if name not in state]
            foreign = [f"an unknown key {name!r}" for name in state if name not in (*expected, "copied")]
            if wrong := missing + foreign:
                raise ArgumentError(
                    f"the state of {self.metadata.name} has {wrong[0]}: give what its state_dict() returned"
                )
            check_tensors(state["average"])
            check_count(state["count"])
        if self._average is not None and self._average.is_in:
            raise EngineError(f"{self.metadata.name} can't take another average while an evaluation uses this one")
        self._loaded = {**state, "average": _copies(state["average"])} if state else {}
        self._average = self._state = None

    def _is_of(self, state: State) -> bool:
        """Does the average belong to the run of `state`?"""
        return self._state is not None and self._state() is state

    def _current(self, state: State) -> Average | None:
        """Return the average of this run, if it has one; a loaded one becomes it."""
        if self._loaded:
            average = Average(model_of(state), self._loaded["average"], buffers=self.buffers)
            average.copy_again(self._loaded.get("copied", ()))  # older versions saved means of them
            self._hold(average, self._loaded["count"], state)
            self._loaded = {}
        return self._average if self._is_of(state) else None

    def _hold(self, average: Average, count: int, state: State) -> None:
        """Make an average of `count` weights that of the run of `state`."""
        self._average, self._count = average, count
        self._state, self._moved_at = weakref.ref(state), state.timestamp


class WeightAveraging(KeptAverage):
    """Keep an average of the weights and evaluate with it.

    A subclass says when the average is updated (`_is_due`) and how (`_rule`, or `_next` altogether).
    """

    @abstractmethod
    def _is_due(self, event: Event, state: State) -> bool:
        """Is the average started or updated now?"""

    def _rule(self) -> Rule:
        """Return how the average is updated, unless the subclass has a `_next` of its own."""
        raise NotImplementedError

    def _warning(self, state: State) -> str:
        """Return what the user has to know as this training starts without an average."""
        return ""

    def match(self, event: Event, state: State) -> bool:
        """If an average is due, exists at EVAL_START, is in the model at EVAL_END, or is to be told of at FIT_START."""
        if event is Event.EVAL_START:
            return bool(self._loaded) or self._is_of(state)
        if event is Event.EVAL_END:
            return self._average is not None and self._average.is_in and self._is_of(state)
        is_first = event is Event.FIT_START and not self._is_of(state)
        if is_first and (self._loaded or self._average is not None or self._warning(state)):
            return True
        return event in self.metadata.events and self._is_due(event, state)  # type: ignore[operator]

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> None:
        """Update the average; put it into the model for an evaluation, and the weights back after it."""
        if event is Event.EVAL_END:
            assert self._average is not None
            self._average.swap_out()
            return
        average = self._current(state)
        if event is Event.EVAL_START:
            assert average is not None
            average.check_model(model_of(state))
            average.swap_in()
            return
        if average is None:
            self._average = self._state = None
            if event is Event.FIT_START and (warning := self._warning(state)):
                warn(warning, UserWarning)
        if not self._is_due(event, state):
            return
        count = 0 if average is None else self._count
        self._hold(self._next(average, state), count + 1, state)

    def _next(self, average: Average | None, state: State) -> Average:
        """Return the average with the weights of now: the one so far, or a new one."""
        if average is None:
            return Average(model_of(state), buffers=self.buffers)
        average.update(self._rule(), self._count)
        return average

    def averaged_state_dict(self) -> dict[str, torch.Tensor] | None:
        """Return copies of the averages by name, for `load_state_dict` of a model; None if there is no average yet.

        They are parameters and persistent buffers, half-precision ones in float32, named as in the model without the
        wrappers of torch.compile and DistributedDataParallel; tied parameters are under each of their names.
        """
        if self._average is not None:
            return self._average.copies()
        return _copies(self._loaded["average"]) if self._loaded else None


def check_count(count: object) -> int:
    """Return how many weights an average is of, or raise if it can't be of so many."""
    return check_whole("count", count, "[1, inf)", "how many weights the average is of already")


def model_of(state: State) -> torch.nn.Module:
    """Return the model, or raise if there is none."""
    if state.model is None:
        raise ArgumentError("there is no model to average the weights of: give State the model")
    return state.model


def _copies(average: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies by name; one tensor under several names stays one."""
    made = {id(tensor): tensor.detach().clone() for tensor in average.values()}
    return {name: made[id(tensor)] for name, tensor in average.items()}
