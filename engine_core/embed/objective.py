"""Turn a batch into outputs and one scalar loss. The only place where a loss is reduced, divided and scaled."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..batch import are_samples, count_rows
from ..errors import ArgumentError, ArgumentTypeError, add_note
from ..losses import is_torch_loss, loss_setting
from ..messages import enumerated
from ..state import State

_OVER_CLASSES: dict[type[nn.Module], Callable[..., Any]] = {
    nn.CrossEntropyLoss: F.cross_entropy,
    nn.NLLLoss: F.nll_loss,
}
_DEFAULT_IGNORED = -100  # the default in the signatures of cross_entropy and nll_loss


def check_loss_fn(loss_fn: Any) -> Any:
    """Return the loss function if it can be called with outputs and targets."""
    if isinstance(loss_fn, type):
        raise ArgumentTypeError(f"loss_fn is the class {loss_fn.__name__}; write {loss_fn.__name__}()")
    if loss_fn is not None and not callable(loss_fn):
        raise ArgumentTypeError(f"loss_fn has to be callable as loss_fn(outputs, targets), not {loss_fn!r}")
    return loss_fn


def check_objective(state: State, taker: str = "Trainer") -> None:
    """Raise if the model has neither a `loss_fn` nor a `loss` of its own; the message names who takes a `loss_fn`."""
    own = getattr(state.model, "loss", None)
    if state.loss_fn is None and isinstance(own, torch.nn.Module):
        raise ArgumentError(
            f"{type(state.model).__name__}.loss is a module, not a method loss(outputs, batch): "
            f"give {taker}(loss_fn=model.loss)"
        )
    if state.loss_fn is None and not callable(own):
        raise ArgumentError(
            f"{type(state.model).__name__} has no loss: give {taker}(loss_fn=...), "
            "or the model a method loss(outputs, batch)"
        )


def compute_outputs(state: State, called: Any = None) -> Any:
    """Return the model's outputs for the batch's inputs, or for the whole batch if the model has its own loss.

    Args:
        called: what is called in place of the model, such as a wrapper around it.
    """
    model: Any = state.model if called is None else called
    batch = state.batch
    try:
        if state.loss_fn is None:
            return model(batch)
        # Rows or samples would be taken for inputs and targets; asking a tuple whether it is a tensor is slow.
        if type(batch) is not tuple and (isinstance(batch, torch.Tensor) or are_samples(batch)):
            raise _not_a_pair(batch)  # noqa: TRY301  another function would cost each step a call
        try:
            inputs = batch[0]
        except (LookupError, TypeError) as error:
            raise _not_a_pair(batch) from error
        return model(inputs)
    except Exception as error:
        _note_slips(error, state, None)
        raise


def compute_predictions(state: State) -> Any:
    """Return the model's outputs for a batch that may have no targets: `(inputs, ...)`, `[inputs]`, or inputs."""
    model: Any = state.model
    batch, own = state.batch, getattr(model, "loss", None)
    try:
        if state.loss_fn is None and callable(own) and not isinstance(own, nn.Module):
            return model(batch)
        if not isinstance(batch, (tuple, list)):
            return model(batch)
        if len(batch) > 1 and are_samples(batch):
            raise _not_a_pair(batch)  # noqa: TRY301  what else raises here gets the notes too
        return model(batch[0])
    except Exception as error:
        _note_slips(error, state, None)
        raise


def compute_loss(state: State) -> Any:
    """Return the loss of `state.outputs` from the loss function or the model's own `loss`."""
    try:
        if state.loss_fn is None:
            model: Any = state.model
            return model.loss(state.outputs, state.batch)
        try:
            targets = state.batch[1]
        except (LookupError, TypeError) as error:
            raise _not_a_pair(state.batch) from error
        return state.loss_fn(state.outputs, targets)
    except Exception as error:
        _note_slips(error, state, state.outputs)
        raise


def divisor_of(loss_fn: Any) -> Callable[[Any], int | torch.Tensor] | None:
    """Return what gives the number by which a loss divides in a batch; None for a sum, which divides by nothing.

    Losses of parts of a batch, or of batches of a set, weighted by it, add up to the loss of the whole. torch's
    `CrossEntropyLoss`, `NLLLoss` and their functions divide by the class weights of the targets that are not ignored;
    every other loss, a subclass with its own `forward` and a model's own too, is taken to divide by the rows.

    Example:
        >>> batch = torch.zeros(3, 2), torch.tensor([0, 1, -100])
        >>> divisor_of(nn.NLLLoss())(batch), divisor_of(nn.MSELoss())(batch), divisor_of(nn.MSELoss(reduction="sum"))
        (tensor(2), 3, None)
    """
    if loss_setting(loss_fn, "reduction") == "sum" or loss_setting(loss_fn, "size_average") is False:
        return None
    if not is_torch_loss(loss_fn, _OVER_CLASSES):
        return count_rows
    ignored, weight = loss_setting(loss_fn, "ignore_index"), loss_setting(loss_fn, "weight")

    def divisor(batch: Any) -> int | torch.Tensor:
        targets = _classes_in(batch)
        if targets is None:
            return count_rows(batch)
        counts = targets != (_DEFAULT_IGNORED if ignored is None else ignored)
        if weight is None:
            return counts.sum()
        return weight[targets.where(counts, 0)].where(counts, 0).sum()  # type: ignore[no-any-return]

    return divisor


