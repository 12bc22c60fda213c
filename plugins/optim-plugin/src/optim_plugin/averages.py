"""An average of a model's weights: started, updated, and swapped into the model. Independent of the engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

import torch
from torch import nn

from engine_core.errors import ArgumentError, ArgumentTypeError, EngineError

from .buffers import Buffers, is_averaged
from .weights import Place, check_made, find_places, is_expanded, tensors_at

__all__ = ["Average", "Rule", "check_tensors", "start_average", "use_average"]

Rule: TypeAlias = Callable[[list[torch.Tensor], list[torch.Tensor], int], None]
"""Moves averages, in place, towards weights; the number is how many weights they average so far, if it matters."""


def start_average(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of the weights of `model` by name, for `ema_update` and `swa_update` to update.

    Weights are parameters and persistent buffers. Those of 16 bits or fewer are kept in float32, where a small step
    is not rounded away. Tied parameters are one tensor under each of their names; names are those of the model
    without the wrappers of torch.compile and DistributedDataParallel.

    Raises:
        ArgumentError: (a ValueError) for a lazy model, which has no weights yet, and for a sparse parameter.

    Example:
        >>> sorted(start_average(nn.Linear(2, 1)))
        ['bias', 'weight']
    """
    return Average(model).copies()


def use_average(model: nn.Module, average: Mapping[str, torch.Tensor]) -> AbstractContextManager[None]:
    """Give `model` the averaged weights within the block, and its own back afterwards, bit for bit.

    Parameters stay the same objects with the same storage, so optimizers and hooks keep working.

    Raises:
        ArgumentError: (a ValueError) if the average is of another model.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> with use_average(model, {"weight": torch.zeros(1, 1)}):
        ...     print(model(torch.ones(1)).item())
        0.0
    """
    return in_use(Average(model, average))


@contextmanager
def in_use(average: Average) -> Iterator[None]:
    """Let the model of an average hold it within the block."""
    average.swap_in()
    try:
        yield
    finally:
        average.swap_out()


