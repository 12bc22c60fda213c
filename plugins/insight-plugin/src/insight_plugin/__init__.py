"""What a run does, layer by layer and class by class: callbacks that log it and change nothing."""

from .confusion import Confusion
from .gradient_norm import GradientNorm
from .memory import Memory
from .model_summary import ModelSummary
from .norms import Norms
from .profiler import Profiler
from .train_metrics import TrainMetrics

__all__ = ["Confusion", "GradientNorm", "Memory", "ModelSummary", "Norms", "Profiler", "TrainMetrics"]
