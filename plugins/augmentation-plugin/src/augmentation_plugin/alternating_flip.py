"""AlternatingFlip: as a function of a batch and its ids, and as an algorithm of the engine."""

from __future__ import annotations

from typing import ClassVar

import torch

from engine_core import AlgorithmMetadata, Event, State
from engine_core.arguments import check_key, item_at
from engine_core.batch import BatchKey
from engine_core.errors import ArgumentError, ArgumentTypeError, BatchKeyError

from .augmenting import ImageAugmentation
from .images import check_images
from .pixels import pixels_at

__all__ = ["AlternatingFlip", "alternating_flip_batch"]

_REMEDY = "let the dataset give its number with each example, as TensorDataset(x, y, torch.arange(len(x))) does"
_GOLDEN, _MIXERS = 0x9E3779B97F4A7C15, ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # of SplitMix64


def alternating_flip_batch(
    input: torch.Tensor,  # noqa: A002  the field's name for it
    ids: torch.Tensor,
    epoch: int,
    *,
    seed: int = 0,
) -> torch.Tensor:
    """Return images of which each is mirrored left to right in every second epoch.

    Source: Jordan 2024, 94% on CIFAR-10 in 3.29 Seconds on a Single GPU, arXiv 2404.00498, section 3.6. In which of
    the first two epochs an example is mirrored, a hash of its id and the seed decides; nothing is drawn.

    Args:
        input: images (N, C, H, W) of any dtype; they are not changed.
        ids: the number of each example (N,), the same in each epoch, on any device.
        epoch: from 0 on.
        seed: another one divides the examples otherwise.

    Returns:
        A new tensor of the same shape, dtype, device and memory format.

    Raises:
        ValueError, TypeError: for anything but images and whole numbers, one for each.

    Example:
        >>> images, ids = torch.arange(12).view(6, 1, 1, 2), torch.arange(6)
        >>> first, second = (alternating_flip_batch(images, ids, epoch) for epoch in (0, 1))
        >>> torch.equal(first.flip(-1), second)
        True
    """
    check_images("input", input)
    check_ids("ids", ids, len(input))
    is_flipped = ((_mixed(ids.to(input.device, non_blocking=True), seed) + epoch) & 1).bool()
    height, width = input.shape[-2:]
    xs = torch.arange(width, device=input.device)
    xs = torch.where(is_flipped[:, None], width - 1 - xs, xs)
    return pixels_at(input, torch.arange(height, device=input.device)[:, None], xs[:, None])


def check_ids(name: str, ids: object, rows: int) -> None:
    """Raise unless these are whole numbers, one for each row."""
    if not isinstance(ids, torch.Tensor) or ids.is_floating_point() or ids.is_complex() or ids.dtype is torch.bool:
        found = f"a tensor of {ids.dtype}" if isinstance(ids, torch.Tensor) else f"{ids!r:.80}"
        raise ArgumentTypeError(f"{name} has to be a tensor of whole numbers, not {found}: {_REMEDY}")
    if ids.shape != (rows,):
        raise ArgumentError(f"{name} of shape {tuple(ids.shape)} is not one for each of {rows} images: {_REMEDY}")


def _mixed(ids: torch.Tensor, seed: int) -> torch.Tensor:
    """Return SplitMix64's numbers from a seed on, at the places that the ids say (N,)."""
    mixed = (ids.long() + 1) * _signed(_GOLDEN) + _signed(seed)  # wraps around, as its 64 bits do
    for shift, mixer in _MIXERS:
        mixed = _shifted(mixed, shift) * _signed(mixer)
    return _shifted(mixed, 31)


def _shifted(numbers: torch.Tensor, by: int) -> torch.Tensor:
    return numbers.bitwise_xor((numbers >> by).bitwise_and(2 ** (64 - by) - 1))  # `>>` repeats the sign


def _signed(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


class AlternatingFlip(ImageAugmentation):
    """Mirror each image in every second epoch, half of them in the first.

    Source: Jordan 2024, 94% on CIFAR-10 in 3.29 Seconds on a Single GPU, arXiv 2404.00498, section 3.6. See
    `alternating_flip_batch`. It needs an id of each example: without one it can't know how the example was seen last.

    Args:
        input_key: where the images (N, C, H, W) are in a batch.
        index_key: where the ids of the examples (N,) are, whole numbers.

    Example:
        >>> AlternatingFlip(index_key=2).metadata.name
        'alternating_flip'
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="alternating_flip",
        description="mirror each image in every second epoch",
        events=(Event.AFTER_DATALOADER,),
        tags=("augmentation", "flipping"),
        before=("@shifting", "@resizing", "@distorting", "@erasing"),
        conflicts=("@flipping",),
        writes=("batch",),
    )

    def __init__(self, input_key: BatchKey = 0, index_key: BatchKey = 2) -> None:
        super().__init__(input_key, shared=True)
        check_key("index_key", index_key)
        if index_key == input_key:
            raise ArgumentError(f"index_key={index_key!r} is where the images are, not the ids: {_REMEDY}")
        self.index_key = index_key

    def check(self, images: torch.Tensor, state: State) -> None:
        """Raise unless the batch has an id for each image, and these are not the targets."""
        self._ids_of(images, state)
        objective = state.objective
        if objective.loss_fn is not None and self.index_key == objective.targets:
            raise ArgumentError(f"index_key={self.index_key!r} finds the targets, not ids: {_REMEDY}")

    def augment(self, images: torch.Tensor, state: State) -> torch.Tensor:
        """Return the images, mirrored as it is their turn; the generator gives its seed alone."""
        seed = self._generator.of(state, self).initial_seed()
        return alternating_flip_batch(images, self._ids_of(images, state), state.timestamp.epoch, seed=seed)

    def _ids_of(self, images: torch.Tensor, state: State) -> torch.Tensor:
        try:
            ids: torch.Tensor = item_at(state.batch, "index_key", self.index_key)
        except BatchKeyError as error:
            raise BatchKeyError(f"{error}; {_REMEDY}") from error
        check_ids(f"the ids (index_key={self.index_key!r})", ids, len(images))
        return ids
