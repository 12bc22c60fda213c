"""What a `state_dict` leaves out of a module: which parameters are trained, and which modules are in train mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import torch

from ...errors import CheckpointError
from ...messages import enumerated
from ...state import State

Modes: TypeAlias = dict[str, dict[str, dict[str, bool]]]
"""By part of the run (model, loss), then by attribute, then by the name of the parameter or module."""


def modes_of(state: State) -> Modes:
    """Return `requires_grad` of all parameters and `training` of all modules."""
    return {
        label: {attribute: {name: getattr(item, attribute) for name, item in items} for attribute, items in _of(part)}
        for label, part in _parts_of(state)
    }


def put_modes_back(state: State, saved: Any) -> None:
    """Set them as they were saved; what has another name than all that was saved stays as it is."""
    for label, part in _parts_of(state):
        for attribute, items in _of(part):
            then = _saved_in(saved, label, attribute)
            for name, item in items:
                if then.get(name, getattr(item, attribute)) is not getattr(item, attribute):
                    setattr(item, attribute, then[name])


def differing_modes(saved: Any, now: Modes) -> Iterator[str]:
    """Yield a message for each attribute and value that this run's parts were given with, and the saved run's not."""
    for label, attributes in now.items():
        for attribute, values in attributes.items():
            then = _saved_in(saved, label, attribute)
            for value in (False, True):
                found = [k for k, v in values.items() if v is value and then.get(k, v) is not v]
                if found:
                    names = enumerated([repr(k) if k else f"the {label}" for k in found])
                    yield (
                        f"{attribute} of {names}{f' in the {label}' if any(found) else ''} was given as {value} but "
                        f"resumes as saved: it was given as {not value}"
                    )


def _parts_of(state: State) -> Iterator[tuple[str, torch.nn.Module]]:
    for label, part in (("model", state.model), ("loss", state.loss_fn)):
        if isinstance(part, torch.nn.Module):
            yield label, part


def _of(part: torch.nn.Module) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    yield "requires_grad", list(part.named_parameters())
    yield "training", list(part.named_modules())


def _saved_in(saved: Any, label: str, attribute: str) -> Mapping[str, bool]:
    try:
        values: Mapping[str, bool] = saved.get(label, {}).get(attribute, {})
        is_valid = all(type(value) is bool for value in values.values())
    except AttributeError:
        is_valid = False
    if not is_valid:
        raise CheckpointError(f"the checkpoint has no valid {attribute} of the {label}")
    return values
