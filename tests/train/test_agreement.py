"""What ranks agree on in a step, with ranks that are only played."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from torch.utils.data import DataLoader

from engine_core import State
from engine_core.errors import ArgumentError
from engine_core.ranks import Ranks
from engine_core.trainer.agreement import Agreement
from engine_core.trainer.data.index_order import IndexOrder


class Interrupted(Ranks):
    """A signal comes while this rank waits for its first message."""

    agreement: Any = None

    def table(self, numbers: Sequence[float]) -> list[list[float]]:
        """Return the numbers of this rank."""
        table = super().table(numbers)
        if self.agreement is not None:
            self.agreement.signal, self.agreement = 15, None
        return table


def test_a_signal_that_comes_while_a_rank_waits_counts_from_the_next_message() -> None:
    state = State(ranks=(ranks := Interrupted()))
    agreement = ranks.agreement = Agreement(state, set(), Any)
    agreement.agree_on_end()
    assert state.interrupted_by is None
    agreement.agree_on_end()
    assert state.interrupted_by == 15


def test_a_fit_forgets_what_ended_the_one_before() -> None:
    state = State()
    agreement = Agreement(state, set(), Any)
    state.stop_training()
    agreement.signal = 2
    agreement.agree_on_end()
    state.stop_requested = False
    agreement.begin_fit()
    assert (agreement.stop, agreement.signal) == (False, None)


def test_a_loader_that_gives_batches_out_of_order_is_refused_on_several_ranks() -> None:
    loader: Any = DataLoader([1, 2])
    loader.in_order = False
    IndexOrder(loader)
    with pytest.raises(ArgumentError, match="leave in_order out"):
        IndexOrder(loader, Ranks())
