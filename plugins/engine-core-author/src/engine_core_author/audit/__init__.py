"""Who changed what: the tensors and values of a State by their fingerprints, and promises that were kept or broken."""

from __future__ import annotations

from .fingerprint import changed_leaves, fingerprint, fingerprint_state, tensors_of
from .observer import BETWEEN_BATCHES, Finding, Observer, position_of

__all__ = [
    "BETWEEN_BATCHES",
    "Finding",
    "Observer",
    "changed_leaves",
    "fingerprint",
    "fingerprint_state",
    "position_of",
    "tensors_of",
]
