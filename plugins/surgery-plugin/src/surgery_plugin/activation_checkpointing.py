"""ActivationCheckpointing: blocks computed again in the backward pass, to save memory. A function and the algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from engine_core import AlgorithmMetadata, Event, State
from engine_core.errors import ArgumentError

from .blocks import Block, check_blocks, describe_classes, find_blocks
from .models import check_model
from .operation import Operation
from .stochastic_block import StochasticBlock

__all__ = ["ActivationCheckpointing", "apply_activation_checkpointing"]

_NAME = "activation_checkpointing"
_WITH_STATISTICS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)


def apply_activation_checkpointing(model: nn.Module, blocks: Sequence[Block]) -> list[str]:
    """Let blocks of a model forget what they compute inside and compute it again in the backward pass.

    Return the names of the blocks. Weights, gradients and running statistics are those of the model without it, bit for
    bit, and dropout draws the same again. Modules and the names of weights stay as they are.

    Source: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost, arXiv 1604.06174; see
    `torch.utils.checkpoint`, whose variant without reentrant autograd does the work.

    Args:
        blocks: classes, whose subclasses count too, names of classes, or qualified names of modules. Blocks within
            blocks are left alone.

    Raises:
        ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) for blocks that the model does not have, that
            compute something else the second time, or that have a `forward` of their own.

    Example:
        >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 2)
        >>> apply_activation_checkpointing(encoder, [nn.TransformerEncoderLayer])
        ['layers.0', 'layers.1']
    """
    check_model(model)
    found = find_blocks(model, check_blocks(blocks, _NAME), _NAME)
    if not found:
        raise ArgumentError(
            f"{_NAME}: say which blocks are computed again, such as blocks=['TransformerEncoderLayer']; the model has "
            f"{describe_classes(model)}"
        )
    for name, block in found.items():
        _check_block(name, block)
    for name, block in found.items():
        block.forward = _Again(block, name)
    return list(found)


def _check_block(name: str, block: nn.Module) -> None:
    """Raise for what would not be computed again as it was."""
    own = vars(block).get("forward")
    if own is not None and not isinstance(own, _Again):
        raise ArgumentError(
            f"{_NAME}: {name!r} has a forward of its own, {own!r:.80}, that would be lost: leave it out"
        )
    if dropping := [part for part, module in block.named_modules() if isinstance(module, StochasticBlock)]:
        where = ".".join(filter(None, (name, dropping[0])))
        raise ArgumentError(
            f"{_NAME}: {where!r} is dropped at random, and would draw again when {name!r} is computed again: name a "
            f"block inside of it, such as blocks=[{where + '.block'!r}]"
        )


class _Again:
    """The forward of a block that is computed again; it goes with the block where that is copied or pickled."""

    def __init__(self, block: nn.Module, name: str) -> None:
        self.block, self.name, self.is_checked = block, name, False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = type(self.block).forward
        if not torch.is_grad_enabled():
            return forward(self.block, *args, **kwargs)
        if not torch.compiler.is_compiling():
            return self._eagerly(*args, **kwargs)
        if _norms_of(self.block):  # where the compiler breaks its graph, their statistics would be counted twice
            return torch.compiler.disable(self._eagerly)(*args, **kwargs)  # type: ignore[no-untyped-call]
        return checkpoint(forward, self.block, *args, use_reentrant=False, **kwargs)

    def _eagerly(self, *args: Any, **kwargs: Any) -> Any:
        forward, before = type(self.block).forward, None if self.is_checked else _other_buffers_of(self.block)
        outputs = checkpoint(forward, self.block, *args, use_reentrant=False, context_fn=self._contexts, **kwargs)
        if before is not None:
            self.is_checked, after = True, _other_buffers_of(self.block)
            if changed := [name for name, seen in before.items() if after.get(name) != seen]:
                raise ArgumentError(
                    f"{_NAME}: the forward of {self.name!r} ({type(self.block).__name__}) changes its buffer "
                    f"{changed[0]!r}, and would change it once more when it is computed again: leave it out of blocks"
                )
        return outputs

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _OnCopiesOfStatistics(self.block)


def _norms_of(block: nn.Module) -> list[nn.Module]:
    return [module for module in block.modules() if isinstance(module, _WITH_STATISTICS)]


def _other_buffers_of(block: nn.Module) -> dict[str, tuple[int, int]]:
    """Return what differs if a buffer changes that does not belong to a norm."""
    own = {id(buffer) for norm in _norms_of(block) for buffer in norm.buffers(recurse=False)}
    others = ((name, buffer) for name, buffer in block.named_buffers() if id(buffer) not in own)
    return {name: (id(buffer), buffer._version) for name, buffer in others}  # noqa: SLF001  it counts changes


class _OnCopiesOfStatistics(AbstractContextManager[None]):
    """Let copies of running statistics change: they have seen the batch, and a norm that trains does not use them.

    It is entered each time that a block is computed again: several times if a gradient is differentiated.
    """

    def __init__(self, block: nn.Module) -> None:
        self._block, self._kept = block, list[tuple[nn.Module, str, torch.Tensor]]()

    def __enter__(self) -> None:
        norms = [norm for norm in _norms_of(self._block) if norm.training]
        self._kept = [(norm, name, buffer) for norm in norms for name, buffer in norm.named_buffers(recurse=False)]
        for norm, name, buffer in self._kept:
            setattr(norm, name, buffer.clone())

    def __exit__(self, *_: object) -> None:
        for norm, name, buffer in self._kept:
            setattr(norm, name, buffer)


class ActivationCheckpointing(Operation):
    """Compute blocks again in the backward pass instead of keeping what they compute, which needs less memory.

    See `apply_activation_checkpointing`. It comes after all surgery, and before compilation.

    Args:
        blocks: classes, whose subclasses count too, names of classes, or qualified names of modules. There is no
            guess: without any, INIT raises an error that lists what the model has.

    Example:
        >>> ActivationCheckpointing(["TransformerEncoderLayer"]).required_on_load()
        False
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name=_NAME,
        description="compute blocks again in the backward pass, which needs less memory",
        events=(Event.INIT,),
        tags=("compile",),
        after=("@surgery",),
        writes=("model.forward",),
        needs=("surgery",),
    )

    def __init__(self, blocks: Sequence[Block] = ()) -> None:
        self.blocks = check_blocks(blocks, _NAME)

    @staticmethod
    def required_on_load() -> bool:
        """The model's weights have the same names and values without it."""
        return False

    def operate(self, model: nn.Module, state: State) -> list[str]:
        """Give the blocks another forward."""
        return apply_activation_checkpointing(model, self.blocks)

    def looked_for(self) -> str:
        """Blocks, without which `operate` raises."""
        return "block"
