"""The loss of each example, by its id, and for how many visits it is kept. Independent of the engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from engine_core.arguments import check_whole
from engine_core.errors import ArgumentError, ArgumentTypeError

__all__ = ["LossTable", "StaleScores", "check_ids", "home"]

_LARGEST = 2**28  # ids; a table of 1 GiB
_ON_DEVICE = 64 * 2**20 // 4  # ids; a table of 64 MiB
_FEW = 512  # ids, for which Python is faster than torch's many calls
_WHOLE = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


class LossTable:
    """The loss of each example, by its id; grows as ids appear.

    Args:
        device: where the table lives while it has at most 64 MiB; a larger one lives on the CPU.

    Example:
        >>> table = LossTable("cpu")
        >>> table.record(torch.tensor([3, 1]), torch.tensor([0.5, 2.0]))
        >>> table.look_up(torch.tensor([0, 1, 3]))
        tensor([   inf, 2.0000, 0.5000])
    """

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.device(device)
        self.losses = torch.empty(0, dtype=torch.float32, device=self._device)
        """Position i belongs to id i; +inf if it is unseen, NaN if the last loss was not finite."""

    def __len__(self) -> int:
        return self.losses.shape[0] - int(self.losses.isposinf().sum())

    def places(self, ids: torch.Tensor) -> torch.Tensor:
        """Return `ids` (n,) as positions in the table, which grows to hold them; one read from the device.

        Raises:
            ArgumentTypeError: (a TypeError) for anything but a tensor of whole numbers.
            ArgumentError: (a ValueError) for a tensor of another shape, and for ids out of range.
        """
        length = check_ids(ids)
        self.losses = _grown(self.losses, length, math.inf, self._device)
        return ids.to(self.losses.device, torch.int64)

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        """Return what is recorded for each id (n,), on the device of `ids`; +inf for an unseen one."""
        places = self.places(ids)
        return self.losses.index_select(0, places).to(ids.device)

    @torch.no_grad()
    def record(
        self, ids: torch.Tensor, losses: torch.Tensor, momentum: float = 0.0, *, keep_finite: bool = False
    ) -> None:
        """Set the loss of each id to `momentum * old + (1 - momentum) * loss`.

        Without a finite old one it is `loss` itself. A loss that is not finite is recorded as NaN. An id that occurs
        several times counts once, with the mean of its losses.

        Args:
            losses: one for each id (n,).
            momentum: within [0, 1).
            keep_finite: skip losses that are not finite, if the id has another one, old or new.
        """
        places = self.places(ids)
        if losses.shape != ids.shape:
            raise ArgumentError(
                f"losses of shape {tuple(losses.shape)} for ids of shape {tuple(ids.shape)}: give one for each id"
            )
        new = losses.to(places.device, torch.float32)
        if not _are_few_and_distinct(ids):
            places, new = _means(places, new, finite_ones=keep_finite)
        old = self.losses.index_select(0, places)
        if momentum:
            known = old < math.inf  # false for NaN too
            new = (momentum * old + (1 - momentum) * new).where(known, new)
        instead = old.nan_to_num(nan=math.nan, posinf=math.nan) if keep_finite else math.nan
        self.losses.index_copy_(0, places, new.where(new.isfinite(), instead))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return a copy of the table up to the highest id that has been seen."""
        seen = (self.losses != math.inf).nonzero()
        length = int(seen[-1]) + 1 if seen.shape[0] else 0
        return {"table": self.losses[:length].clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with a saved table.

        Raises:
            ArgumentError: (a ValueError) for a state that is not from `state_dict`; nothing is loaded from it.
        """
        table = _saved_column(state, "table", torch.float32)
        if bool((table == -math.inf).any()):
            raise ArgumentError("'table' in the state has -inf, but losses that are not finite are saved as NaN")
        self.losses = table.to(home(self._device, table.shape[0]), copy=True)


class StaleScores:
    """The score of each example, by its id, which is due again every `refresh` visits.

    Args:
        refresh: 3 scores an example at its visits 1, 4, 7 and so on; 1 at each.
        device: where the tables live while each has at most 64 MiB; larger ones live on the CPU.

    Example:
        >>> scores, ids = StaleScores(2, "cpu"), torch.tensor([4, 7])
        >>> scores.due(ids)
        tensor([0, 1])
        >>> scores.scores(ids, torch.tensor([0, 1]), torch.tensor([0.5, 2.0]))
        tensor([0.5000, 2.0000])
        >>> scores.due(ids)
        tensor([], dtype=torch.int64)
    """

    def __init__(self, refresh: int, device: torch.device | str) -> None:
        self.refresh = check_whole("refresh", refresh, "[1, inf)", "visits of an example from one score to the next")
        self._longest = min(self.refresh, 2**31) - 1  # visits are int32 and would wrap around beyond it
        self._device = torch.device(device)
        self._table = LossTable(device)
        self._visits = torch.empty(0, dtype=torch.int32, device=self._device)  # since the last score

    def due(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the positions in a batch that have to be scored now, ascending.

        If that is only one of several rows, the one that has waited longest is added: BatchNorm in train mode can't
        take a batch of one row.
        """
        places = self._places(ids)
        waited = self._visits.index_select(0, places)
        unseen = self._table.losses.index_select(0, places) == math.inf
        due = (unseen | (waited >= self._longest)).nonzero().flatten()
        if due.shape[0] == 1 < ids.shape[0]:
            other = waited.index_fill(0, due, -1).argmax(0, keepdim=True)
            due = torch.cat([due, other]).sort().values
        return due.to(ids.device)

    def scores(self, ids: torch.Tensor, positions: torch.Tensor, losses: torch.Tensor) -> torch.Tensor:
        """Record the losses of the rows that were scored, count a visit of each id, and return all scores (n,).

        Args:
            positions: of the rows that were scored, what `due` returned.
            losses: one for each position.
        """
        places = self._places(ids)
        scored = ids.index_select(0, positions)
        self._table.record(scored, losses)
        self._visits.index_copy_(0, places, self._visits.index_select(0, places) + 1)
        self._visits.index_fill_(0, scored.to(places), 0)
        return self._table.losses.index_select(0, places).to(ids.device)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return copies of the scores and of the visits since them, up to the highest id that has a score."""
        state = self._table.state_dict()
        return {**state, "visits": self._visits[: state["table"].shape[0]].clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with saved scores.

        Raises:
            ArgumentError: (a ValueError) for a state that is not from `state_dict`; nothing is loaded from it.
        """
        visits, table = _saved_column(state, "visits", torch.int32), _saved_column(state, "table", torch.float32)
        if visits.shape != table.shape:
            raise ArgumentError(
                f"the state has {visits.shape[0]} 'visits' for a 'table' of {table.shape[0]}: they have to match"
            )
        if bool((visits < 0).any()):
            raise ArgumentError("'visits' in the state has negative numbers, but visits count from 0")
        self._table.load_state_dict(state)
        self._visits = visits.to(home(self._device, visits.shape[0]), copy=True)

    def _places(self, ids: torch.Tensor) -> torch.Tensor:
        places = self._table.places(ids)
        self._visits = _grown(self._visits, self._table.losses.shape[0], 0, self._device)
        return places


def home(device: torch.device, length: int) -> torch.device:
    """Return where a table of `length` ids lives: on `device` up to 64 MiB, then on the CPU.

    Example:
        >>> home(torch.device("cuda"), 60_000), home(torch.device("cuda"), 60_000_000)
        (device(type='cuda'), device(type='cpu'))
    """
    return device if length <= _ON_DEVICE else torch.device("cpu")


def _grown(column: torch.Tensor, length: int, empty: float, device: torch.device) -> torch.Tensor:
    """Return a column with `length` positions or more: itself, or a copy of at least twice its length."""
    have = column.shape[0]
    if length <= have:
        return column
    length = max(length, min(2 * have, _ON_DEVICE if length <= _ON_DEVICE else _LARGEST))
    larger = torch.full((length,), empty, dtype=column.dtype, device=home(device, length))
    larger[:have] = column
    return larger


def _saved_column(state: Mapping[str, Any], name: str, dtype: torch.dtype) -> torch.Tensor:
    """Return the values by id that a state has under a name, detached.

    Raises:
        ArgumentError: (a ValueError) for anything else.
    """
    given: Any = state
    if not isinstance(given, Mapping) or name not in given:
        what = f"only {', '.join(map(repr, given))}" if isinstance(given, Mapping) and given else f"it is {given!r:.80}"
        raise ArgumentError(f"the state has no {name!r}, {what}: give what state_dict() returned")
    column = given[name]
    if not isinstance(column, torch.Tensor):
        raise ArgumentError(f"{name!r} in the state is a {type(column).__name__}, but has to be a tensor")
    plain = column.layout is torch.strided and not column.is_nested and not column.is_meta
    if not plain or column.dtype is not dtype or column.dim() != 1 or column.shape[0] > _LARGEST:
        shape = "nested" if column.is_nested else tuple(column.shape)
        raise ArgumentError(
            f"{name!r} in the state is a tensor of {column.dtype}, shape {shape}, {column.layout} on {column.device}: "
            f"it has to be dense, of {dtype} and shape (ids,) with at most {_LARGEST} ids"
        )
    return column.detach()


def check_ids(ids: object) -> int:
    """Return how long a table has to be for these ids (n,); one read from the device.

    Raises:
        ArgumentTypeError: (a TypeError) for anything but a tensor of whole numbers.
        ArgumentError: (a ValueError) for a tensor of another shape, and for ids out of range.
    """
    if not isinstance(ids, torch.Tensor) or ids.dtype not in _WHOLE:
        what = f"a tensor of {ids.dtype}" if isinstance(ids, torch.Tensor) else type(ids).__name__
        raise ArgumentTypeError(
            f"the ids of examples have to be a tensor of whole numbers, not {what}: sb_plugin.WithIndex gives them"
        )
    if ids.dim() != 1:
        raise ArgumentError(f"the ids of examples have shape {tuple(ids.shape)}, not (n,), one for each row")
    n = ids.shape[0]
    if not n:
        return 0
    some = ids.tolist() if n <= _FEW else torch.stack(ids.to(torch.int64).aminmax()).tolist()
    lowest, highest = min(some), max(some)
    if lowest < 0 or highest >= _LARGEST:
        raise ArgumentError(
            f"ids of examples have to be from 0 to {_LARGEST - 1}, but these go from {lowest} to {highest}: number "
            "the examples from 0, as sb_plugin.WithIndex does"
        )
    return int(highest) + 1


def _are_few_and_distinct(ids: torch.Tensor) -> bool:
    n = ids.shape[0]
    return n <= _FEW and len(set(ids.tolist())) == n


def _means(places: torch.Tensor, losses: torch.Tensor, *, finite_ones: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each position once, with the mean of its losses; if asked, of the finite ones only, NaN for none."""
    places, row_of = torch.unique(places, return_inverse=True)
    counted = losses.isfinite() if finite_ones else torch.ones_like(losses, dtype=torch.bool)
    sums = losses.new_zeros(places.shape[0]).index_add_(0, row_of, losses.where(counted, 0.0))
    return places, sums / torch.zeros_like(sums).index_add_(0, row_of, counted.to(sums.dtype))
