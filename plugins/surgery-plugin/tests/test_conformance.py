"""The algorithms of this package, and their pass, keep the rules of engine-core's conformance kit."""

import torch
from surgery_parts import LanguageModel, loss_of_tokens, sentences
from torch import nn
from torch.nn import functional as F

from engine_core_author import AlgorithmConformance, PassConformance
from surgery_plugin import (
    ActivationCheckpointing,
    BlurPool,
    ChannelsLast,
    Compile,
    FusedLayerNorm,
    GatedLinearUnits,
    LayerStacking,
    LogitSoftCap,
    NgramEmbedding,
    SqueezeExcite,
    StochasticDepth,
    TokenShift,
    WhitenedStem,
)
from surgery_plugin.passes import sort_compile_last


def conv_net():
    """Return a net with a plain and a strided convolution and a max-pool."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.Flatten(),
        nn.Linear(32, 16),
        nn.LayerNorm(16),
        nn.ReLU(),
        nn.Linear(16, 4),
    )


class TestBlurPool(AlgorithmConformance):
    """With a strided convolution and a max-pool."""

    def make_algorithm(self):
        return BlurPool(min_channels=4)

    def make_model(self):
        return conv_net()


class TestChannelsLast(AlgorithmConformance):
    """On the kit's own net."""

    def make_algorithm(self):
        return ChannelsLast()


class TestFusedLayerNorm(AlgorithmConformance):
    """On the kit's net, which has an nn.LayerNorm."""

    def make_algorithm(self):
        return FusedLayerNorm()


class Rows(nn.Module):
    """An encoder over the rows of an image."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.encoder(x.squeeze(1)).mean(1))


class TestGatedLinearUnits(AlgorithmConformance):
    """On a transformer, with another activation."""

    def make_algorithm(self):
        return GatedLinearUnits(activation="silu")

    def make_model(self):
        return Rows()


class TestSqueezeExcite(AlgorithmConformance):
    """After a plain and a strided convolution, with a number of latent channels."""

    def make_algorithm(self):
        return SqueezeExcite(min_channels=4, latent_channels=4)

    def make_model(self):
        return conv_net()


class BasicBlock(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.conv = nn.Conv2d(channels, out, 3, padding=1)
        self.norm = nn.BatchNorm2d(out)
        self.project = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x):
        return torch.relu(self.project(x) + self.norm(self.conv(x)))


class TestStochasticDepth(AlgorithmConformance):
    """One draw for each sample."""

    on_ranks = "law"

    def make_algorithm(self):
        return StochasticDepth(drop_rate=0.5)

    def make_model(self):
        return nn.Sequential(BasicBlock(1, 4), BasicBlock(4, 4), BasicBlock(4, 4), nn.Flatten(), nn.Linear(256, 4))


class TestStochasticDepthPerBatch(TestStochasticDepth):
    """One for all."""

    on_ranks = "equal"

    def make_algorithm(self):
        return StochasticDepth(drop_rate=0.5, drop_distribution="uniform", drop_per="batch")


class TestWhitenedStem(AlgorithmConformance):
    """Of patches of 3x3 pixels."""

    def make_algorithm(self):
        return WhitenedStem()

    def make_model(self):
        return conv_net()


class TestNgramEmbedding(AlgorithmConformance):
    """In a language model whose head is tied to its embedding."""

    def make_algorithm(self):
        return NgramEmbedding(buckets=64)

    def make_model(self):
        return LanguageModel()

    def make_batches(self):
        return sentences()

    def make_loss(self):
        return loss_of_tokens


class TestTokenShift(TestNgramEmbedding):
    """On the norms of its blocks."""

    def make_algorithm(self):
        return TokenShift(norms=("blocks.*.norm1", "blocks.*.norm2"))


class TestLogitSoftCap(AlgorithmConformance):
    """On the kit's net, so low that its logits feel it."""

    def make_algorithm(self):
        return LogitSoftCap(cap=0.5)


class DroppingBlock(BasicBlock):
    def forward(self, x):
        return F.dropout(super().forward(x), training=self.training)


class TestActivationCheckpointing(AlgorithmConformance):
    """On blocks with BatchNorm and dropout."""

    def make_algorithm(self):
        return ActivationCheckpointing([BasicBlock])

    def make_model(self):
        torch.manual_seed(0)
        return nn.Sequential(DroppingBlock(1, 4), DroppingBlock(4, 4), nn.Flatten(), nn.Linear(256, 4))


class TestCompile(AlgorithmConformance):
    """The whole model."""

    def make_algorithm(self):
        return Compile(backend="eager")


class TestSortCompileLast(PassConformance):
    """The pass that puts these three last."""

    def make_pass(self):
        return sort_compile_last


class Stacked(nn.Module):
    """A net with a stack of equal blocks."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.blocks = nn.Sequential(*[BasicBlock(4, 4) for _ in range(3)])
        self.head = nn.Linear(256, 4)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).flatten(1))


class TestLayerStacking(AlgorithmConformance):
    """That grows in the middle of the kit's trainings."""

    def make_algorithm(self):
        return LayerStacking(first=1, grow="0.5dur")

    def make_model(self):
        return Stacked()
