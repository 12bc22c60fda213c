"""Examine the installed plugins: import each in its own process and say what is wrong with it."""

from .examination import MOST_S, Diagnosis, examine

__all__ = ["MOST_S", "Diagnosis", "examine"]
