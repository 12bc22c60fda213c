"""What a model is restored from: weights by name, what is trained, and what is in train mode."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch.nn.parameter import is_lazy

from ..checkpoint import StoredTensor
from ..errors import CheckpointError, CheckpointWarning, suggestion
from ..loop import keep_modules
from ..messages import cause_of, join_words, warn
from ..parallel import shard_like
from ..state import State
from .session import Session

Modes: TypeAlias = dict[str, dict[str, dict[str, bool]]]
"""By part of the run (model, loss), then by attribute, then by the name of the parameter or module."""


def modes_of(state: State) -> Modes:
    """Return `requires_grad` of all parameters and `training` of all modules."""
    modes: Modes = {}
    for label, attribute, items in _modes_in(state):
        modes.setdefault(label, {})[attribute] = {name: getattr(item, attribute) for name, item in items}
    return modes


def put_modes_back(state: State, saved: Any) -> None:
    """Set them as they were saved; what has another name than all that was saved stays as it is."""
    for label, attribute, items in _modes_in(state):
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
                    names = join_words([repr(k) if k else f"the {label}" for k in found])
                    yield (
                        f"{attribute} of {names}{f' in the {label}' if any(found) else ''} was given as {value} but "
                        f"resumes as saved: it was given as {not value}"
                    )


def _modes_in(state: State) -> Iterator[tuple[str, str, list[tuple[str, Any]]]]:
    """Yield each part of the run, an attribute, and by name what has it."""
    for label, part in (("model", state.model), ("loss", state.loss_fn)):
        if isinstance(part, torch.nn.Module):
            yield label, "requires_grad", list(part.named_parameters())
            yield label, "training", list(part.named_modules())


def _saved_in(saved: Any, label: str, attribute: str) -> Mapping[str, bool]:
    try:
        values: Mapping[str, bool] = saved.get(label, {}).get(attribute, {})
        is_valid = all(type(value) is bool for value in values.values())
    except AttributeError:
        is_valid = False
    if not is_valid:
        raise CheckpointError(f"the checkpoint has no valid {attribute} of the {label}")
    return values


_SHOWN = 5
_TENSORS = (torch.Tensor, StoredTensor)
_LOADING = ("load_state_dict", "_load_from_state_dict")


def load_weights(
    model: Any, weights: Mapping[str, Any], *, strict: bool, casts: bool = False, left_too: str = ""
) -> bool:
    """Load weights and buffers by their names in the model's state_dict; return whether all of them fit.

    The model's own `load_state_dict` decides what fits, as it may take other names and sizes; no value may be cast.

    Args:
        strict: everything has to fit, or nothing is loaded; else what does not fit stays, and one warning lists it.
        casts: accept weights of another floating type, such as float32 for a bfloat16 model.
        left_too: the warning's last line, about the rest of the checkpoint.
    """
    own = model.state_dict()
    unlike = _unlike(own, weights, casts=casts)
    put_back = keep_modules(model, [*model.parameters(), *model.buffers()]) if unlike else None
    refused, said = _refused(model, own, weights, unlike, casts=casts)
    if not refused and not said:
        return True
    if put_back is not None:
        put_back()
    lines = [*_lines(refused, own, weights), *filter(None, [said])]
    if strict or not refused:
        raise CheckpointError("\n  ".join(["the weights are another model's:", *lines]))
    warn("\n  ".join(["not all weights were loaded:", *lines, *filter(None, [left_too])]), CheckpointWarning)
    fitting = {**own, **{name: value for name, value in weights.items() if name not in refused}}
    error, _ = _loaded(model, own, fitting)
    if error is not None:
        put_back()  # type: ignore[misc]  # something was unlike
        raise CheckpointError(f"the model can't load the weights that fit: {cause_of(error)}") from error
    return False


def _unlike(own: Mapping[str, Any], weights: Mapping[str, Any], *, casts: bool) -> dict[str, str]:
    """Return by name how the checkpoint and the model differ."""
    found = {name: "is missing from the checkpoint" for name in own if name not in weights}
    found |= {name: "is not in the model" for name in weights if name not in own}
    both = {name: _difference(weights[name], own[name], casts=casts) for name in own if name in weights}
    return found | {name: f"is {difference}" for name, difference in both.items() if difference}


def _refused(
    model: Any, own: Mapping[str, Any], weights: Mapping[str, Any], unlike: dict[str, str], *, casts: bool
) -> tuple[dict[str, str], str]:
    """Load; return what of the `unlike` was refused, and what the model said if it named none of it."""
    error, left = _loaded(model, own, weights)
    if error is not None:
        said = str(error)
        named = {name: how for name, how in unlike.items() if f'"{name}"' in said or f"for {name}:" in said}
        return named or unlike, "" if named else cause_of(error)
    now = model.state_dict() if unlike else {}
    both = [name for name in unlike if name in weights and name in now]
    casted = {name: f"is {cast}" for name in both if (cast := _cast(weights[name], now[name], casts=casts))}
    return {name: how for name, how in unlike.items() if name in left} | casted, ""


def _loaded(model: Any, own: Mapping[str, Any], weights: Mapping[str, Any]) -> tuple[Exception | None, set[str]]:
    """Load; return the error with which the model refuses, and the names that it says it left out without one."""
    try:
        told = model.load_state_dict({name: shard_like(value, own.get(name)) for name, value in weights.items()})
    except Exception as error:  # noqa: BLE001  the model's own code
        return error, set()
    return None, {*getattr(told, "missing_keys", ()), *getattr(told, "unexpected_keys", ())}


def _lines(refused: Mapping[str, str], own: Mapping[str, Any], weights: Mapping[str, Any]) -> list[str]:
    """Return a line for each of the first few that are missing, foreign or unlike, with the name that may be meant."""
    missing, foreign = ([name for name in refused if name not in those] for those in (weights, own))
    both = [name for name in refused if name in own and name in weights]
    lines = []
    for names, others in ((missing, foreign), (foreign, missing), (both, [])):
        lines += [f"{name!r} {refused[name]}{suggestion(name, others)}" for name in names[:_SHOWN]]
        lines += [f"... and {len(names) - _SHOWN} more"] * (len(names) > _SHOWN)
    return lines


def shapes_of(model: Any) -> dict[str, Any]:
    """Return the shapes of parameters and buffers by name, None for lazy ones."""
    return {k: None if is_lazy(v) else v.shape for k, v in (*model.named_parameters(), *model.named_buffers())}


def warn_of_shapes(session: Session, saved: Container[str]) -> None:
    """Warn, once for each, of saved entries that training has sized; not where a module loads them in its own way."""
    model: Any = session.state.model
    given, session.given_shapes = session.given_shapes, shapes_of(model)
    modules = session.given_modes["model"]["training"]  # others have come with surgery, which knows them on resuming
    shapes = {k: shape for k, shape in session.given_shapes.items() if k in saved and k.rpartition(".")[0] in modules}
    names = [k for k, shape in shapes.items() if given.get(k, "") not in (None, shape)]
    for path, module in model.named_modules():
        own = (getattr(type(module), name) is not getattr(torch.nn.Module, name) for name in _LOADING)
        if any(own) or module._load_state_dict_pre_hooks:  # noqa: SLF001
            names = [name for name in names if path and not name.startswith(f"{path}.")]
    if names:
        warn(
            f"training gave {join_words([*map(repr, names)])} of the model other shapes than they came with, so no "
            "checkpoint of this run loads into a new model: create them in their final shapes, run one batch before "
            "you give the model to the Trainer, or define _load_from_state_dict",
            CheckpointWarning,
        )


def is_by_weights(state: Any, weights: Mapping[str, Any]) -> bool:
    """Does a state hold tensors under the weights' names, as an average does? Then it belongs to that model alone."""
    if isinstance(state, (list, tuple)):
        return any(is_by_weights(item, weights) for item in state)
    if not isinstance(state, Mapping):
        return False
    return any((k in weights and isinstance(v, _TENSORS)) or is_by_weights(v, weights) for k, v in state.items())


def _difference(saved: Any, own: Any, *, casts: bool) -> str:
    """Return how a saved value's shape, type or dtype differs from the model's, or nothing."""
    if is_lazy(own) and isinstance(saved, _TENSORS):
        return ""  # it has no shape yet, and takes that of what is loaded
    then, now = _shape(saved), _shape(own)
    return _cast(saved, own, casts=casts) if then == now else f"{then} in the checkpoint and {now} in the model"


def _cast(saved: Any, own: Any, *, casts: bool) -> str:
    """Return how the dtypes of two tensors differ, or nothing."""
    if not (isinstance(saved, _TENSORS) and isinstance(own, torch.Tensor)) or saved.dtype is own.dtype:
        return ""
    if casts and saved.dtype.is_floating_point and own.dtype.is_floating_point:
        return ""
    return f"{saved.dtype} in the checkpoint and {own.dtype} in the model"


def _shape(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, _TENSORS) else type(value).__name__
