"""Exact reuse: what the linear layers gave in the scoring forward, given again in the forward that trains."""

from .outputs import LinearOutputs
from .policy import Reuse
from .soundness import unsound

__all__ = ["LinearOutputs", "Reuse", "unsound"]
