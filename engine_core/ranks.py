"""The processes of one run, as the loop and the plugins see them; here this process is alone. Knows no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from .batch import Batches
from .errors import RankError

if TYPE_CHECKING:
    import torch

__all__ = ["Ranks", "share"]

T = TypeVar("T")
Deal: TypeAlias = "Callable[[torch.Tensor], tuple[Any, bool]]"


def share(rows: int, rank: int, size: int) -> tuple[int, int]:
    """Return where a rank's part of the rows begins and ends; the first ranks have one more."""
    each, more = divmod(rows, size)
    start = rank * each + min(rank, more)
    return start, start + each + (rank < more)


class Ranks:
    """One process: what all ranks have is what this one has.

    All ranks call a method, in the same order, or none does: a call behind `if state.rank == 0`, or behind anything
    else that may differ between ranks, leaves the others waiting. `state.ranks` of a run on several processes has the
    same methods, so a plugin needs no second path.

    Attributes:
        rank: the number of this process, from 0.
        size: how many processes there are.
        is_sharded: does each rank have only a part of each weight? Then each forward waits for the other ranks.
        is_local: has the run `DDP(data="local")`? Then each loader gives the rows of its rank only.
        timeout_s: how long a rank waits for the others.
        batches: what a row is in this run, as `State.batches` says.

    Example:
        >>> ranks = Ranks()
        >>> ranks.sum(2), ranks.any(False), ranks.first("a")
        (2.0, False, 'a')
    """

    rank: int = 0
    size: int = 1
    is_sharded: bool = False
    is_local: bool = False
    timeout_s: float = 600.0
    batches: Batches = Batches()

    def __eq__(self, other: object) -> bool:
        """Are these the ranks of one run, seen from the same process?"""
        return isinstance(other, Ranks) and (type(other), other.rank, other.size) == (type(self), self.rank, self.size)

    def __hash__(self) -> int:
        return hash((type(self), self.rank, self.size))

    def gather(self, rows: torch.Tensor) -> tuple[torch.Tensor, slice]:
        """Return the rows (n, ...) of all ranks in the order of the global batch, and where this rank's are.

        The numbers of rows may differ between ranks, and may be 0; shapes beyond the first dimension may not.
        """
        return rows, slice(0, rows.shape[0])

    def table(self, numbers: Sequence[float]) -> list[list[float]]:
        """Return the numbers of each rank, as float64: counts are exact up to 2**53."""
        return [[float(number) for number in numbers]]

    def sum(self, number: float) -> float:
        """Return the sum over all ranks."""
        return sum(own for (own,) in self.table([number]))

    def any(self, flag: object) -> bool:
        """Return whether the flag is true on some rank."""
        return any(own for (own,) in self.table([bool(flag)]))

    def first(self, value: T) -> T:
        """Return rank 0's value, whatever `pickle` takes; tensors arrive on the CPU."""
        return value

    def decide(self, decision: Callable[[], T]) -> T:
        """Return what `decision` returns on rank 0, where alone it is called; see `first` for what that may be.

        Raises:
            RankError: on the other ranks, if it raised.
        """
        if self.size == 1:
            return decision()
        error: Exception | None = None
        value: Any = None
        if self.rank == 0:
            try:
                value = decision()
            except Exception as caught:  # noqa: BLE001  it is raised below, once the others know
                error = caught
        value, failed = self.first((value, None if error is None else f"{type(error).__name__}: {error}"))
        if error is not None:
            raise error
        if failed is not None:
            raise RankError(f"rank {self.rank} ends because rank 0 failed: {failed}")
        return value  # type: ignore[no-any-return]

    def is_lost(self) -> bool:
        """Return whether another rank is known to have ended; unlike the others, one rank may call it alone."""
        return False

    def has_ended(self) -> bool:
        """Return whether an exception has ended this run: its ranks can tell each other nothing more."""
        return False

    def each(self, value: Any) -> list[Any]:
        """Return the value of each rank, of the kinds that `first` takes."""
        return [value]

    def parts(self, batch: Any, rows: int, *, moves: bool = True) -> tuple[list[int], Deal]:
        """Return how many rows of the global batch each rank has, and a function that deals chosen ones anew.

        That function takes the positions (k,) of rows in what `gather` puts together, the same on all ranks. It returns
        this rank's part of them and whether that is a placeholder, which `State.is_placeholder` has to say: where there
        is no row for a rank, it keeps row 0 of its batch. Rank r gets part r of the rows; the numbers of rows differ by
        at most one, and rows that change ranks are sent. All ranks call the function, or none does.

        Args:
            batch: this rank's rows of the global batch, or its placeholder.
            rows: how many these are; 0 if the batch is a placeholder.
            moves: may rows change ranks? If not, each rank keeps those of its own that are chosen.

        Example:
            >>> import torch
            >>> counts, deal = Ranks().parts(torch.tensor([7, 8, 9]), 3)
            >>> counts, deal(torch.tensor([0, 2]))
            ([3], (tensor([7, 9]), False))
        """
        return [rows], lambda index: (self.batches.part(batch, index), False)
