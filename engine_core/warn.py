"""Warn at the line that led here: the nearest one that is neither the engine's nor its tools'."""

from __future__ import annotations

import inspect
import warnings

__all__ = ["warn"]

BETWEEN = ("engine_core", "pluggy", "click", "contextlib")
"""Packages whose lines say nothing to the user."""


def warn(message: str, category: type[Warning]) -> None:
    """Issue a warning at the nearest line of the user's own.

    Example:
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     warn("mind the step", UserWarning)
        >>> str(caught[0].message)
        'mind the step'
    """
    frame, level = inspect.currentframe(), 1
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
