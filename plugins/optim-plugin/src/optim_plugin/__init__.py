"""Algorithms for engine-core that change how weights are optimized."""

from .averages import start_average, use_average
from .clipping import clip_adaptively, spike_limit
from .ema import EMA, ema_update
from .freezing import freeze_layers, freezing_schedule, trainable_layers
from .gradient_clipping import GradientClipping
from .gradient_penalty import GradientPenalty
from .input_gradients import input_gradient_penalty
from .lawa import LAWA, lawa_mean
from .layer_freezing import LayerFreezing
from .lookahead import Lookahead, lookahead_update
from .muon import Muon
from .sam import SAM
from .sharpness import held_buffers, sharpness_aware_gradients
from .swa import SWA, swa_update
from .zclip import ZClip

__all__ = [
    "EMA",
    "LAWA",
    "SAM",
    "SWA",
    "GradientClipping",
    "GradientPenalty",
    "LayerFreezing",
    "Lookahead",
    "Muon",
    "ZClip",
    "clip_adaptively",
    "ema_update",
    "freeze_layers",
    "freezing_schedule",
    "held_buffers",
    "input_gradient_penalty",
    "lawa_mean",
    "lookahead_update",
    "sharpness_aware_gradients",
    "spike_limit",
    "start_average",
    "swa_update",
    "trainable_layers",
    "use_average",
]
