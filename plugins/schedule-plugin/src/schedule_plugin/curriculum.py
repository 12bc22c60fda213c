"""Curriculum as an algorithm of the engine: it gives the order of an epoch, of the examples that are easy enough."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import torch
from torch.utils.data import RandomSampler, SequentialSampler

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core.randomness import preserve_generators

from .pacing import admitted_share, check_pacing, checked_scores, easiest

__all__ = ["Curriculum"]

NAME = "curriculum"
Difficulty: TypeAlias = "str | Sequence[float] | torch.Tensor | Callable[[Any], Any]"


class Curriculum(Algorithm):
    """Begin training with the easiest examples, and admit harder ones until all take part.

    Source: Bengio et al. 2009, Curriculum Learning (ICML). When an epoch begins, the share that `admitted_share` says
    is admitted, and loaded in a new random order. From `end` on, epochs are the loader's own.

    Args:
        difficulty: a number for each example, by its place in the train loader's dataset, a sequence or a tensor (n,),
            higher is harder; or a function that returns these of the dataset; or, as in a config, the place of either,
            `"module:name"`.
        start: the share of the examples with which training starts, in (0, 1].
        end: the fraction of the training from which on all are admitted, in (0, 1].
        root: 1 admits linearly, 2 by the square root, so faster at the start.

    Raises:
        ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) for an invalid argument.

    Example:
        >>> Curriculum(lambda dataset: [len(words) for words, _ in dataset], start=0.3).end
        0.5
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name=NAME,
        description="start with the easiest examples and end with all",
        events=(Event.EPOCH_START,),
        tags=("epoch_pruning",),
        conflicts=("@epoch_pruning",),
        writes=(),
        needs=("duration", "epoch_order"),
    )

    def __init__(self, difficulty: Difficulty, start: float = 0.2, end: float = 0.5, root: float = 1.0) -> None:
        self.difficulty = _found(difficulty)
        self.start, self.end, self.root = check_pacing(start, end, root)
        self._scored: tuple[Any, torch.Tensor] | None = None
        """A dataset and the difficulties of its examples; None for the dataset of a resumed run."""

    def match(self, event: Event, state: State) -> bool:
        """When an epoch starts in which not all examples are admitted."""
        return event is Event.EPOCH_START and self._share(state) < 1

    def may_rest(self, state: State) -> bool:
        """If all examples are admitted at the start."""
        return self.start == 1

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> None:
        """Give the order of the epoch: the admitted examples, shuffled."""
        share, loader = self._share(state), state.train_dataloader
        scores = self._scores_of(state)
        admitted = easiest(scores, share, getattr(loader, "batch_size", None) or 1)
        # A generator of one epoch: the same on all ranks, in a resumed run, and if the epoch begins a second time.
        seed = state.derive_seed(f"{NAME}/{state.timestamp.epoch}", shared=True)
        state.order_of_epoch(admitted[torch.randperm(len(admitted), generator=torch.Generator().manual_seed(seed))])
        if logger is not None and logger.destinations:
            logger.log_metrics({f"{NAME}/admitted_fraction": len(admitted) / len(scores)})

    def state_dict(self) -> dict[str, Any]:
        """Return what a function said of the examples: it may take long, and say something else another time."""
        return {"scores": self._scored[1].clone()} if callable(self.difficulty) and self._scored is not None else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the difficulties of the saved run."""
        scores = state.get("scores")
        if scores is not None and not (isinstance(scores, torch.Tensor) and scores.dim() == 1):
            raise ArgumentError(f"'scores' in the state of {NAME} have to be a tensor (n,), one for each example")
        self._scored = (None, checked_scores(scores, len(scores))) if scores is not None else None

    def _share(self, state: State) -> float:
        elapsed = state.get_elapsed_duration()
        return 1.0 if elapsed is None else admitted_share(elapsed.value, self.start, self.end, self.root)

    def _scores_of(self, state: State) -> torch.Tensor:
        """Return the difficulties of the examples (n,)."""
        loader: Any = state.train_dataloader
        size = state.dataset_size
        if size is None:
            state.order_of_epoch([0])  # it says why, if the loader takes no order
            raise ArgumentError(f"{NAME} has to know how many examples there are: give the dataset a __len__")
        _check_sampler(getattr(loader, "sampler", None), size)
        known, scores = self._scored or (None, None)
        if scores is None or (known is not loader.dataset and known is not None):
            scores = state.ranks.decide(lambda: _scored(self.difficulty, loader.dataset, size))
        elif len(scores) != size:
            raise ArgumentError(f"the saved run of {NAME} had {len(scores)} examples, and this one has {size}")
        self._scored = loader.dataset, scores
        return scores


def _scored(difficulty: Any, dataset: Any, size: int) -> torch.Tensor:
    """Return the difficulties of the examples of a dataset (n,); a function may draw, and the run stays as it is."""
    with preserve_generators(torch.device("cpu")):
        return checked_scores(difficulty(dataset) if callable(difficulty) else difficulty, size)


def _check_sampler(sampler: Any, size: int) -> None:
    """Raise for a sampler that does not load each example once: it may keep some for validation."""
    is_known = type(sampler) in (RandomSampler, SequentialSampler) and len(sampler) == size
    if not is_known or getattr(sampler, "replacement", False):
        raise ArgumentError(
            f"{NAME} chooses among all examples, and the train_dataloader's {type(sampler).__name__} does not load "
            "each of them once: give DataLoader(Subset(dataset, indices), batch_size=..., shuffle=True)"
        )


def _found(difficulty: object) -> Any:
    """Return what an argument or its place means: numbers, or a function of a dataset."""
    if isinstance(difficulty, str):
        try:
            found = pkgutil.resolve_name(difficulty)
        except (ValueError, ImportError, AttributeError) as error:
            raise ArgumentError(
                f"difficulty={difficulty!r} can't be imported ({error}): write 'module:name' for numbers, or for a "
                "function that takes the dataset"
            ) from error
        return _found(found) if not isinstance(found, str) else _refused(difficulty)
    if callable(difficulty) or (isinstance(difficulty, (Sequence, torch.Tensor)) and len(difficulty)):
        return difficulty
    if hasattr(difficulty, "__array__"):  # NumPy's
        return difficulty
    return _refused(difficulty)


def _refused(difficulty: object) -> Any:
    raise ArgumentTypeError(
        f"difficulty={difficulty!r:.80} has to be a number for each example, or a function that returns these of the "
        "dataset, or the place of either, 'module:name'"
    )