def counts_by_rows(loss_fn: Any, batch: Any) -> bool:
    """Is the divisor of a loss in this batch the number of its rows?"""
    return not is_torch_loss(loss_fn, _OVER_CLASSES) or _classes_in(batch) is None


def _classes_in(batch: Any) -> torch.Tensor | None:
    """Return the targets of a batch if they are indices of classes."""
    try:
        targets = batch[1]
    except (LookupError, TypeError):
        return None
    if not isinstance(targets, torch.Tensor) or targets.is_floating_point():
        return None
    return targets.long()  # small integers can't hold the default ignore_index, and uint8 would be a mask


def weight_of(loss_fn: Any) -> tuple[Callable[[Any], int | torch.Tensor], bool]:
    """Return what gives the weight of a batch's loss in a mean over batches, and whether such losses are sums.

    The weight is the batch's divisor, see `divisor_of`, and the loss is to be multiplied by it. A sum is taken as it
    is, and its weight is the batch's rows.
    """
    divisor = divisor_of(loss_fn)
    return (count_rows, True) if divisor is None else (divisor, False)


def reduce_loss(loss: Any, share: float | None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return a loss as one scalar and its named parts, weighted by the microbatch's share, see `divisor_of`.

    A tuple or list is summed, and so is a dict unless it has a `total`.

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
    if not share:  # it takes part and counts for nothing, whatever it is
        return _as_nothing(total), {name: _as_nothing(part) for name, part in parts.items()}
    return total * share, {name: part * share for name, part in parts.items()}


def backward_with_first_graph(loss: Any, gradient: torch.Tensor | None) -> None:
    """Silence torch's first warning, which is about gradients that are never reset: the loop resets them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using backward.. with create_graph=True", UserWarning)
        loss.backward(gradient, create_graph=True)


def _as_nothing(loss: torch.Tensor) -> torch.Tensor:
    """Return 0 with the graph of a loss, so that its backward reaches all parameters."""
    weightless = loss * 0
    return weightless.where(weightless == 0, torch.zeros_like(weightless))


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


def _note_slips(error: Exception, state: State, outputs: Any) -> None:
    """Note on what the model or its loss raised each common slip that may be the cause; `outputs` if it is the loss."""
    batch, has_loss_fn = state.batch, state.loss_fn is not None
    items = dict(batch) if isinstance(batch, Mapping) else dict(enumerate(batch if isinstance(batch, _PARTS) else ()))
    if has_loss_fn and isinstance(batch, _PARTS) and len(items) > 2:
        add_note(
            error,
            f"of the {len(items)} items of the batch the model gets item 0, {_described(items[0])}, and the loss item "
            f"1, {_described(items[1])}; the others are for algorithms. For several inputs make it ((a, b), targets), "
            "or give the model a method loss(outputs, batch) in place of loss_fn: then it gets the whole batch",
        )
    if arrays := [repr(key) for key, item in items.items() if _is_array(item)]:
        those = f"item {arrays[0]}" if len(arrays) == 1 else f"items {enumerated(arrays)}"
        add_note(
            error,
            f"the batch has NumPy arrays ({those}), and torch takes tensors: convert them in the dataset with "
            "torch.as_tensor, or use a DataLoader, which does",
        )
    if has_loss_fn and outputs is not None and not isinstance(outputs, torch.Tensor):
        keys = f" with the keys {enumerated([*map(repr, outputs)])}" if isinstance(outputs, Mapping) else ""
        add_note(
            error,
            f"the model returned a {type(outputs).__name__}{keys}, and loss_fn gets that as it is: return the tensor, "
            "take it out in loss_fn, or give the model a method loss(outputs, batch) in place of loss_fn",
        )


_PARTS = (tuple, list)


def _is_array(item: Any) -> bool:
    return type(item).__module__ == "numpy" and hasattr(item, "shape")


def _described(item: Any) -> str:
    shape = f" of shape {tuple(item.shape)}" if hasattr(item, "shape") else ""
    return f"a {type(item).__name__}{shape}"


def _not_a_pair(batch: Any) -> ArgumentTypeError:
    items = f" of length {len(batch)}" if isinstance(batch, (tuple, list)) else ""
    if are_samples(batch):
        return ArgumentTypeError(
            f"with loss_fn a batch has to be (inputs, targets), but a list of {type(batch[0]).__name__} is a list of "
            f"{len(batch)} samples: let the loader's collate_fn return a tuple if they are inputs and targets; "
            "samples need a model with its own loss(outputs, batch)"
        )
    return ArgumentTypeError(
        f"with loss_fn a batch has to be (inputs, targets), not a {type(batch).__name__}{items}; "
        "other batches need a model with its own loss(outputs, batch)"
    )
