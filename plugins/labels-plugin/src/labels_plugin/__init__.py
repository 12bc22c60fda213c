"""Label smoothing: train on targets between the labels and the uniform distribution (Szegedy et al. 2015)."""

from .algorithm import LabelSmoothing
from .smoothing import smooth_labels

__all__ = ["LabelSmoothing", "smooth_labels"]
