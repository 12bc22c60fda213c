"""Norms that mix the token before into what they give. Independent of the engine."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from engine_core.arguments import check_number
from engine_core.errors import ArgumentError, ArgumentTypeError

from .models import check_model
from .replacement import replace_modules

__all__ = ["NORMS", "ShiftedNorm", "apply_token_shift", "check_norms", "check_share", "find_norms"]

NORMS = ("*.norm1", "*.norm2", "*.ln_1", "*.ln_2")
"""What the norms before attention and feed-forward are called in torch's transformer layers, and in GPT-2."""

_KINDS = ("LayerNorm", "RMSNorm")
"""What the names of classes of norms of tokens end with, those of models' own included."""


def check_norms(norms: Any) -> tuple[str, ...]:
    """Return patterns of names; one may be given as a string."""
    patterns = (norms,) if isinstance(norms, str) else norms
    if not isinstance(patterns, Sequence) or not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise ArgumentTypeError(f"norms={norms!r} has to be a list of patterns of names, such as ['blocks.*.norm1']")
    return tuple(patterns)


def check_share(share: float) -> float:
    """Return the initial share of the token before."""
    return check_number("share", share, "[0, 1]", "the initial share of the token before")


class ShiftedNorm(nn.Module):
    """Normalise tokens, and mix into each the one before it: `(1 - share) * x[t] + share * x[t - 1]`, by channel.

    Before the first token of a row there are zeros. Source: Peng et al. 2023, RWKV, arXiv 2305.13048.

    Args:
        norm: gives (n, length, channels).
        channels: how many shares there are.
        share: what each begins with.

    Raises:
        ArgumentError: (a ValueError) when called, unless the norm gives (n, length, channels).

    Example:
        >>> ShiftedNorm(nn.Identity(), 1, share=0.25)(torch.tensor([[[4.0], [8.0], [0.0]]])).flatten()
        tensor([3., 7., 2.], grad_fn=<ViewBackward0>)
    """

    def __init__(self, norm: nn.Module, channels: int, share: float = 0.25) -> None:
        super().__init__()
        self.norm = norm
        self.share = nn.Parameter(torch.full((channels,), check_share(share)))
        self.train(norm.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (n, length, channels), in the dtype that the norm gives."""
        x = self.norm(x)
        if x.dim() != 3:
            raise ArgumentError(
                f"token_shift: a {type(self.norm).__name__} gives {tuple(x.shape)}, where it can't tell what comes "
                "before each token: it needs (n, length, channels); leave this norm out of norms"
            )
        before = F.pad(x, (0, 0, 1, -1))
        return x + self.share.to(x.dtype) * (before - x)


def apply_token_shift(
    model: nn.Module,
    *,
    norms: str | Sequence[str] = NORMS,
    share: float = 0.25,
    optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] = (),
) -> list[str]:
    """Let norms mix a learned share of the token before into what they give, and return their names.

    Source: Peng et al. 2023, RWKV, arXiv 2305.13048. See `ShiftedNorm`. It is meant for norms at the beginning of a
    residual branch: what attention and feed-forward see is mixed, what is passed on beside them is not. Norms that are
    shifted already are left as they are.

    Args:
        norms: patterns of the norms' names, in which `*` stands for anything.
        share: of the token before, at first; each channel learns its own.
        optimizers: existing ones, or one; they get the new parameters.

    Raises:
        ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) for impossible arguments, for anything but a
            model, for patterns that no norm has, and for what is known not to begin a branch of rows of tokens.

    Example:
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
        >>> apply_token_shift(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False))
        ['layers.0.norm1', 'layers.0.norm2']
    """
    check_model(model)
    share = check_share(share)
    channels = {id(norm): size for norm, size in find_norms(model, check_norms(norms)).items()}

    def policy(norm: nn.Module, _: str) -> nn.Module | None:
        return ShiftedNorm(norm, channels[id(norm)], share) if id(norm) in channels else None

    return replace_modules(model, {nn.Module: policy}, optimizers=optimizers)


def find_norms(model: nn.Module, patterns: Sequence[str]) -> dict[nn.Module, int]:
    """Return the norms whose names fit a pattern and that are not shifted yet, and how many channels each has.

    Raises:
        ArgumentError: (a ValueError) if a model has norms and none of them fits, or one that fits can't be shifted.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    shifted = [module for module in modules.values() if isinstance(module, ShiftedNorm)]
    known = {*shifted, *(module.norm for module in shifted)}
    fitting = {pattern: [name for name in modules if fnmatchcase(name, pattern)] for pattern in patterns}
    idle = [pattern for pattern, names in fitting.items() if not names]
    norms = [name for name, module in modules.items() if name and type(module).__name__.endswith(_KINDS)]
    if norms and idle and (len(idle) == len(patterns) or patterns != NORMS):
        raise ArgumentError(
            f"token_shift: {type(model).__name__} has no norm named {' or '.join(idle)}, but {', '.join(norms)}: "
            f"write which are before attention and feed-forward, as in norms=[{norms[0]!r}]; * stands for anything"
        )
    found = {}
    for name in dict.fromkeys(itertools.chain(*fitting.values())):
        if modules[name] not in known:
            _check_place(name, modules[name.rpartition(".")[0]])
            found[modules[name]] = _channels_of(name, modules[name])
    return found


def _channels_of(name: str, module: Any) -> int:
    if shape := getattr(module, "normalized_shape", None):
        return int(shape[-1])
    weight = getattr(module, "weight", None)
    if isinstance(weight, torch.Tensor) and weight.dim() == 1:
        return len(weight)
    raise ArgumentError(
        f"token_shift: {name!r} is a {type(module).__name__}, which has neither normalized_shape nor a weight "
        "(channels,) to say how many channels it has: leave it out of norms"
    )


def _check_place(name: str, layer: nn.Module) -> None:
    """Raise for norms of torch's own layers that don't begin a branch, or that see rows along the second dimension."""
    if not isinstance(layer, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
        return
    if not layer.norm_first:
        raise ArgumentError(
            f"token_shift: {name!r} normalises the residual sum, so the shift would also reach what is passed on: make "
            f"the {type(layer).__name__} with norm_first=True"
        )
    if not layer.self_attn.batch_first:
        raise ArgumentError(
            f"token_shift: {name!r} gets (length, n, channels), so the shift would mix rows: make the "
            f"{type(layer).__name__} with batch_first=True"
        )
