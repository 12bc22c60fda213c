"""Residual blocks that are dropped at random in training. Independent of the engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from engine_core.arguments import check_number
from engine_core.errors import ArgumentError, ArgumentTypeError, did_you_mean
from engine_core.randomness import private_unless

from .draws import Draws
from .models import check_model
from .replacement import replace_modules

__all__ = [
    "TARGETS",
    "Settings",
    "StochasticBlock",
    "apply_stochastic_depth",
    "drop_rates",
    "find_blocks",
    "scale_drop_rates",
    "wrap_blocks",
]

Target = str | type[nn.Module]

TARGETS: tuple[Target, ...] = ("BasicBlock", "Bottleneck", "TransformerEncoderLayer")

_LEAVE = "leave it out of the targets of stochastic_depth"


class StochasticBlock(nn.Module):
    """Compute a residual block, and in training drop what it adds to its input at random.

    In train mode `x + gate * (block(x) - x) / keep` with `keep = 1 - rate` and gates of 0 and 1 that are 1 with
    probability `keep`, so that the expectation is block(x); in eval mode block(x). A block whose output has another
    shape than its input has no identity to fall back on, and is always kept.

    Args:
        block: takes x as its first positional argument and returns a tensor; further arguments are passed on.
        rate: the probability that it is dropped, in [0, 1); of which `draws.share` applies.
        draws: where the gates come from.
        name: the name by which `draws` knows this block.
        per_sample: a gate for each sample; else one for all, and a dropped block is not computed, unless it trains and
            nothing before it does: a loss without a graph would have no gradients.

    Raises:
        TypeError: when called in training, for a block that does not return a tensor or gets no positional argument.
        ValueError: when called in training, for one that changes its input in place.
    """

    def __init__(self, block: nn.Module, rate: float, draws: Draws, name: str, per_sample: bool) -> None:  # noqa: FBT001
        super().__init__()
        self.block = block
        self.set_up(rate, draws, name, per_sample)

    def set_up(self, rate: float, draws: Draws, name: str, per_sample: bool) -> None:  # noqa: FBT001
        """Change the settings of the block."""
        self.rate = rate
        self.draws = draws
        self.name = name
        self.per_sample = per_sample

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the block returns, or in training what is left of it."""
        if not self.training or self.rate == 0:
            return self.block(*args, **kwargs)
        if not args or not isinstance(args[0], torch.Tensor):
            raise ArgumentTypeError(f"{self._who} has to get its input, a tensor, as its first positional argument")
        return self._drop(args[0], args, kwargs)

    def _drop(self, x: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        rate = self.draws.applied(self.rate)
        gates = self._gates(x, rate)
        dtype = self.draws.gives.get(self.name)
        if not self.per_sample and dtype is not None and not gates.item() and self._may_skip(x):
            return x.to(dtype)
        version = _version(x)
        out = self.block(*args, **kwargs)
        if not isinstance(out, torch.Tensor):
            raise ArgumentTypeError(
                f"{self._who} returns {type(out).__name__}, but to be dropped it has to return a tensor: {_LEAVE}"
            )
        if out.shape != x.shape:
            self.draws.gives[self.name] = None
            return out
        if _version(x) != version:
            raise ArgumentError(
                f"{self._who} changes its input in place, so nothing is left to fall back on when it is dropped: "
                f"write x = x + f(x) instead of x += f(x), with no inplace=True before it; or {_LEAVE}"
            )
        self.draws.gives[self.name] = out.dtype
        if not rate:
            return out
        return torch.where(gates.to(x.device), x + (out - x) / (1 - rate), x).to(out.dtype)

    def _may_skip(self, x: torch.Tensor) -> bool:
        """Can x be returned alone? Not if only the block makes a graph: a loss without one can't be trained."""
        if x.requires_grad or not torch.is_grad_enabled():
            return True
        return not any(parameter.requires_grad for parameter in self.block.parameters())

    def _gates(self, x: torch.Tensor, rate: float) -> torch.Tensor:
        """Return booleans that broadcast with x."""
        samples = _samples_dim(self.block, x) if self.per_sample else None
        shape = [x.shape[dim] if dim == samples else 1 for dim in range(x.dim())]
        return self.draws.kept(rate, 1 if samples is None else x.shape[samples]).view(shape)

    @property
    def _who(self) -> str:
        return f"the block {self.name!r} ({type(self.block).__name__})"

    def __getattr__(self, name: str) -> Any:
        """Pass reads through to the block: nn.TransformerEncoder looks at its first layer's attention."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            block = self.__dict__.get("_modules", {}).get("block")
            if block is None or name.startswith("__"):
                raise
            return getattr(block, name)

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"rate={self.rate:.4g}, per_sample={self.per_sample}"


@dataclass(frozen=True)
class Settings:
    """Which blocks are dropped, and how often; see `apply_stochastic_depth`."""

    targets: Sequence[Target] = TARGETS
    drop_rate: float = 0.2
    drop_distribution: str = "linear"
    drop_per: str = "sample"

    def __post_init__(self) -> None:
        check_number("drop_rate", self.drop_rate, "[0, 1)", "the probability that the last block is dropped")
        for name, known in (("drop_distribution", ("linear", "uniform")), ("drop_per", ("sample", "batch"))):
            if (given := getattr(self, name)) not in known:
                raise ArgumentError(f"{name}={given!r} has to be {' or '.join(known)}{did_you_mean(str(given), known)}")
        targets: object = self.targets
        if isinstance(targets, str) or not isinstance(targets, Sequence) or not targets:
            raise ArgumentTypeError(f"targets={targets!r} has to be a list of class names or classes")
        for target in targets:
            if not (isinstance(target, type) and issubclass(target, nn.Module)) and not isinstance(target, str):
                raise ArgumentTypeError(f"targets: {target!r} is neither a class name nor a module class")

    def aims_at(self, module: nn.Module) -> bool:
        """Is this one of the blocks to drop?"""
        if type(module).__name__ in self.targets:
            return True
        return isinstance(module, tuple(target for target in self.targets if isinstance(target, type)))


def apply_stochastic_depth(  # noqa: PLR0913  settings are those of the reference, in its order
    model: nn.Module,
    targets: Sequence[Target] = TARGETS,
    drop_rate: float = 0.2,
    drop_distribution: str = "linear",
    drop_per: str = "sample",
    *,
    optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] = (),
    generator: torch.Generator | None = None,
) -> list[str]:
    """Drop the residual blocks of a model at random in training, and return their names, all of a shared one.

    Source: Huang et al. 2016, Deep Networks with Stochastic Depth, arXiv 1603.09382; for the layers of transformers
    Fan et al. 2019, arXiv 1909.11556. In training, what a block adds to its input is divided by the probability of
    keeping it; the paper multiplies by it in evaluation instead. See `StochasticBlock`.

    Args:
        targets: names of classes, compared only with a block's own class, or classes, where subclasses count too.
            Blocks within blocks are skipped.
        drop_rate: the probability that the last block is dropped, in [0, 1).
        drop_distribution: `linear`: block l of L, from 1, is dropped with probability `drop_rate * l / L`;
            `uniform`: each with probability `drop_rate`.
        drop_per: `sample`: each sample is drawn for by itself; `batch`: one draw for all, as in the papers, and a
            dropped block is not computed.
        optimizers: existing ones, or one; some keep the names of parameters, which change.
        generator: draws the gates; None: a private one, seeded by the system.

    Raises:
        ValueError, TypeError: for invalid arguments.

    Example:
        >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 2)
        >>> apply_stochastic_depth(encoder)
        ['layers.0', 'layers.1']
        >>> [layer.rate for layer in encoder.layers]
        [0.1, 0.2]
    """
    check_model(model)
    settings = Settings(targets, drop_rate, drop_distribution, drop_per)
    return wrap_blocks(model, settings, Draws(private_unless(generator)), optimizers)


def wrap_blocks(
    model: nn.Module,
    settings: Settings,
    draws: Draws,
    optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] = (),
) -> list[str]:
    """Wrap the blocks in stochastic ones, give new settings to those already wrapped; return all their names."""
    blocks = find_blocks(model, settings)
    rates = dict(zip(blocks, drop_rates(len(blocks), settings.drop_rate, settings.drop_distribution), strict=True))
    wrapped: dict[int, StochasticBlock] = {}
    for name, block in blocks.items():
        given = (rates[name], draws, name, settings.drop_per == "sample")
        if isinstance(block, StochasticBlock):
            block.set_up(*given)
        else:
            wrapped[id(block)] = StochasticBlock(block, *given)
    if wrapped:
        replace_modules(model, {nn.Module: lambda module, _: wrapped.get(id(module))}, optimizers=optimizers)
    now = {wrapped.get(id(block), block) for block in blocks.values()}
    return [name for name, module in model.named_modules(remove_duplicate=False) if module in now]


def scale_drop_rates(model: nn.Module, share: float) -> None:
    """Let a share of their rates apply to the blocks that `apply_stochastic_depth` made, for a warm-up of your own.

    Args:
        share: in [0, 1]; 1 until this is called.

    Raises:
        ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) for another share, or what is not a model.

    Example:
        >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 2)
        >>> names = apply_stochastic_depth(encoder)
        >>> for step in range(4):
        ...     scale_drop_rates(encoder, min(1, step / 2))
    """
    check_model(model)
    share = check_number("share", share, "[0, 1]", "how much of the rates applies")
    for module in model.modules():
        if isinstance(module, StochasticBlock):
            module.draws.share = share


def drop_rates(count: int, drop_rate: float, drop_distribution: str) -> list[float]:
    """Return the probability that each of `count` blocks is dropped, the first one first.

    Example:
        >>> drop_rates(4, 0.5, "linear")
        [0.125, 0.25, 0.375, 0.5]
    """
    if drop_distribution == "uniform":
        return [drop_rate] * count
    return [drop_rate * place / count for place in range(1, count + 1)]


def find_blocks(model: nn.Module, settings: Settings) -> dict[str, nn.Module]:
    """Return the outermost blocks by name, in the order of the model; one used in several places only once."""
    found: dict[str, nn.Module] = {}
    seen: set[int] = set()

    def visit(module: nn.Module, name: str) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        if settings.aims_at(module.block if isinstance(module, StochasticBlock) else module):
            found[name] = module
            return
        for key, child in module.named_children():
            visit(child, f"{name}.{key}" if name else key)

    visit(model, "")
    return found


def _version(x: torch.Tensor) -> int:
    """Return how often a tensor was written to in place; inference mode does not count."""
    return 0 if x.is_inference() else x._version  # noqa: SLF001  torch has no public name for it


def _samples_dim(block: nn.Module, x: torch.Tensor) -> int | None:
    """Return the dimension of the samples, None if x is one sample: the first, except in some of torch's layers."""
    if isinstance(block, nn.TransformerEncoderLayer):
        return None if x.dim() == 2 else 0 if block.self_attn.batch_first else 1
    return 0
