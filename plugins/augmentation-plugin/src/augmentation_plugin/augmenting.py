"""What the algorithms that change only the images of a training batch share: one event, one key, one generator."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch

from engine_core import Algorithm, Event, Logger, State
from engine_core.arguments import check_key, item_at
from engine_core.batch import BatchKey
from engine_core.randomness import OwnGenerator

from .images import check_images, check_setter

__all__ = ["ImageAugmentation"]


class ImageAugmentation(Algorithm):
    """Replace the images of each training batch with changed copies; the loader's own stay as they are.

    Args:
        input_key: where the images (N, C, H, W) are in a batch.
        shared: do all ranks draw the same numbers?
        rests: do the arguments leave images as they are?
    """

    def __init__(self, input_key: BatchKey, *, shared: bool = False, rests: bool = False) -> None:
        check_key("input_key", input_key)
        self.input_key = input_key
        self._rests = rests
        self._generator = OwnGenerator(str(self.metadata.name), shared=shared)

    @abstractmethod
    def augment(self, images: torch.Tensor, state: State) -> torch.Tensor:
        """Return changed copies of the images of `state.batch`."""

    def check(self, images: torch.Tensor, state: State) -> None:
        """Raise if images of this dtype and size, or this batch, can't be changed."""

    def match(self, event: Event, state: State) -> bool:
        """After the dataloader, in each step, unless the arguments leave nothing to do."""
        return event is Event.AFTER_DATALOADER and not self._rests

    def validate(self, state: State) -> None:
        """Raise if the batch has no images (N, C, H, W) under `input_key`, or none that can be changed."""
        if self._rests:
            return
        images = item_at(state.batch, "input_key", self.input_key)
        self.check(check_images(f"the input (input_key={self.input_key!r})", images), state)
        check_setter(state.batch, "input_key", self.input_key)

    def may_rest(self, state: State) -> bool:
        """If the arguments leave images as they are."""
        return self._rests

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> None:
        """Replace the images."""
        images = check_images(f"the input of {self.metadata.name}", state.batch_get_item(self.input_key))
        state.batch_set_item(self.input_key, self.augment(images, state))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the generator."""
        return self._generator.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the draws of the saved run."""
        self._generator.load_state_dict(state)
