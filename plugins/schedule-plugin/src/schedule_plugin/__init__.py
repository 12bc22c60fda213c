"""What is trained on when: short sequences first (Li et al. 2022), easy examples first (Bengio et al. 2009)."""

from .lengths import warmup_length
from .sequence_warmup import SequenceWarmup

__all__ = ["SequenceWarmup", "warmup_length"]
