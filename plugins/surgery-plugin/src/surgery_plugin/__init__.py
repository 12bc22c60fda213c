"""Algorithms for engine-core that change the layers of a model."""

from .activation_checkpointing import ActivationCheckpointing, apply_activation_checkpointing
from .blur import BlurConv2d, BlurMaxPool2d, blur_2d
from .blurpool import BlurPool, apply_blurpool
from .channels_last import ChannelsLast, apply_channels_last
from .compilation import Compile, apply_compile
from .compute_dtype_layernorm import ComputeDtypeGroupNorm, ComputeDtypeLayerNorm, apply_fused_layernorm
from .excitation import SqueezeExcite2d, SqueezeExciteConv2d
from .fused_layernorm import FusedLayerNorm
from .gated_linear import GatedLinear, apply_gated_linear_units
from .gated_linear_units import GatedLinearUnits
from .layer_stacking import LayerStacking
from .logit_soft_cap import LogitSoftCap, SoftCappedLinear, apply_logit_soft_cap
from .ngram_embedding import NgramEmbedding
from .ngrams import HashedNgramEmbedding, apply_ngram_embedding
from .shifted_norm import ShiftedNorm, apply_token_shift
from .squeeze_excite import SqueezeExcite, apply_squeeze_excite
from .stack import Stack
from .stochastic_block import StochasticBlock, apply_stochastic_depth, scale_drop_rates
from .stochastic_depth import StochasticDepth
from .token_shift import TokenShift
from .whitened_stem import WhitenedStem
from .whitening import WhitenedConv2d, apply_whitened_stem

__all__ = [
    "ActivationCheckpointing",
    "BlurConv2d",
    "BlurMaxPool2d",
    "BlurPool",
    "ChannelsLast",
    "Compile",
    "ComputeDtypeGroupNorm",
    "ComputeDtypeLayerNorm",
    "FusedLayerNorm",
    "GatedLinear",
    "GatedLinearUnits",
    "HashedNgramEmbedding",
    "LayerStacking",
    "LogitSoftCap",
    "NgramEmbedding",
    "ShiftedNorm",
    "SoftCappedLinear",
    "SqueezeExcite",
    "SqueezeExcite2d",
    "SqueezeExciteConv2d",
    "Stack",
    "StochasticBlock",
    "StochasticDepth",
    "TokenShift",
    "WhitenedConv2d",
    "WhitenedStem",
    "apply_activation_checkpointing",
    "apply_blurpool",
    "apply_channels_last",
    "apply_compile",
    "apply_fused_layernorm",
    "apply_gated_linear_units",
    "apply_logit_soft_cap",
    "apply_ngram_embedding",
    "apply_squeeze_excite",
    "apply_stochastic_depth",
    "apply_token_shift",
    "apply_whitened_stem",
    "blur_2d",
    "scale_drop_rates",
]
