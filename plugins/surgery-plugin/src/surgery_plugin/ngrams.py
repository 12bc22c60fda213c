"""Embeddings of hashed n-grams that are added to those of tokens. Independent of the engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from engine_core.arguments import check_number, check_whole
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core.randomness import private_unless

from .models import check_model, check_path, module_at
from .replacement import Policy, replace_modules

__all__ = ["HashedNgramEmbedding", "apply_ngram_embedding", "check_buckets", "check_sizes", "check_std"]

_PRIME, _BASE = 2**31 - 1, 1_103_515_245
"""Both below 2**31, so that no product of a power and a token overflows 64 bits."""


def check_sizes(sizes: Any) -> tuple[int, ...]:
    """Return of how many tokens n-grams are: different whole numbers from 2 on."""
    if isinstance(sizes, str) or not isinstance(sizes, Sequence) or not sizes:
        raise ArgumentTypeError(f"sizes={sizes!r} has to be a list of how many tokens n-grams have, such as [2, 3]")
    found = tuple(check_whole("sizes", size, "[2, inf)", "how many tokens an n-gram has") for size in sizes)
    if len({*found}) < len(found):
        raise ArgumentError(f"sizes={sizes!r} names a size twice: name each once")
    return found


def check_buckets(buckets: int) -> int:
    """Return how many embeddings the n-grams of one size share."""
    return check_whole("buckets", buckets, "[1, inf)", "how many embeddings the n-grams of one size share")


def check_std(std: float) -> float:
    """Return the standard deviation of the initial embeddings of n-grams."""
    return check_number("std", std, "[0, inf)", "the standard deviation of the initial embeddings of n-grams")


class HashedNgramEmbedding(nn.Embedding):
    """Add to the embedding of each token those of the n-grams that end with it.

    An n-gram's embedding is a row of a table for n-grams of its size: the row number is a polynomial of the tokens
    modulo the prime 2**31 - 1, modulo the number of rows. There is nothing before the first token of a row, and nothing
    at `padding_idx`: such a token gets its own embedding alone, and what follows it begins as a row does.

    Source: Pagnoni et al. 2024, Byte Latent Transformer, arXiv 2412.09871, which divides the sum by how many there are.

    Args:
        embedding: of tokens; its weight becomes the weight of this one.
        sizes: of n-grams, in tokens.
        buckets: the rows of each table.
        std: of the initial rows, which are normally distributed.
        generator: on the CPU, for the initial rows; None: torch's global one.

    Raises:
        ArgumentError: (a ValueError) when called, unless tokens are (n, length).

    Example:
        >>> embed = HashedNgramEmbedding(nn.Embedding(128, 16), sizes=(2, 3), buckets=1024)
        >>> embed(torch.randint(128, (4, 10))).shape
        torch.Size([4, 10, 16])
        >>> [name for name, _ in embed.named_parameters()]
        ['weight', 'ngram_embeddings.0.weight', 'ngram_embeddings.1.weight']
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        sizes: Sequence[int] = (2, 3),
        buckets: int = 4096,
        std: float = 0.01,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        settings = ("padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
        given: Any = {name: getattr(embedding, name) for name in settings}
        super().__init__(embedding.num_embeddings, embedding.embedding_dim, **given, device="meta")
        self.weight = embedding.weight
        self.sizes, self.buckets = check_sizes(sizes), check_buckets(buckets)
        self.ngram_embeddings = nn.ModuleList()
        for _ in self.sizes:
            rows = torch.empty(self.buckets, self.embedding_dim, device="cpu")
            rows = rows.normal_(0, check_std(std), generator=generator).to(self.weight.device, self.weight.dtype)
            table = nn.Embedding.from_pretrained(rows, freeze=False, sparse=self.sparse)  # type: ignore[no-untyped-call]
            self.ngram_embeddings.append(table)
        self.train(embedding.training)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  torch's name
        """Return (n, length, embedding_dim) for tokens (n, length)."""
        if input.dim() != 2:
            raise ArgumentError(
                f"ngram_embedding: the embedding got tokens of shape {tuple(input.shape)}, where it can't tell what "
                "comes before each: give rows of tokens, (n, length)"
            )
        own = super().forward(input)
        is_padding = None if self.padding_idx is None else input == self.padding_idx
        tokens = input.long() + 1  # 0: nothing
        tokens = tokens if is_padding is None else tokens.masked_fill(is_padding, 0)
        found, code, power = own, tokens, 1
        tables = dict(zip(self.sizes, self.ngram_embeddings, strict=True))
        for size in range(2, max(self.sizes) + 1):
            power = power * _BASE % _PRIME
            before = F.pad(tokens, (size - 1, 0))[:, : tokens.shape[1]]
            code = (code + power * before) % _PRIME  # (n, length)
            if size in tables:
                found = found + tables[size](code % self.buckets)
        return found if is_padding is None else torch.where(is_padding[..., None], own, found)

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"{super().extra_repr()}, sizes={self.sizes}, buckets={self.buckets}"


def apply_ngram_embedding(  # noqa: PLR0913  each is the model, a setting of the embedding, or the caller's
    model: nn.Module,
    *,
    embedding: str | None = None,
    sizes: Sequence[int] = (2, 3),
    buckets: int = 4096,
    std: float = 0.01,
    optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] = (),
    generator: torch.Generator | None = None,
) -> list[str]:
    """Let a model's embedding of tokens add those of hashed n-grams, and return the names of its places.

    Source: Pagnoni et al. 2024, Byte Latent Transformer, arXiv 2412.09871. See `HashedNgramEmbedding`. The weight stays
    the same parameter under its name, so a head that is tied to it stays tied. A model that has such an embedding is
    left as it is.

    Args:
        embedding: the path of the embedding of tokens; None: the only `nn.Embedding` there is.
        sizes: of n-grams, in tokens.
        buckets: how many embeddings the n-grams of one size share.
        std: of the initial embeddings of n-grams; with 0, the model computes at first what it did before.
        optimizers: existing ones, or one; they get the new parameters.
        generator: on the CPU, for the new weights; None: a private one, seeded by the system.

    Raises:
        ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) for impossible arguments, for anything but a
            model or a generator, if there are several embeddings and none is named, and if it is not a plain one.

    Example:
        >>> model = nn.Sequential(nn.Embedding(128, 16), nn.Linear(16, 128))
        >>> apply_ngram_embedding(model, sizes=[2], buckets=1024)
        ['0']
        >>> model[0]
        HashedNgramEmbedding(
          128, 16, sizes=(2,), buckets=1024
          (ngram_embeddings): ModuleList(
            (0): Embedding(1024, 16)
          )
        )
    """
    check_model(model)
    settings = check_sizes(sizes), check_buckets(buckets), check_std(std)
    own, target = private_unless(generator), _find_embedding(model, check_path("embedding", embedding))
    if target is None or isinstance(target, HashedNgramEmbedding):
        return []

    def policy(module: nn.Module, _: str) -> nn.Module | None:
        return HashedNgramEmbedding(target, *settings, generator=own) if module is target else None

    policies: dict[type[nn.Module], Policy] = {nn.Embedding: policy}
    return replace_modules(model, policies, optimizers=optimizers)


def _find_embedding(model: nn.Module, path: str | None) -> nn.Embedding | None:
    """Return the embedding of tokens, None if the model has none at all."""
    embeddings = {name: module for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    made = [module for module in embeddings.values() if isinstance(module, HashedNgramEmbedding)]
    if path is not None:
        found = module_at(model, "embedding", path, nn.Embedding)
    elif made or not embeddings:
        return made[0] if made else None
    elif len(embeddings) > 1:
        named = [f"{name!r} {tuple(module.weight.shape)}" for name, module in embeddings.items()]
        raise ArgumentError(
            f"ngram_embedding: {type(model).__name__} has {len(embeddings)} embeddings, {', '.join(named)}, and does "
            f"not say which is that of tokens: write embedding={next(iter(embeddings))!r}, or another of them"
        )
    else:
        ((path, found),) = embeddings.items()
    if type(found) not in (nn.Embedding, HashedNgramEmbedding):
        raise ArgumentError(
            f"ngram_embedding replaces a plain nn.Embedding, and {path!r} is a {type(found).__name__}, which may "
            "compute something else: leave this algorithm out"
        )
    return found
