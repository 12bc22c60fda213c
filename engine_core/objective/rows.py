"""The loss of each row, of what a loss gives without its reduction."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..batch import Batches, map_batch
from ..errors import ArgumentError


class ElementsOfRows(NamedTuple):
    """What the elements of an unreduced loss are.

    Args:
        rows: how many the batch has.
        dim: where the loss has them; None: not known, so it has to be (n,).
        is_sum: does a batch of one row have the sum of its elements for its loss, or their mean?
        ignored: the class whose elements are left out of a mean.
    """

    rows: int
    dim: int | None
    is_sum: bool
    ignored: int | None

    def losses(self, given: Any, targets: Any, name: str = "") -> torch.Tensor:
        """Return the loss of each row (n,).

        Args:
            targets: as the loss got them.
            name: of a part of the loss.

        Raises:
            ArgumentError: (a ValueError) for anything but a tensor with the rows where they are expected.
        """
        rows, dim = self.rows, self.dim
        if isinstance(given, torch.Tensor):
            if given.shape == (rows,):
                return given
            if dim is not None and given.dim() > max(dim, 1) and given.shape[dim] == rows:
                elements = given.movedim(dim, 0).flatten(1)
                if self.is_sum:
                    return elements.sum(1)
                if self.ignored is None or not isinstance(targets, torch.Tensor) or targets.shape != given.shape:
                    return elements.mean(1)
                counts = (targets.long() != self.ignored).movedim(dim, 0).flatten(1).sum(1)
                return elements.sum(1) / counts.clamp(min=1)
        found = f"shape {tuple(given.shape)}" if isinstance(given, torch.Tensor) else f"{given!r:.80}"
        where = f", or have the rows in dimension {dim}" if dim is not None else ""
        raise ArgumentError(
            f"the loss{name and f' {name!r}'} gives {found} with reduction='none' for {rows} rows; it has to be "
            f"({rows},){where}, as losses.flatten(1).mean(1) may be: override Objective.row_losses where it can't"
        )


def dim_of_rows(batches: Batches, batch: Any, targets: Any) -> int | None:
    """Return the dimension where targets, or all of a batch, have the rows; None if it is not one for all of them.

    Example:
        >>> batch = {"x": torch.zeros(5, 3), "y": torch.zeros(3)}
        >>> dim_of_rows(Batches(dim={"x": 1}), batch, batch["x"]), dim_of_rows(Batches(dim={"x": 1}), batch, batch)
        (1, None)
    """
    if not batches.dim:
        return 0
    dims: dict[int, int] = {}
    batches.map_rows(batch, lambda item, dim: dims.setdefault(id(item), dim))
    found: set[int] = set()
    map_batch(targets, lambda leaf: found.add(dims[id(leaf)]) if id(leaf) in dims else None)
    return found.pop() if len(found) == 1 else None if found else 0
