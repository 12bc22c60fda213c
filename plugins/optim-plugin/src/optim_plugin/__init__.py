"""Algorithms for engine-core that change how weights are optimized."""

from .averages import start_average, use_average
from .ema import EMA, ema_update
from .freezing import freeze_layers, freezing_schedule, trainable_layers
from .gradient_penalty import GradientPenalty
from .input_gradients import input_gradient_penalty
from .layer_freezing import LayerFreezing
from .muon import Muon
from .sam import SAM
from .sharpness import held_buffers, sharpness_aware_gradients
from .swa import SWA, swa_update

__all__ = [
    "EMA",
    "SAM",
    "SWA",
    "GradientPenalty",
    "LayerFreezing",
    "Muon",
    "ema_update",
    "freeze_layers",
    "freezing_schedule",
    "held_buffers",
    "input_gradient_penalty",
    "sharpness_aware_gradients",
    "start_average",
    "swa_update",
    "trainable_layers",
    "use_average",
]
