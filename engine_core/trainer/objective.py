"""Turn a batch into outputs and one scalar loss. The only place where a loss is reduced and scaled."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from ..errors import ArgumentError, ArgumentTypeError
from ..state import State


def check_objective(state: State) -> None:
    """Raise if the model has neither a `loss_fn` nor a `loss` of its own."""
    own = getattr(state.model, "loss", None)
    if state.loss_fn is None and isinstance(own, torch.nn.Module):
        raise ArgumentError(
            f"{type(state.model).__name__}.loss is a module, not a method loss(outputs, batch): "
            "give Trainer(loss_fn=model.loss)"
        )
    if state.loss_fn is None and not callable(own):
        raise ArgumentError(
            f"{type(state.model).__name__} has no loss: give Trainer(loss_fn=...), "
            "or the model a method loss(outputs, batch)"
        )


def compute_outputs(state: State) -> Any:
    """Return the model's outputs for the batch's inputs, or for the whole batch if the model has its own loss."""
    model: Any = state.model
    if state.loss_fn is None:
        return model(state.batch)
    batch = state.batch
    # A tensor's rows would be taken for inputs and targets; asking a tuple whether it is one is slow.
    if type(batch) is not tuple and isinstance(batch, torch.Tensor):
        raise _not_a_pair(batch)
    try:
        inputs = batch[0]
    except (LookupError, TypeError) as error:
        raise _not_a_pair(batch) from error
    return model(inputs)


def compute_loss(state: State) -> Any:
    """Return the loss of `state.outputs` from the loss function or the model's own `loss`."""
    if state.loss_fn is None:
        model: Any = state.model
        return model.loss(state.outputs, state.batch)
    try:
        targets = state.batch[1]
    except (LookupError, TypeError) as error:
        raise _not_a_pair(state.batch) from error
    return state.loss_fn(state.outputs, targets)


def reduce_loss(loss: Any, share: float | None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return a loss as one scalar and its named parts, weighted by the microbatch's share of the rows.

    A tuple or list is summed, and so is a dict unless it has a `total`. With a mean loss weighted by the share of the
    rows, the gradients of the microbatches add up to those of the whole batch.

    Raises:
        ArgumentError: for what is not a scalar tensor.

    Example:
        >>> total, parts = reduce_loss({"a": torch.tensor(1.0), "b": torch.tensor(2.0)}, share=0.5)
        >>> total.item(), sorted(parts)
        (1.5, ['a', 'b'])
    """
    parts: dict[str, torch.Tensor] = {}
    if isinstance(loss, torch.Tensor):
        total = loss if loss.dim() == 0 else _scalar(loss, "the loss")
    else:
        parts = {name: _scalar(part, f"part {name!r} of the loss") for name, part in _parts(loss).items()}
        given = parts.pop("total", None)
        total = functools.reduce(torch.add, parts.values()) if given is None else given
    if share is None:
        return total, parts
    return total * share, {name: part * share for name, part in parts.items()}


def _parts(loss: Any) -> dict[str, Any]:
    if isinstance(loss, Mapping):
        parts = {str(name): part for name, part in loss.items()}
    elif isinstance(loss, (tuple, list)):
        parts = {str(index): part for index, part in enumerate(loss)}
    else:
        raise ArgumentTypeError(f"the loss is {loss!r} ({type(loss).__name__}); it has to be a scalar tensor")
    if not parts:
        raise ArgumentError(f"the loss is an empty {type(loss).__name__}; it needs at least one scalar tensor")
    return parts


def _scalar(loss: Any, what: str) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor):
        raise ArgumentTypeError(f"{what} is {loss!r} ({type(loss).__name__}); it has to be a scalar tensor")
    if loss.dim():
        raise ArgumentError(f"{what} has shape {tuple(loss.shape)}; reduce it to a scalar, as loss.mean() does")
    return loss


def _not_a_pair(batch: Any) -> ArgumentTypeError:
    items = f" of length {len(batch)}" if isinstance(batch, (tuple, list)) else ""
    return ArgumentTypeError(
        f"with loss_fn a batch has to be (inputs, targets), not a {type(batch).__name__}{items}; "
        "other batches need a model with its own loss(outputs, batch)"
    )
