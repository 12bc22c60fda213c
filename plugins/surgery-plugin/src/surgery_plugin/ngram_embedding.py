"""NgramEmbedding: glue to the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn

from engine_core import AlgorithmMetadata, Event, State

from .models import check_path
from .ngrams import HashedNgramEmbedding, apply_ngram_embedding, check_buckets, check_sizes, check_std
from .operation import Operation

__all__ = ["NgramEmbedding"]

_NAME = "ngram_embedding"


class NgramEmbedding(Operation):
    """Add embeddings of hashed n-grams to those of the tokens at which they end.

    Source: Pagnoni et al. 2024, Byte Latent Transformer, arXiv 2412.09871. See `apply_ngram_embedding`.

    Args:
        embedding: the path of the embedding of tokens; None: the only `nn.Embedding` there is.
        sizes: of n-grams, in tokens.
        buckets: how many embeddings the n-grams of one size share.
        std: of the initial embeddings of n-grams; with 0, the model computes at first what it did before.

    Example:
        >>> NgramEmbedding(embedding="transformer.wte", sizes=[2, 3, 4]).buckets
        4096
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name=_NAME,
        description="add embeddings of hashed n-grams to those of tokens",
        events=(Event.INIT,),
        tags=("surgery", "embedding"),
        before=("@stem", "@layers", "@blocks", "@memory_format"),
        writes=("model.Embedding", "optimizers"),
        needs=("surgery",),
    )
    made = (HashedNgramEmbedding,)

    def __init__(
        self, embedding: str | None = None, sizes: Sequence[int] = (2, 3), buckets: int = 4096, std: float = 0.01
    ) -> None:
        self.embedding = check_path("embedding", embedding)
        self.sizes, self.buckets, self.std = check_sizes(sizes), check_buckets(buckets), check_std(std)

    def operate(self, model: nn.Module, state: State) -> list[str]:
        """Replace the embedding, with weights drawn from the seed of the run."""
        return apply_ngram_embedding(
            model,
            embedding=self.embedding,
            sizes=self.sizes,
            buckets=self.buckets,
            std=self.std,
            optimizers=state.optimizers,
            generator=torch.Generator().manual_seed(state.derive_seed(_NAME, shared=True)),
        )

    def looked_for(self) -> str:
        """The class that is replaced."""
        return "nn.Embedding"
