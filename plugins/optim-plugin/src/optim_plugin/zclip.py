"""ZClip as an algorithm: gradients whose norm is a spike, by the running mean and variance of norms, are shortened."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State
from engine_core.arguments import check_number, check_whole
from engine_core.errors import ArgumentError

from .clipping import mean_and_variance, spike_limit
from .gradients import gradient_norm, trained_parameters, with_gradient

__all__ = ["ZClip"]


class ZClip(Algorithm):
    """Shorten the gradients of a batch if their norm is a spike among the norms so far.

    Source: Kumar et al. 2025, ZClip: Adaptive Spike Mitigation for LLM Pre-Training, arXiv 2504.02507, see
    `spike_limit`. Mean and variance begin as those of the first norms, and follow by exponential averages, with the
    shortened norm where one was shortened. Norms that are not finite are left alone.

    Args:
        z_threshold: how many standard deviations above the mean a spike begins, above 0.
        alpha: the share of mean and variance that is kept in each step, in [0, 1).
        warmup: how many norms the first mean and variance are of, at least 2; nothing is shortened there.

    Example:
        >>> ZClip(z_threshold=3.0).alpha
        0.97
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="zclip",
        description="shorten gradients whose norm is a spike among the norms so far",
        events=(Event.AFTER_TRAIN_BATCH,),
        tags=("gradients", "running_norm"),
        conflicts=("@running_norm",),
        after=("@augmentation", "gradient_clipping"),
        writes=("model",),
        needs=("whole_weights",),
    )

    def __init__(self, z_threshold: float = 2.5, alpha: float = 0.97, warmup: int = 25) -> None:
        self.z_threshold = check_number(
            "z_threshold", z_threshold, "(0, inf)", "the deviations at which a spike begins"
        )
        self.alpha = check_number("alpha", alpha, "[0, 1)", "the share of mean and variance that is kept in each step")
        self.warmup = check_whole("warmup", warmup, "[2, inf)", "the norms of the first mean and variance")
        self._state: weakref.ref[State] | None = None
        self._first: list[float] = []
        self._mean, self._variance = 0.0, 0.0
        self._is_loaded = False

    def match(self, event: Event, state: State) -> bool:
        """In each step."""
        return event is Event.AFTER_TRAIN_BATCH

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> None:
        """Look at the norm, and shorten the gradients if it is a spike."""
        self._begin(state)
        gradients = [gradient for _, gradient in with_gradient(trained_parameters(state))]
        norm = gradient_norm(gradients)
        if not math.isfinite(norm):  # a loss scaler skips the step, or a guard judges it
            return
        if len(self._first) < self.warmup:
            self._first.append(norm)
            self._mean, self._variance = mean_and_variance(self._first)
            return
        limit = spike_limit(norm, self._mean, self._variance, self.z_threshold)
        if limit < norm:
            torch._foreach_mul_(gradients, limit / norm)
        self._mean = self.alpha * self._mean + (1 - self.alpha) * limit
        self._variance = self.alpha * self._variance + (1 - self.alpha) * (limit - self._mean) ** 2

    def state_dict(self) -> dict[str, Any]:
        """Return the running mean and variance, and the first norms."""
        if not self._first:
            return {}
        return {"first": list(self._first), "mean": self._mean, "variance": self._variance}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with saved ones in the next step."""
        if missing := [name for name in ("first", "mean", "variance") if state and name not in state]:
            raise ArgumentError(f"the state of zclip has no {missing[0]!r}: give what its state_dict() returned")
        self._first = [float(norm) for norm in state.get("first", ())]
        self._mean, self._variance = float(state.get("mean", 0.0)), float(state.get("variance", 0.0))
        self._state, self._is_loaded = None, True

    def _begin(self, state: State) -> None:
        """Forget another run's norms."""
        if not self._is_loaded and (self._state is None or self._state() is not state):
            self._first, self._mean, self._variance = [], 0.0, 0.0
        self._state, self._is_loaded = weakref.ref(state), False
