"""Log how large the gradients, the weights and the updates of each layer are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from engine_core import Callback, Logger, State, Time
from engine_core.errors import ArgumentError, ArgumentTypeError, did_you_mean

from .pace import Pace

__all__ = ["Norms"]

_HALVES = (torch.float16, torch.bfloat16)
_NONE = -1.0
"""In place of the norm of gradients that are not there."""


class Norms(Callback):
    """Logs for each layer how large its gradients and weights are, and how far a step moves the weights.

    A layer is a module with parameters of its own, which are taken together: `norms/gradient/<layer>`,
    `norms/weight/<layer>`, and `norms/update_to_weight/<layer>`, the norm of the step's change over that of the weights
    before it. Parameters that don't train are left out. The step is that of the batch's loss. Gradients are those that
    the optimizers step with: unscaled, clipped, after the algorithms. A step that is skipped has an update of 0.

    A step that is measured keeps a copy of the weights until its end. Other steps only look at the clock. Without
    loggers nothing is measured. On several processes the norms are those of the global batch, sharded or not.

    Args:
        interval: how often: in the first step, and in the first one of each interval.
        layers: names of layers, in which `*` stands for anything; None: all.

    Example:
        >>> from engine_core_author import RecordingDestination
        >>> model, seen = torch.nn.Linear(2, 1, bias=False), RecordingDestination()
        >>> state, logger, norms = State(model=model), Logger([seen]), Norms()
        >>> norms.init(state, logger)
        >>> model.weight.data, model.weight.grad = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 1.0]])
        >>> norms.after_train_batch(state, logger)
        >>> model.weight.data -= model.weight.grad  # the step
        >>> norms.batch_end(state, logger)
        >>> seen.metrics[0][1]
        {'norms/gradient/(model)': 1.0, 'norms/weight/(model)': 5.0, 'norms/update_to_weight/(model)': 0.2}
    """

    def __init__(self, interval: Time | str = "100ba", layers: Sequence[str] | None = None) -> None:
        self._pace = Pace(interval)
        self.interval, self.layers = self._pace.interval, None if layers is None else _checked(layers)
        self._is_logged = False
        self._kept: dict[str, _Layer] = {}

    def init(self, state: State, logger: Logger) -> None:
        """Forget an earlier run, and refuse an interval that can't be counted in this one."""
        self._pace.begin(state)
        self._kept = {}

    def fit_start(self, state: State, logger: Logger) -> None:
        """Refuse names that no layer has, and agree whether to measure: sharded weights take all ranks.

        Raises:
            ArgumentError: (a ValueError) with the nearest name.
        """
        self._pace.locate(state)
        self._kept = {}
        names = [*_layers(state.model)]
        for pattern in self.layers or ():
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ArgumentError(f"norms: no layer that trains is called {pattern!r}{did_you_mean(pattern, names)}")
        self._is_logged = state.ranks.any(logger.destinations)

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """Take the gradients' norms if it is time to, and keep a copy of the weights."""
        if not self._pace.is_due(state.timestamp):
            return
        # Where no weight is sharded, all ranks have the same, and those that log nothing need not look.
        if self._is_logged if state.ranks.is_sharded else logger.destinations:
            layers = _layers(state.model).items()
            made = {
                name: [each for each in own if not isinstance(each, UninitializedParameter)]
                for name, own in layers
                if self._is_wanted(name)
            }
            self._kept = {name: _Layer(own) for name, own in made.items() if own}

    def batch_end(self, state: State, logger: Logger) -> None:
        """Log, now that the step was made."""
        if self._kept:
            kept, self._kept = self._kept, {}
            logger.log_metrics(_ratios(kept), state.timestamp.batch - 1)

    def state_dict(self) -> dict[str, Any]:
        """Return which interval has begun."""
        return self._pace.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue within it."""
        self._pace.load_state_dict(state)

    def _is_wanted(self, name: str) -> bool:
        return self.layers is None or any(fnmatchcase(name, pattern) for pattern in self.layers)


class _Layer:
    """Parameters of one layer as they are before the step: a copy, and the norm of their gradients."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._parameters = parameters
        self._before = [parameter.detach().clone() for parameter in parameters]
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        self.gradient = _norm(grad.coalesce().values() if grad.is_sparse else grad for grad in grads)

    def weight_and_update(self) -> list[torch.Tensor]:
        """Return the norm of the weights before the step, and that of their change."""
        pairs = zip(self._parameters, self._before, strict=True)
        return [_norm(self._before), _norm(parameter.detach() - before for parameter, before in pairs)]


def _ratios(layers: Mapping[str, _Layer]) -> dict[str, float]:
    """Return what is logged, with one wait for the device; a weight of 0 has no ratio, and no gradient no norm."""
    norms = [norm for layer in layers.values() for norm in (layer.gradient, *layer.weight_and_update())]
    numbers = iter(torch.stack([norm.to(norms[0].device) for norm in norms]).tolist())
    logged: dict[str, float] = {}
    for name in layers:
        gradient, weight, update = next(numbers), next(numbers), next(numbers)
        if gradient != _NONE:
            logged[f"norms/gradient/{name}"] = gradient
        logged[f"norms/weight/{name}"] = weight
        if weight:
            logged[f"norms/update_to_weight/{name}"] = update / weight
    return logged


def _layers(model: Any) -> dict[str, list[nn.Parameter]]:
    """Return the parameters that train by the name of their layer; one that several modules share is the first's."""
    found: dict[str, list[nn.Parameter]] = {}
    seen = set[int]()
    for path, module in model.named_modules():
        # torch.compile puts a module of this name around what it compiles.
        name = ".".join(part for part in path.split(".") if part != "_orig_mod") or "(model)"
        for parameter in module.parameters(recurse=False):
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                found.setdefault(name, []).append(parameter)
    return found


def _norm(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the norm of all tensors together, or `_NONE` without any."""
    norms = [_norm_of(tensor) for tensor in tensors]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.full((), _NONE)


def _norm_of(tensor: torch.Tensor) -> torch.Tensor:
    norm: Any = torch.linalg.vector_norm(tensor, dtype=torch.float32 if tensor.dtype in _HALVES else None)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # type: ignore[no-any-return]  # if sharded


def _checked(layers: object) -> tuple[str, ...]:
    if isinstance(layers, str) or not isinstance(layers, Sequence) or not all(isinstance(n, str) for n in layers):
        raise ArgumentTypeError(f"layers={layers!r} has to be a list of names, such as ['encoder.*', 'head']")
    if not layers:
        raise ArgumentError("layers=[] names no layer, so nothing would be measured: name some, or give None for all")
    return tuple(layers)
