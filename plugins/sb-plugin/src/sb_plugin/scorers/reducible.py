"""Scores by RHO-LOSS: the part of a loss that training can still remove."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from engine_core import State
from engine_core.batch import BatchKey
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core.objective import autocast_of
from engine_core.ranks import Ranks

from ..arguments import Maker, made_by
from ..scoring import Manner, score
from ..subject import Subject
from ..table import LossTable, check_ids
from .contract import Log
from .forward import ByForward
from .tables import REMEDY, ByTable

__all__ = ["ByReducible"]


class ByReducible(ByTable):
    """The loss that a forward gives each row, minus its irreducible loss: that of a model trained on other data.

    Source: Mindermann et al. 2022, Prioritized Training on Points that are Learnable, Worth Learning, and Not Yet
    Learnt, arXiv 2206.07137.

    Args:
        irreducible: the irreducible loss of each example by its id (examples,), or the other model, which is run in
            eval mode, or a function that makes either.
        index_key: where the ids are, for a table.
    """

    def __init__(self, ranks: Ranks, irreducible: Maker, index_key: BatchKey | None, device: torch.device) -> None:
        super().__init__(ranks, index_key)  # type: ignore[arg-type]  # without a table there are no ids
        self._given, self._device = irreducible, device
        self._forward = ByForward(ranks)
        self._made: LossTable | nn.Module | None = None
        self._length = 0

    def check(self, subject: Subject, batch: Any) -> None:
        """Raise also if there is neither a table that has these ids nor a model."""
        made = self._ready(subject.state)
        if isinstance(made, LossTable):
            super().check(subject, batch)
            self._check_known(self.ids_in(batch, subject.count(batch)))
        else:
            subject.check_rows(batch)
            subject.objective.check_row_losses(made)
        self._forward.check(subject, batch)

    def scores(self, subject: Subject, state: State, batch: Any, generator: torch.Generator, log: Log) -> torch.Tensor:
        """Return the reducible losses."""
        losses, made = self._forward.scores(subject, state, batch, generator, log), self._ready(state)
        if isinstance(made, LossTable):
            ids, _ = self.gathered_ids(subject, state, batch)
            self._check_known(ids)
            return losses - made.look_up(ids)
        number = self.number(subject, state, batch)
        irreducible = torch.empty(0, device=losses.device)
        if number:
            manner = Manner(bn="eval", autocast=autocast_of(state.precision, self._device))
            irreducible, _ = score(subject.objective, made, batch, state.timestamp.batch, manner)
        return losses - self.ranks.gather(irreducible[:number])[0]

    def _ready(self, state: State) -> LossTable | nn.Module:
        """Return the table or the model, made when it is first needed."""
        if self._made is None:
            made = made_by(self._given, state.derive_seed("selective_backprop/irreducible", shared=True))
            if isinstance(made, nn.Module):
                self._made = made.to(self._device)
            elif isinstance(made, torch.Tensor) and made.dim() == 1 and made.is_floating_point():
                if self._index_key is None:
                    raise ArgumentError(f"a table of irreducible losses needs index_key, where the ids are; {REMEDY}")
                self._made, self._length = LossTable(self._device), made.shape[0]
                self._made.load_state_dict({"table": made.detach().float().cpu()})
            else:
                found = f"a tensor {tuple(made.shape)} of {made.dtype}" if isinstance(made, torch.Tensor) else made
                raise ArgumentTypeError(
                    f"irreducible gives {found!r:.80}, not an nn.Module, or a tensor (examples,) with the loss of each"
                )
        return self._made

    def _check_known(self, ids: torch.Tensor) -> None:
        if (length := check_ids(ids)) > self._length:
            raise ArgumentError(
                f"irreducible has {self._length} losses, and this batch has the id {length - 1}: give one for each "
                "example, NaN for those to leave out"
            )
