"""Train what a config describes, and keep what comes out of it in the run's folder."""

from __future__ import annotations

from .folder import choose_folder
from .making import make_trainer
from .training import RunResults, train

__all__ = ["RunResults", "choose_folder", "make_trainer", "train"]