class Average:
    """The average of the weights of one model.

    Args:
        given: tensors by name, as `copies` returns them, to continue from; None: start from the current weights.
        buffers: which buffers are averaged; the others are copied. None: it is of the parameters alone.
        share: work on the given tensors themselves, not on copies; they have to be where the weights are.

    Raises:
        ArgumentError: (a ValueError) if the given tensors don't fit the model.
        ArgumentTypeError: (a TypeError) if they are not tensors by name.
    """

    def __init__(
        self,
        model: nn.Module,
        given: Mapping[str, torch.Tensor] | None = None,
        *,
        buffers: Buffers | None = "norms",
        share: bool = False,
    ) -> None:
        places = [place for place in find_places(model) if buffers is not None or place.parameter is not None]
        for place in places:
            _check_weight(place)
        kinds = [_kind(place, buffers or "copy") for place in places]
        self._guarded, self._copied = kinds.count(0), kinds.count(0) + kinds.count(1)
        self._places = [place for kind in range(3) for place, own in zip(places, kinds, strict=True) if own == kind]
        if given is not None:
            _check_fit(self._places, self._copied, given)
        self._tensors = [_begin(place, given, share=share) for place in self._places]
        self._untied = _untied(places, given) if share and given is not None else []
        self._statistics = None if share else self._flatten_statistics()
        self._is_sharded = any(hasattr(tensor, "to_local") for tensor in self._tensors)
        self._swapped: list[tuple[torch.Tensor, torch.Tensor]] | None = None

    @property
    def is_in(self) -> bool:
        """Does the model hold the averaged weights now?"""
        return self._swapped is not None

    def copies(self) -> dict[str, torch.Tensor]:
        """Return copies of the averages by name; tied ones are the same tensor."""
        copied = zip(self._places, [tensor.clone() for tensor in self._tensors], strict=True)
        return {name: tensor for place, tensor in copied for name in place.names}

    @torch.no_grad()
    def update(self, rule: Rule, count: int = 0) -> None:
        """Update the averages with the current weights, and copy what is not averaged.

        Raises:
            EngineError: if the weights are not those that the average started with.
        """
        weights, averages, first, last = self._weights(), self._tensors, self._guarded, self._copied
        own_type = [w if w.dtype is a.dtype else w.to(a.dtype) for a, w in zip(averages, weights, strict=True)]
        if self._is_sharded:  # torch takes sharded tensors and others, such as buffers, only apart
            averages, own_type = ([_part_of(tensor) for tensor in tensors] for tensors in (averages, own_type))
        if last:
            rule(averages[:last], own_type[:last], count)
        self._replace_infinite(own_type[first:last])
        for average, weight in zip(averages[last:], own_type[last:], strict=True):
            if average.shape != weight.shape:
                _write(average, weight)
        if last < len(averages):
            torch._foreach_copy_(averages[last:], own_type[last:])
        for other, average in self._untied:
            _write(other, average)

    @torch.no_grad()
    def take_mean(self, others: Sequence[Average]) -> None:
        """Become the equal mean of averages of the same model; what is not averaged stays."""
        own, *parts = (each.averaged() for each in (self, *others))
        torch._foreach_zero_(own)
        for part in parts:
            torch._foreach_add_(own, part)
        torch._foreach_div_(own, len(parts))

    def averaged(self) -> list[torch.Tensor]:
        """Return this rank's parts of what is averaged."""
        return [_part_of(tensor) for tensor in self._tensors[: self._copied]]

    @torch.no_grad()
    def put_into_model(self) -> None:
        """Let parameters have the values of their averages."""
        for place, weight, average in zip(self._places, self._weights(), self._tensors, strict=True):
            if place.parameter is not None:
                weight.copy_(average)

    def copied(self) -> list[str]:
        """Return the names of the floating buffers that are copied."""
        pairs = zip(self._places[self._copied :], self._tensors[self._copied :], strict=True)
        return [place.names[0] for place, tensor in pairs if tensor.is_floating_point() or tensor.is_complex()]

    def copy_again(self, but: Collection[str]) -> None:
        """Copy the floating buffers that are copied from the model, except those named."""
        names, weights = {*self.copied()} - {*but}, tensors_at(self._places)
        for place, average, weight in zip(self._places, self._tensors, weights, strict=True):
            if place.names[0] in names and weight is not None:
                _write(average, weight)

    def take(self, found: Mapping[str, torch.Tensor]) -> None:
        """Let averages have these values, by name."""
        for place, average in zip(self._places, self._tensors, strict=True):
            for name in found.keys() & {*place.names}:
                average.copy_(found[name])

    def _flatten_statistics(self) -> torch.Tensor | None:
        """Make the averages of float buffers views of one tensor, to check them at once, if device and dtype allow."""
        parts = self._tensors[self._guarded : self._copied]
        if len({(part.device, part.dtype) for part in parts}) != 1:
            return None
        flat = torch.cat([part.reshape(-1) for part in parts])
        views = flat.split_with_sizes([part.numel() for part in parts])
        self._tensors[self._guarded : self._copied] = [v.view(part.shape) for v, part in zip(views, parts, strict=True)]
        return flat

    def _replace_infinite(self, weights: list[torch.Tensor]) -> None:
        """Replace averages of float buffers that are not finite by the buffer's value."""
        flat = self._statistics
        if flat is None:
            for average, weight in zip(self._tensors[self._guarded : self._copied], weights, strict=True):
                torch.where(average.isfinite(), average, weight, out=average)
        # On the CPU there is no wait. A sum that overflows causes a needless replacement, which changes nothing.
        elif flat.device.type != "cpu" or not math.isfinite(abs(flat.sum().item())):
            torch.where(flat.isfinite(), flat, torch.cat([weight.reshape(-1) for weight in weights]), out=flat)

    def check_model(self, model: nn.Module) -> None:
        """Raise an EngineError unless `model` has exactly the weights that the average started with."""
        known, now = _owners(self._places), _owners(find_places(model))
        if changed := [name for name in {**known, **now} if known.get(name) is not now.get(name)]:
            raise _changed(changed[0])

    def swap_in(self) -> None:
        """Put the averages into the model, and keep a copy of its own weights."""
        if self.is_in:  # an evaluation raised in a loop that unwinds nothing: the model still holds the averages
            self.swap_out()
        weights = self._weights()
        self._swapped = [(w, w.detach() if _is_fixed(w) else w.detach().clone()) for w in weights]
        try:
            for place, weight, average in zip(self._places, weights, self._tensors, strict=True):
                if not _is_fixed(weight):
                    _write(weight, average)
                elif place.parameter is None:
                    setattr(place.module, place.attribute, average.to(weight.dtype, copy=True))
                else:
                    weight.data = average.to(weight.dtype, copy=True)
        except BaseException:
            self.swap_out()
            raise

    def swap_out(self) -> None:
        """Give the model its own weights back."""
        if self._swapped is None:
            return
        for place, (weight, own) in zip(self._places, self._swapped, strict=True):
            if not _is_fixed(own):
                _write(weight, own)
            elif place.parameter is not None:
                weight.data = own
            if place.parameter is None and getattr(place.module, place.attribute) is not weight:
                setattr(place.module, place.attribute, weight)
        self._swapped = None

    def _weights(self) -> list[torch.Tensor]:
        """Return the current weights; averages follow them to their device."""
        weights, moved = list[torch.Tensor](), False
        for i, (place, weight) in enumerate(zip(self._places, tensors_at(self._places), strict=True)):
            if weight is None or (weight is not place.parameter and place.parameter is not None):
                raise _changed(place.names[0])
            average = self._tensors[i]
            if weight.device != average.device:
                self._tensors[i], moved = average.to(weight.device), True
            if weight.shape != average.shape and i < self._copied:
                raise _changed(place.names[0])
            weights.append(weight)
        if moved:
            self._statistics = self._flatten_statistics()
        return weights


