"""Train what a config describes, and keep what comes out of it in the run's folder."""

from __future__ import annotations

from .build import make_trainer
from .dry_run import Trial, try_config
from .load import Evaluated, evaluate, load_model
from .result import Ending, RunResults
from .training import Run, train

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
