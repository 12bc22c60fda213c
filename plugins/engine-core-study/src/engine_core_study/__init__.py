"""Which training methods help: the same runs with and without them, and what the differences show."""

from __future__ import annotations

from .folder import StudyResults, read_results
from .python import study

__all__ = ["StudyResults", "read_results", "study"]
