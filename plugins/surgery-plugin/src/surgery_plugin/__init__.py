"""Algorithms for engine-core that change the layers of a model."""

from .blur import BlurConv2d, BlurMaxPool2d, blur_2d
from .blurpool import BlurPool, apply_blurpool
from .channels_last import ChannelsLast, apply_channels_last
from .compute_dtype_layernorm import ComputeDtypeLayerNorm, apply_fused_layernorm
from .excitation import SqueezeExcite2d, SqueezeExciteConv2d
from .fused_layernorm import FusedLayerNorm
from .gated_linear import GatedLinear, apply_gated_linear_units
from .gated_linear_units import GatedLinearUnits
from .ngram_embedding import NgramEmbedding
from .ngrams import HashedNgramEmbedding, apply_ngram_embedding
from .shifted_norm import ShiftedNorm, apply_token_shift
from .squeeze_excite import SqueezeExcite, apply_squeeze_excite
from .stochastic_block import StochasticBlock, apply_stochastic_depth, scale_drop_rates
from .stochastic_depth import StochasticDepth
from .token_shift import TokenShift
from .whitened_stem import WhitenedStem
from .whitening import WhitenedConv2d, apply_whitened_stem

__all__ = [
    "BlurConv2d",
    "BlurMaxPool2d",
    "BlurPool",
    "ChannelsLast",
    "ComputeDtypeLayerNorm",
    "FusedLayerNorm",
    "GatedLinear",
    "GatedLinearUnits",
    "HashedNgramEmbedding",
    "NgramEmbedding",
    "ShiftedNorm",
    "SqueezeExcite",
    "SqueezeExcite2d",
    "SqueezeExciteConv2d",
    "StochasticBlock",
    "StochasticDepth",
    "TokenShift",
    "WhitenedConv2d",
    "WhitenedStem",
    "apply_blurpool",
    "apply_channels_last",
    "apply_fused_layernorm",
    "apply_gated_linear_units",
    "apply_ngram_embedding",
    "apply_squeeze_excite",
    "apply_stochastic_depth",
    "apply_token_shift",
    "apply_whitened_stem",
    "blur_2d",
    "scale_drop_rates",
]
