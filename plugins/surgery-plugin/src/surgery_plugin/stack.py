"""A stack of equal blocks in a model, of which the first are there at first, and the rest later. Knows no engine."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import nn

from engine_core.arguments import check_whole
from engine_core.errors import ArgumentError, ArgumentTypeError, did_you_mean
from engine_core.messages import join_words

from .models import check_model
from .replacement import grow, made_alike, take_out

__all__ = ["Stack", "check_blocks", "check_first", "find_stack"]

_CONTAINERS = (nn.ModuleList, nn.Sequential)
_COMPILED = "_orig_mod."
"""What torch.compile puts into names."""


def check_first(first: int | None) -> int | None:
    """Return how many blocks are trained alone; None: half of them."""
    return first if first is None else check_whole("first", first, "[1, inf)", "of the stack's blocks")


def check_blocks(blocks: str | None) -> str | None:
    """Return the name of a stack; None: it is looked for."""
    if blocks is not None and not isinstance(blocks, str):
        raise ArgumentTypeError(f"blocks={blocks!r} has to be the name of a module, such as 'encoder.layers'")
    return blocks


class Stack:
    """The blocks of a model's stack: in turn copies of the first ones, when they join.

    Args:
        blocks: the name of the container, an `nn.ModuleList` or `nn.Sequential`; None: the one longest of equal blocks.
        first: how many of its blocks stay when it is shortened; None: half of them, or one more than the rest.

    Attributes:
        path: the name of the container.
        names: those of all blocks in the model.

    Raises:
        ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) if there is no such stack, or several, if its
            blocks are not equal, share parameters, or are too few.

    Example:
        >>> model = nn.Sequential(nn.Embedding(8, 4), nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)]))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> stack = Stack(model, first=1)
        >>> stack.shorten(optimizer), len(model[1])
        (['1.1', '1.2', '1.3'], 1)
        >>> stack.grow(optimizer), torch.equal(model[1][3].weight, model[1][0].weight)
        (['1.1', '1.2', '1.3'], True)
    """

    def __init__(self, model: nn.Module, blocks: str | None = None, first: int | None = None) -> None:
        check_model(model)
        path = find_stack(model, check_blocks(blocks))
        if path is None:
            raise ArgumentError(
                f"{type(model).__name__} has no stack of equal blocks with parameters, in an nn.ModuleList or "
                "nn.Sequential of nothing else: put them in one"
            )
        self.path = path
        self._model, self._container = model, model.get_submodule(self.path)
        keys = [name for name, _ in self._container.named_children()]
        self.names = [f"{self.path}.{key}" if self.path else key for key in keys]
        self.first = check_first((len(keys) + 1) // 2 if first is None else first) or 0
        if not self.first < len(keys):
            raise ArgumentError(
                f"first={first}, and {self.path!r} has {len(keys)} blocks: give a number from 1 to {len(keys) - 1}"
            )
        _check_own(model, self.names[self.first :])
        self._waiting: dict[str, nn.Module] = {}

    @property
    def is_whole(self) -> bool:
        """Are all blocks in the model?"""
        return not self._waiting

    def is_whole_in(self, names: Collection[str]) -> bool:
        """Are weights of these names those of all blocks? If they are of none, the model stays as it is."""
        plain = [name.replace(_COMPILED, "") for name in names]
        ends = [f"{block}.".replace(_COMPILED, "") for block in (self.names[0], self.names[-1])]
        first, last = (any(name.startswith(end) for name in plain) for end in ends)
        return last if first else self.is_whole

    def shorten(self, optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] = ()) -> list[str]:
        """Take all blocks but the first ones out, and return their names; optimizers forget their parameters."""
        if self.is_whole:
            optimizers = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else [*optimizers]
            self._check_groups(optimizers)
            self._waiting = take_out(self._model, self.names[self.first :], optimizers=optimizers)
        return [*self._waiting]

    def grow(self, optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] = ()) -> list[str]:
        """Put them back as copies of the first ones, in turn, and return their names; see `replacement.grow`."""
        joining = {name: (block, self.source_of(name)) for name, block in self._waiting.items()}
        grown = grow(self._model, joining, optimizers=optimizers)
        self._waiting = {}
        return grown

    def source_of(self, name: str) -> str:
        """Return the name of the first block that another one is a copy of."""
        return self.names[self.names.index(name) % self.first]

    def _check_groups(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Raise if a block is in other groups than its source, as for rates by depth: it would come back to its."""
        groups = [group["params"] for optimizer in optimizers for group in optimizer.param_groups]
        places: dict[nn.Parameter, list[int]] = {}
        for place, parameters in enumerate(groups):
            for parameter in parameters:
                places.setdefault(parameter, []).append(place)
        for name in self.names[self.first :]:
            source = self.source_of(name)
            for key, own in self._model.get_submodule(name).named_parameters():
                if places.get(own) != places.get(self._model.get_submodule(source).get_parameter(key)):
                    raise ArgumentError(
                        f"optimizers: {name}.{key} is in another group than {source}.{key}, which it is to copy, "
                        "and would join that one's: put both in one group, or give the Trainer callables that make the "
                        "optimizers"
                    )


def find_stack(model: nn.Module, blocks: str | None = None) -> str | None:
    """Return the name of a model's stack: the container given, or the one longest of equal blocks, or None.

    Raises:
        ArgumentError: (a ValueError) if several are the longest, or the one given is not there or not of equal blocks.
    """
    found = {name: part for name, part in model.named_modules() if isinstance(part, _CONTAINERS) and len(part)}
    if blocks is not None:
        if blocks not in found:
            raise ArgumentError(
                f"blocks={blocks!r} is not the name of an nn.ModuleList or nn.Sequential in the model"
                f"{did_you_mean(str(blocks), found)}"
            )
        if difference := _unlike(found[blocks]):
            raise ArgumentError(f"blocks={blocks!r}: its blocks are not equal: {difference}")
        return blocks
    rows = [part for part in found.values() if isinstance(next(part.children()), nn.Embedding)]  # tables, not layers
    equal = {
        name: len(part) for name, part in found.items() if len(part) > 1 and part not in rows and not _unlike(part)
    }
    longest = [name for name, count in equal.items() if count == max(equal.values())]
    if len(longest) > 1:
        raise ArgumentError(
            f"{join_words([*map(repr, longest)])} are stacks of {equal[longest[0]]} equal blocks each: name one, "
            f"blocks={longest[0]!r}"
        )
    return longest[0] if longest else None


def _unlike(container: nn.Module) -> str:
    """Return how the blocks in a container differ from its first, or that they have no parameters, or nothing."""
    first, *others = container.children()
    if next(first.parameters(), None) is None:
        return f"{type(first).__name__} has no parameters"
    for (key, _), other in zip([*container.named_children()][1:], others, strict=True):
        if difference := made_alike(other, first):
            return f"of {key!r}, {difference}, as in the first"
    return ""


def _check_own(model: nn.Module, names: Iterable[str]) -> None:
    """Raise if a block that will be taken out shares a parameter, which a copy could not."""
    holders: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        holders.setdefault(parameter, []).append(name)
    for name in names:
        for key, parameter in model.get_submodule(name).named_parameters():
            if others := [other for other in holders[parameter] if other != f"{name}.{key}"]:
                raise ArgumentError(
                    f"{name}.{key} is also {others[0]}, and a block with shared parameters can't be a copy of another: "
                    "leave layer_stacking out, or untie them"
                )
