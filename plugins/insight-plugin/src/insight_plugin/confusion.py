"""Count in evaluations which classes are taken for which, and log it as a picture."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Sequence
from typing import Any

import torch

from engine_core import Callback, Logger, State
from engine_core.arguments import check_key
from engine_core.batch import BatchKey, map_batch
from engine_core.errors import ArgumentError, ArgumentTypeError, BatchKeyError
from engine_core.messages import warn

from .matrix import as_json, as_svg

__all__ = ["Confusion"]

_MOST = 1000
"""How many classes there may be: the counts of more don't fit into a file."""
_ROUNDED = 0.02
"""By how much shares in bfloat16 may miss 1."""


class Confusion(Callback):
    """Logs at the end of each evaluation which classes are taken for which: `confusion-<label>.svg` and `.json`.

    It sees the outputs and targets that the evaluation computes anyway. The prediction is the largest of a row's
    outputs (N, K, ...); targets are classes (N, ...), or probabilities (N, K, ...), of which the largest counts.
    Targets that are none of the K classes, such as ignored ones, are left out. The picture has at most 25 classes,
    those with the most errors, and the JSON has all. On several processes the rows of all of them count. Without
    loggers nothing is done. Outputs that are not those of at most 1,000 classes get a warning once, and no files; so do
    targets of several labels for a row, and those of a regression.

    Args:
        classes: their names, in the order of the outputs; None: their numbers.
        target_key: where the targets are in a batch: an index, a key, an attribute or a pair (getter, setter). None:
            outputs and targets are what metrics get, see `Objective.for_metrics`.

    Example:
        >>> from engine_core_author import RecordingDestination
        >>> seen, state = RecordingDestination(), State(dataloader_label="eval")
        >>> confusion, logger = Confusion(["cat", "dog"]), Logger([seen])
        >>> confusion.eval_start(state, logger)
        >>> state.outputs, state.batch = torch.tensor([[2.0, 1.0], [0.0, 3.0]]), ("two images", torch.tensor([0, 0]))
        >>> confusion.eval_batch_end(state, logger)
        >>> confusion.eval_end(state, logger)
        >>> print(seen.files[1][2], end="")
        {"schema":1,"label":"eval","classes":["cat","dog"],"rows":"targets","counts":[[1,1],[0,0]]}
    """

    def __init__(self, classes: Sequence[str] | None = None, target_key: BatchKey | None = None) -> None:
        self.classes = None if classes is None else _checked(classes)
        if target_key is not None:
            check_key("target_key", target_key)
        self.target_key = target_key
        self._is_logged = self._rests = False
        self._counts: torch.Tensor | None = None

    def init(self, state: State, logger: Logger) -> None:
        """Forget an earlier run."""
        self._rests = False

    def eval_start(self, state: State, logger: Logger) -> None:
        """Begin anew, and agree whether to count: all ranks do, or none."""
        self._counts = None
        self._is_logged = not self._rests and state.ranks.any(logger.destinations)

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        """Count a batch."""
        if not self._is_logged or self._rests:
            return
        try:
            if self.target_key is None:
                given = state.objective.for_metrics(state.outputs, state.batch)
            else:
                given = state.outputs, state.batch_get_item(self.target_key)
            outputs, targets = _found(*given)
            self._check(outputs.shape[1])
        except (ArgumentError, BatchKeyError) as error:
            self._rests = True
            warn(f"confusion can't count in the evaluation on {state.dataloader_label!r}: {error}", UserWarning)
            return
        number = outputs.shape[1]
        if self._counts is None:  # the last one is of what is left out
            self._counts = torch.zeros(number * number + 1, dtype=torch.long, device=outputs.device)
        if not state.is_placeholder:
            places = _places(outputs, targets)
            self._counts.index_add_(0, places, torch.ones_like(places))

    def eval_end(self, state: State, logger: Logger) -> None:
        """Log what was counted by all ranks."""
        counts, self._counts = self._counts, None
        if not self._is_logged:
            return
        self._rests = state.ranks.any(self._rests)
        if counts is None or self._rests:
            return
        counts = state.ranks.gather(counts[None, :-1])[0].sum(0).cpu()
        if not logger.destinations:
            return
        counts = counts.view(math.isqrt(counts.shape[0]), -1)
        label = str(state.dataloader_label)
        classes = self.classes or [str(number) for number in range(counts.shape[0])]
        name = f"confusion-{_in_a_name(label)}"
        logger.log_file(f"{name}.svg", as_svg(counts, classes, label))
        logger.log_file(f"{name}.json", as_json(counts, classes, label))

    def _check(self, number: int) -> None:
        if number > _MOST:
            raise ArgumentError(
                f"the outputs are of {number:,} classes, and {_MOST:,} are the most: leave the callback out"
            )
        if self._counts is not None and len(self._counts) != number * number + 1:
            raise ArgumentError(f"the outputs are of {number} classes, and those of the first batch were of others")
        if self.classes is not None and number != len(self.classes):
            raise ArgumentError(f"the outputs are of {number} classes, but classes names {len(self.classes)}: name all")


