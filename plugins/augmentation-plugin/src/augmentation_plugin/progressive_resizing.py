"""ProgressiveResizing as an algorithm of the engine: glue between State, the schedule and `resize_batch`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State
from engine_core.arguments import check_flag, check_key, item_at
from engine_core.batch import BatchKey
from engine_core.errors import ArgumentError
from engine_core.randomness import OwnGenerator

from .images import check_images, check_setter
from .resizing import check_mode, check_resizable, check_targets, resize_batch
from .sizes import check_increment, check_schedule, resized_side, scale_at

__all__ = ["ProgressiveResizing"]

_NAME = "progressive_resizing"


class ProgressiveResizing(Algorithm):
    """Start training with smaller images and end with full-size ones.

    Source: the progressive resizing of fast.ai (Howard), as implemented by MosaicML. See `resizing_scale` for the
    schedule and `resize_batch` for what is done to a batch. The model has to take images of any size: one that flattens
    them for a Linear fails in its first forward pass; put an `nn.AdaptiveAvgPool2d` before that.

    Args:
        mode: `resize` interpolates; `crop` cuts out a window, a new one in each step.
        initial_scale: the scale of height and width at the start, in (0, 1].
        finetune_fraction: the last part of training, at full size.
        delay_fraction: the first part of training, at `initial_scale`.
        size_increment: height and width are multiples of it, except at full size.
        resize_targets: make targets (N, H, W) or (N, K, H, W) smaller too.
        input_key, target_key: where images (N, C, H, W) and targets are in a batch; the second is only used with
            `resize_targets`.

    Example:
        >>> ProgressiveResizing(mode="crop", size_increment=8).initial_scale
        0.5
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name=_NAME,
        description="start with smaller images and end with full-size ones",
        events=(Event.AFTER_DATALOADER,),
        tags=("augmentation", "resizing"),
        writes=("batch",),
        needs=("duration",),
    )

    def __init__(  # noqa: PLR0913, PLR0917  the reference has these, in this order
        self,
        mode: str = "resize",
        initial_scale: float = 0.5,
        finetune_fraction: float = 0.2,
        delay_fraction: float = 0.5,
        size_increment: int = 4,
        resize_targets: bool = False,  # noqa: FBT001, FBT002  the reference has it so
        input_key: BatchKey = 0,
        target_key: BatchKey = 1,
    ) -> None:
        self.mode = check_mode(mode)
        self.initial_scale, self.finetune_fraction, self.delay_fraction = check_schedule(
            initial_scale, finetune_fraction, delay_fraction
        )
        self.size_increment = check_increment(size_increment)
        self.resize_targets = check_flag("resize_targets", resize_targets)
        check_key("input_key", input_key)
        check_key("target_key", target_key)
        self.input_key = input_key
        self.target_key = target_key
        self._generator = OwnGenerator(_NAME)

    def match(self, event: Event, state: State) -> bool:
        """After the dataloader, until images are at full size."""
        return event is Event.AFTER_DATALOADER and self._scale(state) < 1

    def validate(self, state: State) -> None:
        """Raise if the length of training is not known, or the batch can't be resized."""
        if self.initial_scale == 1:
            return
        if state.get_elapsed_duration() is None:
            raise ArgumentError(
                "max_duration is not known, so progressive_resizing can't schedule its phases: set "
                "max_duration, as in Trainer(max_duration='10ep')"
            )
        images = item_at(state.batch, "input_key", self.input_key)
        check_resizable(check_images(f"the input (input_key={self.input_key!r})", images), self.mode)
        self._check_size(images.shape[-2], images.shape[-1])
        check_setter(state.batch, "input_key", self.input_key)
        if self.resize_targets:
            targets = item_at(state.batch, "target_key", self.target_key)
            check_targets(f"the target (target_key={self.target_key!r})", targets, images)
            check_setter(state.batch, "target_key", self.target_key)

    def may_rest(self, state: State) -> bool:
        """If the schedule is at full size throughout."""
        return self.initial_scale == 1 or self.finetune_fraction == 1

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> None:
        """Replace images, and targets if asked, with smaller ones."""
        scale = self._scale(state)
        images = state.batch_get_item(self.input_key)
        targets = state.batch_get_item(self.target_key) if self.resize_targets else None
        smaller, their_targets = resize_batch(
            images,
            targets,
            scale,
            self.mode,
            self.resize_targets,
            size_increment=self.size_increment,
            generator=self._generator.of(state, self) if self.mode == "crop" else None,
        )
        if smaller is not images:
            state.batch_set_item(self.input_key, smaller)
            if self.resize_targets:
                state.batch_set_item(self.target_key, their_targets)
        if logger is not None and logger.destinations:
            height, width = smaller.shape[-2:]
            logger.log_metrics({f"{_NAME}/scale": scale, f"{_NAME}/height": height, f"{_NAME}/width": width})

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the generator; only crops draw from it."""
        return self._generator.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the draws of the saved run."""
        self._generator.load_state_dict(state)

    def _check_size(self, height: int, width: int) -> None:
        """Raise if even the smallest images of the schedule are full-size."""
        smallest = tuple(resized_side(side, self.initial_scale, self.size_increment) for side in (height, width))
        if smallest == (height, width):
            raise ArgumentError(
                f"images of {height} x {width} keep their size at initial_scale={self.initial_scale:g} with "
                f"size_increment={self.size_increment}: lower size_increment, or leave progressive_resizing out"
            )

    def _scale(self, state: State) -> float:
        elapsed = state.get_elapsed_duration()
        if elapsed is None:
            return 1.0
        return scale_at(elapsed.value, self.initial_scale, self.finetune_fraction, self.delay_fraction)
