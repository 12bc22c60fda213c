"""A logger destination that keeps what it receives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_core.callback import LoggerDestination
from engine_core.logger import Traces


class RecordingDestination(LoggerDestination):
    """Keeps what is logged, in the order it came.

    Example:
        >>> from engine_core import Logger
        >>> destination = RecordingDestination()
        >>> Logger([destination]).log_metrics({"loss": 0.5}, step=3)
        >>> destination.metrics
        [(3, {'loss': 0.5})]
    """

    def __init__(self) -> None:
        self.metrics: list[tuple[int, dict[str, Any]]] = []
        self.hyperparameters: list[dict[str, Any]] = []
        self.traces: list[Traces] = []
        self.files: list[tuple[int, str, bytes | str]] = []

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Keep a copy of the mapping with its step."""
        self.metrics.append((step, dict(metrics)))

    def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Keep a copy of the mapping."""
        self.hyperparameters.append(dict(hyperparameters))

    def log_traces(self, traces: Traces) -> None:
        """Keep the traces."""
        self.traces.append(traces)

    def log_file(self, name: str, content: bytes | str, step: int) -> None:
        """Keep step, name and content of a file."""
        self.files.append((step, name, content))
