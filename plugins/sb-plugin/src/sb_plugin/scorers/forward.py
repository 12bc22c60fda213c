"""Scores from a forward without gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from engine_core import Event, State
from engine_core.arguments import item_at
from engine_core.messages import warn
from engine_core.ranks import Ranks

from ..reuse import Reuse
from ..scoring import check_scalable, rank_correlation
from ..subject import Subject
from ..untouched import fresh_seed
from .contract import ByLoss, Log

__all__ = ["ByForward"]

WORTHLESS = 0.5
"""The rank correlation below which scores of scaled inputs cause a warning."""


class ByForward(ByLoss):
    """The loss that a forward on the whole batch gives each row.

    Args:
        reuse: `"off"`, or what to do if the step can't reuse the outputs of its linear layers: `"auto"`, `"on"`.
    """

    def __init__(self, ranks: Ranks, reuse: str = "off") -> None:
        super().__init__(ranks)
        self._reuse = None if reuse == "off" else Reuse(is_demanded=reuse == "on")
        self._has_compared = False
        self._refuses_scaled = False

    def check(self, subject: Subject, batch: Any) -> None:
        """Raise also if the input can't be scaled, or reuse is demanded but impossible."""
        super().check(subject, batch)
        if subject.manner.scale_factor != 1:
            check_scalable(item_at(batch, "input_key", subject.manner.input_key))
        if self._reuse is not None:
            self._reuse.check(subject.state.model, subject.precision)

    def scores(self, subject: Subject, state: State, batch: Any, generator: torch.Generator, log: Log) -> torch.Tensor:
        """Return the losses; the first time compare those of scaled inputs with the true ones."""
        return self.scores_of(subject, batch, self.number(subject, state, batch), generator, log)

    def scores_of(
        self, subject: Subject, batch: Any, number: int, generator: torch.Generator, log: Log
    ) -> torch.Tensor:
        """Return the losses of the first rows of each rank's batch, of all ranks together.

        A model that has refused a scaled input on any rank gets the full one from then on.

        Args:
            number: of rows that count on this rank.
        """
        ranks, reuse, factor = self.ranks, self._reuse, subject.manner.scale_factor
        seed = fresh_seed(generator) + ranks.rank

        def scored(*, at_full_size: bool) -> tuple[torch.Tensor, bool]:
            if not number and not ranks.is_sharded:
                return torch.empty(0, device=subject.device), True
            losses, took_scaled = subject.score(batch, seed, at_full_size=at_full_size)
            return losses[:number], took_scaled

        def first() -> tuple[torch.Tensor, bool]:
            return scored(at_full_size=self._refuses_scaled)

        if reuse is None or not number:
            losses, took = first()
        else:
            losses, took = reuse.recorded(first, subject.state.model, subject.count(batch), subject.precision)
        if factor != 1 and not self._refuses_scaled:
            self._refuses_scaled = ranks.any(not took)
            if self._refuses_scaled and took:  # the scores of all ranks have to be of one size
                losses, _ = scored(at_full_size=True)
        losses, _ = ranks.gather(losses)
        if factor != 1 and not self._refuses_scaled and not self._has_compared:
            self._has_compared = True
            true, _ = ranks.gather(scored(at_full_size=True)[0])
            correlation = rank_correlation(losses, true)
            if log is not None:
                log["rank_correlation"] = correlation
            if not ranks.rank:
                _warn_if_worthless(correlation, factor)
        return losses

    def keep(self, rows: torch.Tensor, k: int, state: State) -> None:
        """Note which rows the step trains on; a placeholder, which was not scored, reuses nothing."""
        if self._reuse is not None and rows.shape[0]:
            self._reuse.keep(rows)
        else:
            self.begin_fit()

    def begin_fit(self) -> None:
        """Forget what was kept for a step that an exception ended."""
        if self._reuse is not None:
            self._reuse.begin_fit()

    def wants(self, event: Event) -> bool:
        """BEFORE_FORWARD if there is something to reuse, and AFTER_FORWARD if it was."""
        return self._reuse is not None and self._reuse.awaited is event

    def react(self, event: Event, subject: Subject, state: State) -> None:
        """Start and end the reuse of what was computed."""
        if self._reuse is not None:
            self._reuse.react(event)

    def state_dict(self) -> dict[str, Any]:
        """Return what is known about the model and scaled inputs."""
        known = {"has_compared": self._has_compared, "refuses_scaled": self._refuses_scaled}
        return {name: True for name, is_known in known.items() if is_known}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._has_compared = state.get("has_compared") is True
        self._refuses_scaled = state.get("refuses_scaled") is True


def _warn_if_worthless(correlation: float, scale_factor: float) -> None:
    if correlation < WORTHLESS:
        warn(
            f"selective_backprop: with scale_factor={scale_factor} the losses of the scaled inputs rank the rows "
            f"differently from their true losses (rank correlation {correlation:.2f}), so rows are picked nearly at "
            "random: set scale_factor=1",
            UserWarning,
        )