def _begin(place: Place, given: Mapping[str, torch.Tensor] | None, *, share: bool) -> torch.Tensor:
    weight = getattr(place.module, place.attribute)
    if given is not None and share:
        shared = given[place.names[0]]
        if shared.device != weight.device:
            raise ArgumentError(
                f"the average of {place.names[0]!r} is on {shared.device}, the weight on {weight.device}"
            )
        return shared
    dtype = torch.float32 if weight.is_floating_point() and weight.element_size() < 4 else weight.dtype
    source = weight if given is None else given[place.names[0]]
    return source.detach().to(device=weight.device, dtype=dtype, copy=True)


def _untied(places: list[Place], given: Mapping[str, torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return each tensor under a further name of tied weights, with its average: a copy may lose ties."""
    pairs = [(given[name], given[place.names[0]]) for place in places for name in place.names[1:]]
    return [(other, average) for other, average in pairs if other is not average]


def _part_of(tensor: Any) -> torch.Tensor:
    """Return this rank's part of a sharded tensor, in its memory; others as they are."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[no-any-return]


def _kind(place: Place, buffers: Buffers) -> int:
    """Return 0 for a parameter, 1 for a buffer that is averaged and may become infinite, 2 for what is copied."""
    return int(place.parameter is None) if is_averaged(place, buffers) else 2


def check_tensors(given: object) -> None:
    """Raise an ArgumentTypeError unless these are tensors by name."""
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(f"an average is tensors by name, not {type(given).__name__}: start_average makes one")
    if wrong := [name for name, tensor in given.items() if not isinstance(tensor, torch.Tensor)]:
        raise ArgumentTypeError(f"the average of {wrong[0]!r} is not a tensor but {type(given[wrong[0]]).__name__}")


def _check_weight(place: Place) -> None:
    weight, name = getattr(place.module, place.attribute), place.names[0]
    check_made(name, weight)
    if place.parameter is not None and weight.layout is not torch.strided:
        raise ArgumentError(
            f"{name!r} is a parameter of layout {weight.layout}, which can't be averaged: make it dense"
        )


def _check_fit(places: list[Place], averaged: int, given: Mapping[str, torch.Tensor]) -> None:
    """Raise unless there is a tensor for each name, and of the same shape for the first places, which are averaged."""
    check_tensors(given)
    sized = {name for place in places[:averaged] for name in place.names}
    own = {name: getattr(place.module, place.attribute) for place in places for name in place.names}
    missing = [name for name in own if name not in given]
    foreign = [name for name in given if name not in own]
    problem = next(
        (f"{name!r} has the shape {tuple(own[name].shape)} in the model and {tuple(given[name].shape)} in the average"
         for name in own if name in sized and name in given and own[name].shape != given[name].shape), None
    )  # fmt: skip
    if missing or foreign:
        problem = f"the average lacks {missing[0]!r}" if missing else f"the model has no {foreign[0]!r}"
    if problem:
        raise ArgumentError(f"this is not an average of this model's weights: {problem}")


def _owners(places: list[Place]) -> dict[str, object]:
    """Return by name what has to stay the same: the parameter itself, or the module of a buffer."""
    return {place.names[0]: place.module if place.parameter is None else place.parameter for place in places}


def _is_fixed(weight: torch.Tensor) -> bool:
    """Can it only be replaced? An expanded tensor can't be written to, and a sparse one not past autograd."""
    return weight.layout is not torch.strided or is_expanded(weight)


def _write(weight: torch.Tensor, value: torch.Tensor) -> None:
    """Copy past autograd: the values are restored, so a graph that saved the weight stays valid."""
    if weight.shape == value.shape:
        weight.data.copy_(value)
    else:  # a buffer that is copied may grow, or get its shape late
        weight.data = value.detach().to(weight.device, weight.dtype, copy=True)


def _changed(name: str) -> EngineError:
    return EngineError(
        f"{name!r} has another tensor, shape or module than when the average of the weights started, so it has no "
        "average: change the model at INIT, before fit, and move or cast it in place"
    )
