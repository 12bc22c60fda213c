"""What a run does, layer by layer and class by class: four callbacks that log it and change nothing."""

from .confusion import Confusion
from .memory import Memory
from .model_summary import ModelSummary
from .norms import Norms

__all__ = ["Confusion", "Memory", "ModelSummary", "Norms"]