def _found(outputs: Any, targets: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tensor (N, K, ...) of the outputs that fits the targets, and these as classes (N, ...)."""
    leaves: list[torch.Tensor] = []

    def keep(leaf: Any) -> Any:
        leaves.extend([leaf] if isinstance(leaf, torch.Tensor) else [])
        return leaf

    map_batch(outputs, keep)
    if isinstance(targets, torch.Tensor):
        for leaf in leaves:
            if leaf.ndim < 2 or leaf.shape[1] < 2 or leaf.is_complex():
                continue
            if targets.shape == (leaf.shape[0], *leaf.shape[2:]) and not targets.is_floating_point():
                return leaf.detach(), targets
            if targets.shape == leaf.shape and targets.is_floating_point():
                if not _are_shares(targets):
                    raise ArgumentError(
                        f"the targets are {targets.dtype} {tuple(targets.shape)}, and their rows are not shares of "
                        "classes, which add up to 1, so a row has several classes or none: leave the callback out, or "
                        "set target_key to where the classes are"
                    )
                return leaf.detach(), targets.argmax(1)
    shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves) or "none"
    of = f"{targets.dtype} {tuple(targets.shape)}" if isinstance(targets, torch.Tensor) else type(targets).__name__
    raise ArgumentError(
        "it takes outputs (N, K, ...) of at least two classes, and targets that are classes (N, ...) or probabilities "
        f"(N, K, ...), but the shapes of the outputs are {shapes}, and the targets are {of}: set target_key to where "
        "the classes are, or leave the callback out"
    )


def _are_shares(targets: torch.Tensor) -> bool:
    """Are these probabilities (N, K, ...), and neither labels that hold together nor measurements?"""
    sums = targets.float().sum(1)
    return bool(((targets >= 0).all() & ((sums - 1).abs() < _ROUNDED).all()).item())


def _places(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return where each target with its prediction is counted: in a row for each class, or behind all rows."""
    number = outputs.shape[1]
    predicted, targets = outputs.argmax(1).flatten(), targets.to(outputs.device).flatten().long()
    is_class = (targets >= 0) & (targets < number)
    return torch.where(is_class, targets * number + predicted, number * number)


def _in_a_name(label: str) -> str:
    """Return a label as a part of a file's name: another one for each label."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", label)[:100]
    return plain if plain == label else f"{plain}-{zlib.crc32(label.encode(errors='replace')):08x}"


def _checked(classes: object) -> tuple[str, ...]:
    if isinstance(classes, str) or not isinstance(classes, Sequence) or not all(isinstance(n, str) for n in classes):
        raise ArgumentTypeError(f"classes={classes!r:.80} has to be a list of names, such as ['cat', 'dog']")
    if not 2 <= len(classes) <= _MOST:
        raise ArgumentError(f"classes has {len(classes)} names, and has to have 2 to {_MOST:,}")
    if longest := next((name for name in classes if len(name) > 200), ""):
        raise ArgumentError(f"classes has a name of {len(longest):,} characters, {longest!r:.80}, and 200 are the most")
    if len({*classes}) < len(classes):
        twice = next(name for name in classes if classes.count(name) > 1)
        raise ArgumentError(f"classes has the name {twice!r} more than once: give each class its own")
    return tuple(classes)
