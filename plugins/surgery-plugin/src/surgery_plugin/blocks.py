"""Which modules of a model are meant by `blocks`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import nn

from engine_core.errors import ArgumentError, ArgumentTypeError, did_you_mean

__all__ = ["Block", "check_blocks", "describe_classes", "find_blocks"]

Block = type[nn.Module] | str
"""A class, whose subclasses count too; the name of a class, of which they don't; or a module's own qualified name."""


def check_blocks(blocks: Sequence[Block], asked_by: str) -> tuple[Block, ...]:
    """Return `blocks` if they are classes or names."""
    if isinstance(blocks, (str, type)) or not all(isinstance(block, (str, type)) for block in blocks):
        raise ArgumentTypeError(
            f"{asked_by}: blocks={blocks!r} has to be a list of classes or names, such as ['TransformerEncoderLayer']"
        )
    return tuple(blocks)


def find_blocks(model: nn.Module, blocks: Sequence[Block], asked_by: str) -> dict[str, nn.Module]:
    """Return the modules that are meant, by qualified name, without those inside of others; never the model itself.

    Raises:
        ArgumentError: for a block that the model does not have.
    """
    modules = {name: module for name, module in model.named_modules() if name}
    meant = dict[str, nn.Module]()
    for block in blocks:
        own = {name: module for name, module in modules.items() if _is(name, module, block)}
        if not own:
            called = block if isinstance(block, str) else block.__name__
            classes = {type(module).__name__ for module in modules.values()}
            raise ArgumentError(
                f"{asked_by}: the model has no module of class or name {called!r}{did_you_mean(called, classes)}"
            )
        meant.update(own)
    inside = {part for block in meant.values() for part in block.modules() if part is not block}
    return {name: module for name, module in modules.items() if name in meant and module not in inside}


def describe_classes(model: nn.Module) -> str:
    """Return the classes of a model's modules, with how many of each there are: `2 Block, 4 Linear`."""
    counts = Counter(type(module).__name__ for name, module in model.named_modules() if name)
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "no modules"


def _is(name: str, module: nn.Module, block: Block) -> bool:
    return block in (name, type(module).__name__) if isinstance(block, str) else isinstance(module, block)
