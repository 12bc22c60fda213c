"""A model that takes a batch, over one that takes something else."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from ..errors import ArgumentError


def batch_view(
    model: nn.Module, call: Callable[[Callable[..., Any], Any], Any], loss: Callable[..., Any] | None = None
) -> nn.Module:
    """Return the same module under a subclass of its class, which is called with a whole batch.

    It shares all attributes with the model: names of parameters, surgery, hooks and mode are the model's own.

    Args:
        model: one that takes something else, such as keywords.
        call: called with what calls the model, and with the batch; returns the outputs.
        loss: the view's method `loss(outputs, batch, reduction="mean")`, for a run without a `loss_fn`: algorithms ask
            for the loss of each row with `reduction="none"`.

    Raises:
        ArgumentError: (a ValueError) if the model has an attribute `loss` and one is given.

    Example:
        >>> import torch
        >>> model = nn.Linear(2, 1)
        >>> view = batch_view(model, lambda call, batch: call(batch["x"]))
        >>> torch.equal(view({"x": torch.ones(3, 2)}), model(torch.ones(3, 2)))
        True
        >>> view.weight is model.weight, isinstance(view, nn.Linear)
        (True, True)
    """
    kind = type(model)
    if loss is not None and hasattr(model, "loss"):
        raise ArgumentError(
            f"{kind.__name__} has an attribute 'loss', which the loss given would hide: rename it, or call the model's "
            "own loss from within `call`"
        )

    # Not `forward`, which hooks and wrappers may replace in the attributes that are shared.
    def called(self: nn.Module, batch: Any) -> Any:
        return call(functools.partial(kind.__call__, self), batch)

    methods: dict[str, Any] = {"__call__": called, "__module__": kind.__module__}
    if loss is not None:
        methods["loss"] = lambda _, outputs, batch, reduction="mean": loss(outputs, batch, reduction=reduction)
    view: nn.Module = object.__new__(type(kind.__name__, (kind,), methods))
    object.__setattr__(view, "__dict__", model.__dict__)
    return view
