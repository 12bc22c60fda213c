"""Exact reuse: the outputs of linear layers in the scoring forward, used again in the training forward."""

from .outputs import LinearOutputs
from .policy import Reuse
from .soundness import unsound

__all__ = ["LinearOutputs", "Reuse", "unsound"]
