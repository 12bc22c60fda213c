"""The penalty on the loss's gradient with respect to its inputs, for any loop. Independent of the engine."""

from __future__ import annotations

import torch

from engine_core.arguments import check_number
from engine_core.errors import ArgumentError, ArgumentTypeError

__all__ = ["check_inputs", "check_weight", "input_gradient_penalty"]


def check_weight(weight: object) -> float:
    """Return the factor of the penalty, if it is valid."""
    return check_number("weight", weight, "[0, inf)", "the factor of the penalty; 0: none")


def check_inputs(inputs: object, what: str) -> torch.Tensor:
    """Return inputs if a loss can be differentiated with respect to them.

    Raises:
        TypeError: for anything but a tensor of floats.
        ValueError: for a tensor without rows.
    """
    if not isinstance(inputs, torch.Tensor):
        raise ArgumentTypeError(f"{what} has to be a tensor, not {type(inputs).__name__}")
    if not inputs.is_floating_point():
        raise ArgumentTypeError(
            f"{what} is a tensor of {inputs.dtype}, which has no gradient: give floats, such as embeddings or scaled "
            "pixels"
        )
    if inputs.dim() == 0:
        raise ArgumentError(f"{what} has no rows: it is a tensor without dimensions")
    return inputs


def input_gradient_penalty(
    loss: torch.Tensor, inputs: torch.Tensor, count: float | torch.Tensor | None = None
) -> torch.Tensor:
    """Return the mean over rows of the squared L2 norm of the gradient of each row's loss, to add to the loss.

    Source: Drucker & LeCun 1992, Improving generalization performance using double backpropagation, IEEE Transactions
    on Neural Networks 3 (6). A backward pass through the penalty goes through the gradient again. It is
    `count * (gradient of the loss)^2`, since the gradient of a mean is that of the sum divided by the count.

    Args:
        loss: a scalar that depends on `inputs`, as it is differentiated for training.
        inputs: (n, ...), with `requires_grad`.
        count: what the loss is divided by, such as its tokens, and so the penalty too; 1 for a sum. None: n rows.

    Raises:
        ValueError: if the loss does not depend on `inputs`.

    Example:
        >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).requires_grad_()
        >>> input_gradient_penalty((x**2).sum(1).mean(), x).item()  # (20 + 100) / 2
        60.0
    """
    gradient = (
        torch.autograd.grad(loss, inputs, create_graph=True, allow_unused=True)[0] if loss.requires_grad else None
    )
    if gradient is None:
        raise ArgumentError(
            f"the loss does not depend on the inputs of shape {tuple(inputs.shape)}, so they have no gradient: "
            "the model may ignore or detach them, or was given something else"
        )
    return gradient.square().sum() * (inputs.shape[0] if count is None else count)
