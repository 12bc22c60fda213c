"""Notes on what models and losses raise, for the slips that are common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..errors import ArgumentTypeError, add_note
from ..messages import enumerated

_PARTS = (tuple, list)


def are_samples(batch: Any) -> bool:
    """Is this a list of tuples or mappings, one for each sample, and not inputs and targets?"""
    return isinstance(batch, list) and bool(batch) and all(isinstance(item, (tuple, Mapping)) for item in batch)


def not_a_pair(batch: Any) -> ArgumentTypeError:
    """Return the error for a batch that is not inputs and targets."""
    items = f" of length {len(batch)}" if isinstance(batch, _PARTS) else ""
    if are_samples(batch):
        return ArgumentTypeError(
            f"with loss_fn a batch has to be (inputs, targets), but a list of {type(batch[0]).__name__} is a list of "
            f"{len(batch)} samples: let the loader's collate_fn return a tuple if they are inputs and targets; "
            "samples need a model with its own loss(outputs, batch)"
        )
    return ArgumentTypeError(
        f"with loss_fn a batch has to be (inputs, targets), not a {type(batch).__name__}{items}: say where they are, "
        "Trainer(objective=engine_core.Objective(loss_fn, inputs='input_ids', targets='labels')), or give the model "
        "its own loss(outputs, batch)"
    )


def note_slips(error: Exception, objective: Any, batch: Any, outputs: Any) -> None:
    """Note on what the model or its loss raised each common slip that may be the cause; `outputs` if it is the loss."""
    is_pair = objective.loss_fn is not None and (objective.inputs, objective.targets) == (0, 1)
    items = dict(batch) if isinstance(batch, Mapping) else dict(enumerate(batch if isinstance(batch, _PARTS) else ()))
    if is_pair and isinstance(batch, _PARTS) and len(items) > 2:
        add_note(
            error,
            f"of the {len(items)} items of the batch the model gets item 0, {_described(items[0])}, and the loss item "
            f"1, {_described(items[1])}; the others are for algorithms. For several inputs say "
            "Trainer(objective=engine_core.Objective(loss_fn, inputs=(0, 1), targets=2))",
        )
    if arrays := [repr(key) for key, item in items.items() if _is_array(item)]:
        those = f"item {arrays[0]}" if len(arrays) == 1 else f"items {enumerated(arrays)}"
        add_note(
            error,
            f"the batch has NumPy arrays ({those}), and torch takes tensors: convert them in the dataset with "
            "torch.as_tensor, or use a DataLoader, which does",
        )
    if is_pair and outputs is not None and not isinstance(outputs, torch.Tensor):
        keys = f" with the keys {enumerated([*map(repr, outputs)])}" if isinstance(outputs, Mapping) else ""
        add_note(
            error,
            f"the model returned a {type(outputs).__name__}{keys}, and loss_fn gets that as it is: return the tensor, "
            "take it out in loss_fn, or give the model a method loss(outputs, batch) in place of loss_fn",
        )


def _is_array(item: Any) -> bool:
    return type(item).__module__ == "numpy" and hasattr(item, "shape")


def _described(item: Any) -> str:
    shape = f" of shape {tuple(item.shape)}" if hasattr(item, "shape") else ""
    return f"a {type(item).__name__}{shape}"
