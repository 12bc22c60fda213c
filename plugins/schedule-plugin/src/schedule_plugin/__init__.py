"""What is trained on when: short sequences first (Li et al. 2022), easy examples first (Bengio et al. 2009)."""

from .curriculum import Curriculum
from .cutting import cut_sequences
from .lengths import warmup_length
from .pacing import admitted_share
from .sequence_warmup import SequenceWarmup

__all__ = ["Curriculum", "SequenceWarmup", "admitted_share", "cut_sequences", "warmup_length"]
