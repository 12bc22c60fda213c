"""Train what a config describes, and keep what comes out of it in the run's folder."""

from __future__ import annotations

from .evaluating import Evaluated, evaluate
from .making import make_trainer
from .models import load_model
from .outcome import Ending, RunResults
from .training import Run, train
from .trial import Trial, try_config

__all__ = [
    "Ending",
    "Evaluated",
    "Run",
    "RunResults",
    "Trial",
    "evaluate",
    "load_model",
    "make_trainer",
    "train",
    "try_config",
]
