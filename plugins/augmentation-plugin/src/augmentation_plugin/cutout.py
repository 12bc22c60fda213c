"""CutOut as an algorithm of the engine: glue between State and `cut_holes`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State
from engine_core.arguments import check_key, item_at
from engine_core.batch import BatchKey
from engine_core.randomness import OwnGenerator

from .holes import check_holes, cut_holes
from .images import check_images, check_setter

__all__ = ["CutOut"]

_NAME = "cutout"


class CutOut(Algorithm):
    """Fill square holes in the images of each training batch with zeros.

    Source: DeVries and Taylor 2017, Improved Regularization of Convolutional Neural Networks with Cutout, arXiv
    1708.04552. Each row has its own holes, new ones in each step. See `cutout_batch`.

    Args:
        num_holes: how many each row gets, at least 1; they may overlap.
        length: the side of a hole as a fraction of the image's shorter side, in (0, 1].
        input_key: where the images (N, C, H, W) are in a batch.

    Example:
        >>> CutOut(length=0.25).num_holes
        1
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name=_NAME,
        description="fill square holes in the images with zeros",
        events=(Event.AFTER_DATALOADER,),
        tags=("augmentation", "erasing"),
        after=("@resizing",),
        writes=("batch",),
    )

    def __init__(self, num_holes: int = 1, length: float = 0.5, input_key: BatchKey = 0) -> None:
        self.num_holes, self.length = check_holes(num_holes, length)
        check_key("input_key", input_key)
        self.input_key = input_key
        self._generator = OwnGenerator(_NAME, shared=False)

    def match(self, event: Event, state: State) -> bool:
        """After the dataloader, in each step."""
        return event is Event.AFTER_DATALOADER

    def validate(self, state: State) -> None:
        """Raise if the batch has no images (N, C, H, W) under `input_key`."""
        check_images(f"the input (input_key={self.input_key!r})", item_at(state.batch, "input_key", self.input_key))
        check_setter(state.batch, "input_key", self.input_key)

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> None:
        """Replace the images with copies that have holes."""
        images = check_images("the input of cutout", state.batch_get_item(self.input_key))
        holed = cut_holes(images, self.num_holes, self.length, self._generator.of(state, self))
        state.batch_set_item(self.input_key, holed)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the generator."""
        return self._generator.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the draws of the saved run."""
        self._generator.load_state_dict(state)
