"""MixUp, CutMix, CutOut, progressive resizing, flips, shifts and other augmentations for engine-core."""

from .alternating_flip import AlternatingFlip, alternating_flip_batch
from .blending import mixup_batch
from .col_out import ColOut, col_out_batch
from .cutmix import CutMix
from .cutout import CutOut
from .distortions import rand_augment_batch
from .holes import cutout_batch
from .mirroring import TestTimeAugmentation
from .mixup import MixUp
from .pasting import cutmix_batch
from .progressive_resizing import ProgressiveResizing
from .rand_augment import RandAugment
from .random_shift import RandomShift, random_shift_batch
from .resizing import resize_batch
from .sizes import resizing_scale
from .targets import mix_losses, mix_targets

__all__ = [
    "AlternatingFlip",
    "ColOut",
    "CutMix",
    "CutOut",
    "MixUp",
    "ProgressiveResizing",
    "RandAugment",
    "RandomShift",
    "TestTimeAugmentation",
    "alternating_flip_batch",
    "col_out_batch",
    "cutmix_batch",
    "cutout_batch",
    "mix_losses",
    "mix_targets",
    "mixup_batch",
    "rand_augment_batch",
    "random_shift_batch",
    "resize_batch",
    "resizing_scale",
]
