"""MixUp, CutMix, CutOut and progressive resizing for engine-core."""

from .blending import mixup_batch
from .cutmix import CutMix
from .cutout import CutOut
from .holes import cutout_batch
from .mixup import MixUp
from .pasting import cutmix_batch
from .progressive_resizing import ProgressiveResizing
from .resizing import resize_batch
from .sizes import resizing_scale
from .targets import mix_losses, mix_targets

__all__ = [
    "CutMix",
    "CutOut",
    "MixUp",
    "ProgressiveResizing",
    "cutmix_batch",
    "cutout_batch",
    "mix_losses",
    "mix_targets",
    "mixup_batch",
    "resize_batch",
    "resizing_scale",
]
