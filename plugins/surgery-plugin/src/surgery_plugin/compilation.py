"""Compile: torch.compile in place, of a model or of its blocks. A function and the algorithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, ClassVar

import torch
from torch import nn

from engine_core import AlgorithmMetadata, Event, Logger, State
from engine_core.arguments import check_flag
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core.messages import warn

from .blocks import Block, check_blocks, find_blocks
from .models import check_model
from .operation import Operation

__all__ = ["Compile", "apply_compile"]

_NAME = "compile"


def apply_compile(model: nn.Module, blocks: Sequence[Block] = (), **options: Any) -> list[str]:
    """Compile a model in place, or only its blocks, and return the names of what is compiled; the model's is `""`.

    The modules stay the same objects with the same names of weights: what is compiled is their call. It happens at the
    first one. `nn.Module.compile` leaves a module whose class is torch's own uncompiled, such as an `nn.Sequential`;
    here these are compiled too.

    Args:
        blocks: classes, whose subclasses count too, names of classes, or qualified names of modules; none: the model.
        options: for `torch.compile`, such as `mode` and `dynamic`.

    Raises:
        ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) for blocks that the model does not have, and for
            what torch.compile has returned.

    Example:
        >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 2)
        >>> apply_compile(encoder, ["TransformerEncoderLayer"], backend="eager")
        ['layers.0', 'layers.1']
        >>> apply_compile(encoder, backend="eager"), "layers.0.linear1.weight" in encoder.state_dict()
        ([''], True)
    """
    check_model(model)
    found = find_blocks(model, check_blocks(blocks, _NAME), _NAME) or {"": model}
    for name, module in model.named_modules():
        if type(module).__name__ == "OptimizedModule":
            where = repr(name) if name else "the model"
            raise ArgumentError(f"{_NAME}: {where} is what torch.compile has returned: give the plain module")
    forwards = dict[type[nn.Module], Callable[..., Any]]()
    for module in found.values():
        if "forward" not in vars(module) and type(module).forward.__module__.startswith("torch."):
            forward = forwards.setdefault(type(module), _make_forward())
            module.forward = MethodType(forward, module)  # a copy of the module gets its own
        module.compile(**options)
    return list(found)


def _make_forward() -> Callable[..., Any]:
    """Return a method that calls the forward of a class of torch: the compiler skips that where nothing else calls it.

    Graphs belong to a method's code, and 8 are the most. So blocks share theirs, and other models have their own.
    """

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return type(self).forward(self, *args, **kwargs)

    forward.__code__ = forward.__code__.replace()
    return forward


class Compile(Operation):
    """Compile the model in place with `torch.compile`, or its blocks, after all other algorithms have changed it.

    See `apply_compile`. It warns once if a batch after the first has the model compiled again, and if nothing is
    compiled. `compile/recompilations` is the number of graphs that batches after the first of a `fit` have added.

    Args:
        blocks: classes, whose subclasses count too, names of classes, or qualified names of modules, each compiled by
            itself; none: the whole model.
        backend: `inductor`, another one that torch knows, or a function, see `torch.compile`.
        mode: such as `"max-autotune"`.
        dynamic: True: sizes may change from the first batch on; False: each has a graph of its own; None: one that has
            changed may change from then on.
        fullgraph: raise if something can't be compiled, instead of running it uncompiled.

    Example:
        >>> Compile(dynamic=True).required_on_load()
        False
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name=_NAME,
        description="compile the model in place with torch.compile, or its blocks",
        events=(Event.INIT, Event.FIT_START, Event.BATCH_END, Event.EVAL_END),
        before=("@slow_weights", "@weight_averaging"),  # neither reads what the other writes: so that no list decides
        after=("@surgery", "activation_checkpointing"),
        conflicts=("gradient_penalty",),  # what is compiled has no second derivative
        writes=("model.forward",),
        needs=("surgery",),
    )

    def __init__(
        self,
        blocks: Sequence[Block] = (),
        *,
        backend: str | Callable[..., Any] = "inductor",
        mode: str | None = None,
        dynamic: bool | None = None,
        fullgraph: bool = False,
    ) -> None:
        self.blocks = check_blocks(blocks, _NAME)
        if not (isinstance(backend, str) or callable(backend)):
            raise ArgumentTypeError(f"{_NAME}: backend={backend!r} has to be a name, such as 'inductor', or a function")
        if not (mode is None or isinstance(mode, str)):
            raise ArgumentTypeError(f"{_NAME}: mode={mode!r} has to be a name, such as 'max-autotune', or None")
        self.backend, self.mode = backend, mode
        self.dynamic = None if dynamic is None else check_flag("dynamic", dynamic)
        self.fullgraph = check_flag("fullgraph", fullgraph)
        self.recompilations = 0
        self._graphs: int | None = None  # not in the first batch of a fit, which may compile

    @staticmethod
    def required_on_load() -> bool:
        """The model's weights have the same names and values without it."""
        return False

    def match(self, event: Event, state: State) -> bool:
        """INIT, FIT_START, EVAL_END, and the end of a batch in which something was compiled."""
        if event is Event.BATCH_END:
            return self._graphs != _count_graphs()
        return event in self.metadata.events  # type: ignore[operator]

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> None:
        """Compile at INIT; later count what is compiled again."""
        if event is Event.INIT:
            super().apply(event, state, logger)
        elif event is Event.FIT_START:
            self._graphs = None
        elif event is Event.EVAL_END:
            self._graphs = None if self._graphs is None else _count_graphs()
        else:
            self._count(state, logger)

    def operate(self, model: nn.Module, state: State) -> list[str]:
        """Compile the model, or its blocks."""
        options = {"backend": self.backend, "mode": self.mode, "dynamic": self.dynamic, "fullgraph": self.fullgraph}
        return apply_compile(model, self.blocks, **options)

    def looked_for(self) -> str:
        """Blocks, without which `operate` raises."""
        return "block"

    def _count(self, state: State, logger: Logger | None) -> None:
        """Count the graphs that the batch has added, and warn of the first."""
        before, self._graphs = self._graphs, _count_graphs()
        if before is None:
            if not self._graphs:
                warn(
                    f"{_NAME}: nothing was compiled in the first batch: the training calls none of what it compiles, "
                    "the model or its blocks; TORCH_COMPILE_DISABLE is set; or all of it is blocks with BatchNorm that "
                    "activation_checkpointing computes again",
                    UserWarning,
                )
            return
        if not self.recompilations:
            warn(
                f"{_NAME}: batch {state.timestamp.batch} has the model compiled again, which takes time. Other sizes "
                "are a cause: let the loader drop its last batch (drop_last=True), or give dynamic=True. So are layers "
                "that freeze or are replaced. TORCH_LOGS=recompiles tells the cause; compile/recompilations counts on",
                UserWarning,
            )
        self.recompilations += self._graphs - before
        if logger is not None and logger.destinations:
            logger.log_metrics({f"{_NAME}/recompilations": self.recompilations})


def _count_graphs() -> int:
    """Return how many graphs torch has compiled in this process."""
    torch_: Any = torch  # `torch.compile` has imported what follows
    return int(torch_._dynamo.utils.counters["stats"]["unique_graphs"])  # noqa: SLF001
