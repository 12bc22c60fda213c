"""TestTimeAugmentation: outputs of an image and its mirror image, averaged in evaluations and predictions."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State
from engine_core.arguments import check_key, item_at
from engine_core.batch import BatchKey, ItemSwap, leaves_of, map_batch
from engine_core.errors import ArgumentError

from .images import check_images

__all__ = ["TestTimeAugmentation"]


class TestTimeAugmentation(Algorithm):
    """Average the outputs for each image and its mirror image in evaluations and predictions; training stays as it is.

    Source: Simonyan and Zisserman 2014, Very Deep Convolutional Networks for Large-Scale Image Recognition, arXiv
    1409.1556, section 3.2, for flips alone. What is averaged are the outputs themselves: logits stay logits, and their
    mean is the logarithm of the geometric mean of the probabilities, up to a constant.

    Args:
        input_key: where the images (N, C, H, W) are in a batch; the only item that is mirrored.

    Raises:
        ArgumentError: (a ValueError) in the first evaluation, for outputs with places, which would have to be mirrored
            back.

    Example:
        >>> TestTimeAugmentation(input_key="image").input_key
        'image'
    """

    __test__: ClassVar[bool] = False  # pytest takes classes of this name for tests
    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="test_time_augmentation",
        description="average outputs over each image and its mirror image in evaluations",
        events=(Event.EVAL_AFTER_FORWARD,),
        tags=("augmentation",),
        writes=("outputs",),
    )

    def __init__(self, input_key: BatchKey = 0) -> None:
        check_key("input_key", input_key)
        self.input_key = input_key

    def match(self, event: Event, state: State) -> bool:
        """After each forward pass of an evaluation or prediction."""
        return event is Event.EVAL_AFTER_FORWARD

    def may_rest(self, state: State) -> bool:
        """A training without evaluations may be followed by some."""
        return True

    def validate(self, state: State) -> None:
        """Raise if the batch has no images (N, C, H, W) under `input_key`."""
        check_images(f"the input (input_key={self.input_key!r})", item_at(state.batch, "input_key", self.input_key))

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> None:
        """Run the model on the mirror images, and average."""
        _check_outputs(state.outputs)
        if isinstance(state.batch, torch.Tensor):  # `predict` takes images alone
            mirrored = state.forward(check_images("the input of test_time_augmentation", state.batch).flip(-1))
        else:
            swap, images = ItemSwap(self.input_key), state.batch_get_item(self.input_key)
            swap.put(state, check_images("the input of test_time_augmentation", images).flip(-1))
            try:
                mirrored = state.forward(_inputs_of(state))
            finally:
                swap.back(state)
        state.outputs = _averaged(state.outputs, mirrored)


def _inputs_of(state: State) -> Any:
    """Return what the model got of the batch, see `Objective.forward` and `Objective.predict`."""
    objective, batch = state.objective, state.batch
    has_own_loss = objective.loss_fn is None and callable(getattr(state.model, "loss", None))
    is_whole = objective.inputs == 0 and (has_own_loss or not isinstance(batch, (tuple, list)))
    return batch if is_whole else objective.inputs_of(batch)


def _averaged(outputs: Any, mirrored: Any) -> Any:
    """Return the mean of each tensor of two outputs alike."""
    others = iter(leaves_of(mirrored))
    return map_batch(outputs, lambda leaf: (leaf + next(others)) / 2)


def _check_outputs(outputs: Any) -> None:
    for leaf in leaves_of(outputs):
        if not isinstance(leaf, torch.Tensor) or leaf.dim() not in (1, 2) or not leaf.is_floating_point():
            is_tensor = isinstance(leaf, torch.Tensor)
            found = f"a tensor {tuple(leaf.shape)} of {leaf.dtype}" if is_tensor else f"{leaf!r:.80}"
            raise ArgumentError(
                f"test_time_augmentation averages outputs (N,) or (N, K) of floats, and the model gave {found}: let it "
                "return logits alone, or leave test_time_augmentation out; places, as of masks and boxes, would have "
                "to be mirrored back"
            )
