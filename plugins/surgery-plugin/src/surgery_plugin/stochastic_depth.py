"""Stochastic depth as an algorithm of the engine."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from engine_core import AlgorithmMetadata, Event, State
from engine_core.arguments import check_interval, check_length
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core.randomness import OwnGenerator
from engine_core.time import Time, TimeUnit

from .draws import Draws
from .operation import Operation
from .stochastic_block import TARGETS, Settings, StochasticBlock, Target, find_blocks, wrap_blocks

__all__ = ["StochasticDepth"]

_NAME = "stochastic_depth"


class StochasticDepth(Operation):
    """Drop residual blocks at random in training.

    Source: Huang et al. 2016, Deep Networks with Stochastic Depth, arXiv 1603.09382; for the layers of transformers
    Fan et al. 2019, arXiv 1909.11556. See `apply_stochastic_depth`.

    Args:
        targets: names of classes, compared only with a block's own class, or classes, where subclasses count too.
        drop_rate: the probability that the last block is dropped, in [0, 1).
        drop_distribution: `linear`: block l of L, from 1, is dropped with probability `drop_rate * l / L`;
            `uniform`: each with probability `drop_rate`.
        drop_per: `sample`: each sample is drawn for by itself; `batch`: one draw for all, as in the papers, and a
            dropped block is not computed.
        drop_warmup: how long the rates grow linearly from 0, in `ep`, `ba`, `sp`, `sec` or `dur`.
        drop_until: when the rates, which fall linearly from the start, are 0, likewise; None: they don't fall. Liu et
            al. 2023, Dropout Reduces Underfitting, arXiv 2303.01500, call it early stochastic depth.

    Example:
        >>> StochasticDepth(drop_rate=0.5, drop_per="batch").find_unused_parameters
        True
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name=_NAME,
        description="drop residual blocks at random in training",
        events=(Event.INIT,),
        tags=("surgery", "blocks"),
        after=("@layers",),
        writes=("model",),
        needs=("surgery",),
    )

    def __init__(
        self,
        targets: Sequence[Target] = TARGETS,
        drop_rate: float = 0.2,
        drop_distribution: str = "linear",
        drop_per: str = "sample",
        *,
        drop_warmup: str | Time = "0dur",
        drop_until: str | Time | None = None,
    ) -> None:
        self.settings = Settings(targets, drop_rate, drop_distribution, drop_per)
        self._warmup = check_length("drop_warmup", drop_warmup)
        self._until = None if drop_until is None else check_interval("drop_until", drop_until)
        needs = ["partial_forward"] * (drop_per == "batch")
        needs += ["duration"] * any(length.unit is TimeUnit.DURATION for length in self._lengths)
        if needs:
            own = self.metadata.replace(needs=(*needs, *self.metadata.needs))
            self.metadata = own  # type: ignore[misc]  # this instance's own
        self.drop_warmup = str(self._warmup)
        self.drop_until = self._until and str(self._until)
        self._own = OwnGenerator(_NAME, shared=drop_per == "batch")
        self._draws: Draws | None = None
        self._run: weakref.ref[State] | None = None
        self._loaded: dict[str, torch.dtype | None] | None = None

    @property
    def find_unused_parameters(self) -> bool:
        """A block that is not computed gives its parameters no gradient."""
        return self.settings.drop_per == "batch"

    @property
    def _lengths(self) -> list[Time]:
        """What has to be located in the training."""
        return [length for length in (self._warmup, self._until) if length]

    def validate(self, state: State) -> None:
        """Raise if `drop_warmup` or `drop_until` is a fraction of a training whose length is not known."""
        for length in self._lengths:
            state.get_progress(length)

    def operate(self, model: nn.Module, state: State) -> list[str]:
        """Wrap the blocks; their draws are seeded by the run."""
        self._refuse_shared(model, state)
        self._run = weakref.ref(state)
        self._draws = Draws(self._own.of(state, self), self._refresh)
        self._refresh(self._draws)
        return wrap_blocks(model, self.settings, self._draws, state.optimizers)

    def looked_for(self) -> str:
        """Blocks of the target classes."""
        targets = (target if isinstance(target, str) else target.__name__ for target in self.settings.targets)
        return f"block of class {' or '.join(targets)}"

    def drops(self, block: StochasticBlock) -> bool:
        """Is this block dropped by this instance?"""
        return block.draws is self._draws

    def _refuse_shared(self, model: nn.Module, state: State) -> None:
        """Raise if another instance in this run drops one of the blocks, as its settings would be lost."""
        others = [other for other in state.algorithms if isinstance(other, StochasticDepth) and other is not self]
        for name, block in find_blocks(model, self.settings).items():
            if isinstance(block, StochasticBlock) and any(other.drops(block) for other in others):
                raise ArgumentError(
                    f"{_NAME}: two instances in one run drop the block {name!r} ({type(block.block).__name__}); remove "
                    "one of them, or give them different targets"
                )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the generator, and what is known about the outputs of blocks."""
        known = self._loaded if self._loaded is not None else self._draws.gives if self._draws else {}
        gives = {name: dtype and str(dtype).removeprefix("torch.") for name, dtype in known.items()}
        return {**self._own.state_dict(), "gives": gives}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the draws of the saved run, in whichever run draws next.

        Raises:
            ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) for a state that is not from `state_dict`;
                nothing is loaded from it.
        """
        gives = _dtypes_of(state.get("gives", {}))
        self._own.load_state_dict({key: value for key, value in state.items() if key != "gives"})
        self._loaded = gives

    def _refresh(self, draws: Draws) -> None:
        """Give the draws of the current run what was loaded in the meantime."""
        run = None if self._run is None else self._run()
        if draws is not self._draws or run is None:
            return
        draws.generator = self._own.of(run, self)
        if self._lengths:
            draws.share = self._share(run)
        if self._loaded is not None:
            draws.gives, self._loaded = self._loaded, None

    def _share(self, run: State) -> float:
        """Return how much of the rates applies now: 0 where the length of the training would have to be known."""
        if run.max_duration is None and any(length.unit is TimeUnit.DURATION for length in self._lengths):
            return 0.0
        share = min(1.0, run.get_progress(self._warmup)) if self._warmup else 1.0
        return share if self._until is None else share * max(0.0, 1 - run.get_progress(self._until))


def _dtypes_of(gives: object) -> dict[str, torch.dtype | None]:
    """Return the dtypes whose names were saved."""
    if not isinstance(gives, Mapping):
        raise ArgumentTypeError(f"gives={gives!r} in the state of {_NAME} has to be names of dtypes by block")
    dtypes = {name: None if dtype is None else getattr(torch, str(dtype), dtype) for name, dtype in gives.items()}
    for name, dtype in dtypes.items():
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise ArgumentError(
                f"{gives[name]!r} in the state of {_NAME}, for the block {name!r}, is not a dtype of torch"
            )
    return dtypes
