"""Scores from a small net that trains beside the model, on the rows that it picks."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from engine_core import Event, State
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core.objective import autocast_of, row_losses
from engine_core.ranks import Ranks

from ..arguments import Maker, made_by
from ..scoring import borrowed_loss
from ..subject import Subject
from .contract import ByLoss, Log

__all__ = ["ByProxy"]

_SEED = "selective_backprop/proxy"


class ByProxy(ByLoss):
    """The losses of a proxy, which then trains on the rows that are kept; in other steps on all rows.

    Sources: Coleman et al. 2020, Selection via Proxy, arXiv 1906.11829; and airbench96 of Jordan 2024, arXiv
    2404.00498, where the proxy trains first, on the same batches. Beside the model it picks the same rows, as it never
    sees it.

    Args:
        proxy: the net, or a function that makes it, alone or as a pair with an optimizer for it. Without one it gets
            an optimizer of the class of the run's, with the settings that the run's first group has at each step.
        device: where it trains.
    """

    def __init__(self, ranks: Ranks, proxy: Maker, device: torch.device) -> None:
        super().__init__(ranks)
        self._given, self._device = proxy, device
        self._made: tuple[nn.Module, Optimizer] | None = None
        self._follows = False
        self._saved: dict[str, Any] = {}
        self._losses: torch.Tensor | None = None
        """Of this rank's rows, with their graph, until it is known which are kept."""

    def check(self, subject: Subject, batch: Any) -> None:
        """Raise also if there is no such net, no optimizer for it, or no loss of rows for what it gives."""
        super().check(subject, batch)
        subject.objective.check_row_losses(self._ready(subject.state)[0])

    def scores(self, subject: Subject, state: State, batch: Any, generator: torch.Generator, log: Log) -> torch.Tensor:
        """Return the losses of the proxy, in train mode."""
        self._losses = self._forward(subject, state, batch)
        return self.ranks.gather(self._losses.detach())[0]

    def keep(self, rows: torch.Tensor, k: int, state: State) -> None:
        """Train the proxy on the mean loss of the kept rows."""
        losses, self._losses = self._losses, None
        assert losses is not None
        self._step(state, losses.index_select(0, rows).sum() / k)

    def wants(self, event: Event) -> bool:
        """AFTER_DATALOADER of steps that keep all rows: the proxy trains on them."""
        return event is Event.AFTER_DATALOADER

    def react(self, event: Event, subject: Subject, state: State) -> None:
        """Train the proxy on the whole batch."""
        losses = self._forward(subject, state, state.batch)
        self._step(state, losses.sum() / self.ranks.sum(losses.shape[0]))

    def begin_fit(self) -> None:
        """Forget the graph of a step that an exception ended."""
        self._losses = None

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the proxy and its optimizer."""
        if self._made is None:
            return self._saved
        net, optimizer = self._made
        of_optimizer = optimizer.state_dict()
        by_number = {**of_optimizer, "state": [*of_optimizer["state"].items()]}  # numbers are no keys in JSON
        return {"proxy": _copied(net.state_dict()), "proxy_optimizer": _copied(by_number)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the saved proxy; a run with another scorer has saved none."""
        self._saved = {name: state[name] for name in ("proxy", "proxy_optimizer") if name in state}

    def _ready(self, state: State) -> tuple[nn.Module, Optimizer]:
        """Return the proxy and its optimizer, made when they are first needed, alike on all ranks."""
        if self._made is not None:
            return self._made
        made = made_by(self._given, state.derive_seed(_SEED, shared=True))
        net: Any = made
        optimizer: Any = None
        if isinstance(made, tuple) and len(made) == 2:
            net, optimizer = made
        if not isinstance(net, nn.Module) or not isinstance(optimizer, (Optimizer, type(None))):
            raise ArgumentTypeError(f"proxy gives {made!r:.80}, not an nn.Module, or a pair of it and its optimizer")
        net.to(self._device).train()
        self._follows = optimizer is None
        optimizer = _like(state.optimizers, net) if optimizer is None else optimizer
        if self.ranks.size > 1:
            net.load_state_dict(self.ranks.first(net.state_dict()))
        if self._saved:
            try:
                net.load_state_dict(self._saved["proxy"])
                saved = self._saved["proxy_optimizer"]
                optimizer.load_state_dict({**saved, "state": dict(saved["state"])})
            except (KeyError, RuntimeError, ValueError) as error:
                raise ArgumentError(
                    f"the saved proxy does not fit into {type(net).__name__}: give the proxy of the saved run ({error})"
                ) from error
        self._made = net, optimizer
        return self._made

    def _forward(self, subject: Subject, state: State, batch: Any) -> torch.Tensor:
        """Return the loss of each of this rank's rows (n,), with its graph."""
        net, objective = self._ready(state)[0], subject.objective
        # Gradients in fp16 would need a scaler of their own.
        precision = "fp32" if state.precision == "amp_fp16" else state.precision
        seed = state.derive_seed(f"{_SEED}/{state.timestamp.batch}")
        with borrowed_loss(objective, seed), torch.enable_grad(), autocast_of(precision, self._device):
            losses = row_losses(objective, net, objective.forward(net, batch), batch)
        return losses[: self.number(subject, state, batch)]

    def _step(self, state: State, loss: torch.Tensor) -> None:
        """Take a step down the gradient of the sum of all ranks' losses, unless it is not finite."""
        net, optimizer = self._ready(state)
        parameters = [each for each in net.parameters() if each.requires_grad]
        found = torch.autograd.grad(loss, parameters, materialize_grads=True)  # writes to no other
        flat = torch.cat([each.flatten() for each in found])
        if self.ranks.size > 1:
            flat = self.ranks.gather(flat.unsqueeze(0))[0].sum(0)
        if not flat.isfinite().all():
            return  # one such batch would spoil it for good
        for own, part in zip(parameters, torch.split(flat, [each.numel() for each in parameters]), strict=True):
            own.grad = part.view_as(own)
        if self._follows:
            theirs, ours = state.optimizers[0].param_groups[0], optimizer.param_groups[0]
            ours.update({name: value for name, value in theirs.items() if name in ours and name != "params"})
        optimizer.step()
        optimizer.zero_grad()


def _copied(value: Any) -> Any:
    """Return a copy of a state, with lists for tuples."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {name: _copied(each) for name, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, (list, tuple)) else value


def _like(optimizers: Sequence[Optimizer], net: nn.Module) -> Optimizer:
    """Return an optimizer of the run's class for a net.

    Raises:
        ArgumentError: (a ValueError) if the run has several, or that class takes more than parameters and settings.
    """
    kinds = ", ".join(type(each).__name__ for each in optimizers) or "no optimizer"
    remedy = "let proxy be a function that returns the net and an optimizer for it, as a pair"
    if len(optimizers) != 1:
        raise ArgumentError(f"the proxy trains as the model does, but the run has {kinds}: {remedy}")
    kind, defaults = type(optimizers[0]), optimizers[0].defaults
    try:
        taken = inspect.signature(kind).parameters
        made: Optimizer = kind(net.parameters(), **{name: each for name, each in defaults.items() if name in taken})
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{kinds}, the run's optimizer, can't train the proxy ({error}): {remedy}") from error
    return made
