"""What is trained on when: short sequences first (Li et al. 2022), easy examples first (Bengio et al. 2009)."""

from .curriculum import Curriculum
from .lengths import warmup_length
from .pacing import admitted_share
from .sequence_warmup import SequenceWarmup

__all__ = ["Curriculum", "SequenceWarmup", "admitted_share", "warmup_length"]
