"""Layer stacking as an algorithm of the engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar
from weakref import WeakKeyDictionary

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State
from engine_core.algorithm import is_averaging
from engine_core.arguments import check_length
from engine_core.errors import ArgumentError
from engine_core.messages import warn
from engine_core.time import Time, TimeUnit

from .replacement import warn_of_nothing
from .stack import Stack, check_blocks, check_first, find_stack

__all__ = ["LayerStacking"]

_NAME = "layer_stacking"


class LayerStacking(Algorithm):
    """Train the first blocks of a stack alone, then copy them onto the rest, with what the optimizers keep for them.

    Source: Gong et al. 2019, Efficient Training of BERT by Progressively Stacking, PMLR 97. At INIT the later blocks
    leave the model, so that it is trained, evaluated and saved without them. At the first batch after `grow` they come
    back, block i as a copy of block i modulo `first`: weights, buffers, and moments of the optimizers, in the groups
    that train its source, and in averages of weights that have begun. The rest of training is that of the whole model.

    Args:
        first: how many blocks are trained alone; None: half of them, or one more than the rest.
        grow: when the others join, in `ep`, `ba`, `sp`, `tok`, `sec` or `dur`.
        blocks: the name of the stack in the model, an `nn.ModuleList` or `nn.Sequential`; None: the one longest of
            equal blocks.

    Warns:
        NothingReplacedWarning: if no stack is named and the model has none.
        UserWarning: at the end of a training that was over before `grow`: the model has lost its later blocks.

    Example:
        >>> LayerStacking(first=2, grow="0.4dur", blocks="encoder.layers").grow
        '0.4dur'
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name=_NAME,
        description="train the first blocks of a stack alone, then copy them onto the rest",
        events=(Event.INIT, Event.BATCH_START, Event.FIT_END),
        tags=("surgery", "growth"),
        after=("@stem", "@layers", "@blocks", "@normalization", "@memory_format"),
        before=("@freezing", "@weight_averaging"),
        writes=("model", "optimizers"),
        needs=("surgery", "late_surgery"),
    )

    def __init__(self, first: int | None = None, grow: str | Time = "0.4dur", blocks: str | None = None) -> None:
        self.first, self.blocks = check_first(first), check_blocks(blocks)
        self._grow = check_length("grow", grow)
        if self._grow.unit is TimeUnit.DURATION:
            own = self.metadata.replace(needs=("duration", *self.metadata.needs))
            self.metadata = own  # type: ignore[misc]  # this instance's own
        self.grow = str(self._grow)
        self._stacks: WeakKeyDictionary[State, Stack] = WeakKeyDictionary()

    @staticmethod
    def required_on_load() -> bool:
        """A checkpoint may hold the weights of the short model."""
        return True

    def match(self, event: Event, state: State) -> bool:
        """INIT; a batch from `grow` on, and the end of a training, if blocks are missing."""
        if event is Event.INIT:
            return True
        stack = self._stacks.get(state)
        if stack is None or stack.is_whole:
            return False
        if event is Event.FIT_END:
            return state.is_complete
        return event is Event.BATCH_START and state.get_progress(self._grow) >= 1

    def validate(self, state: State) -> None:
        """Raise if `grow` is a fraction of a training whose length is not known."""
        state.get_progress(self._grow)

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> None:
        """Take the later blocks out of the model, or put them back as copies of the first."""
        if state.model is None:
            raise ArgumentError(f"{_NAME} has no model to change: give one, State(model=...), before INIT")
        if event is Event.INIT:
            self._stacks.pop(state, None)
            if self.blocks is None and find_stack(state.model) is None:
                warn_of_nothing(_NAME, "nn.ModuleList or nn.Sequential of equal blocks with parameters")
                return
            self._stacks[state] = stack = Stack(state.model, self.blocks, self.first)
            stack.shorten(state.optimizers)
        elif event is Event.FIT_END:
            stack = self._stacks[state]
            warn(
                f"{_NAME}: training ended before grow={self.grow!r}, so {stack.path!r} has {stack.first} of its "
                f"{len(stack.names)} blocks: set an earlier grow, or train longer",
                UserWarning,
            )
            return
        else:
            stack = self._stacks[state]
            _grow_averages(state, {name: stack.source_of(name) for name in stack.grow(state.optimizers)})
        if logger is not None and logger.destinations:
            logger.log_metrics({f"{_NAME}/blocks": len(stack.names) if stack.is_whole else stack.first})

    def prepare_to_load(self, state: State, names: Collection[str]) -> None:
        """Let the model have the blocks that were saved."""
        stack = self._stacks.get(state)
        if stack is None:
            return
        (stack.grow if stack.is_whole_in(names) else stack.shorten)(state.optimizers)


def _grow_averages(state: State, sources: Mapping[str, str]) -> None:
    """Let weights that have joined be in the averages that have begun: the average of a copy is that of its source."""
    for algorithm in filter(is_averaging, state.algorithms):
        if algorithm.averaged_state_dict() is None:
            continue
        saved = algorithm.state_dict()
        if not isinstance(average := saved.get("average"), Mapping):
            raise ArgumentError(
                f"{type(algorithm).__name__} averages weights, and {_NAME} can't let others join, as its state has no "
                "'average' by their names: let it start after grow"
            )
        joined = {
            new + name.removeprefix(source): tensor.clone()
            for new, source in sources.items()
            for name, tensor in average.items()
            if name.startswith(f"{source}.")
        }
        algorithm.load_state_dict({**saved, "average": {**average, **joined}})
