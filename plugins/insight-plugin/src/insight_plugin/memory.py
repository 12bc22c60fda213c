"""Log how much memory the process and its device use."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from engine_core import Callback, Logger, State, Time

from .pace import Pace

__all__ = ["Memory"]

_NAMES = ("process_mb", "process_peak_mb", "device_mb", "device_peak_mb", "device_reserved_mb")
_UNKNOWN = math.nan


class Memory(Callback):
    """Logs the memory of the process and of its GPU, in MB of a million bytes, in some steps and at the end.

    `memory/process_mb` is what the process has in RAM, and `memory/process_peak_mb` the most it ever had there. On a
    GPU there are `memory/device_mb`, what tensors take, `memory/device_peak_mb`, the most they took, and
    `memory/device_reserved_mb`, what torch holds of the device. Peaks are those since the process began.

    A step is measured between its backward pass and the optimizers' step. The end is that of the run, not a pause.
    What the system does not tell is left out: `process_mb` is known on Linux only, `process_peak_mb` on macOS too.
    On several processes each value is that of the process with the highest one.

    Args:
        interval: how often: in the first step, and in the first one of each interval.

    Example:
        >>> from engine_core_author import RecordingDestination
        >>> state, seen, memory = State(), RecordingDestination(), Memory("10ba")
        >>> memory.init(state, Logger([seen]))
        >>> memory.after_train_batch(state, Logger([seen]))
        >>> len(seen.metrics)
        1
    """

    def __init__(self, interval: Time | str = "100ba") -> None:
        self._pace = Pace(interval)
        self.interval = self._pace.interval
        self._is_logged = False

    def init(self, state: State, logger: Logger) -> None:
        """Forget an earlier run, and refuse an interval that can't be counted in this one."""
        self._pace.begin(state)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Agree whether to measure: all ranks do, or none."""
        self._pace.locate(state)
        self._is_logged = state.ranks.any(logger.destinations)

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """Log if it is time to."""
        if self._pace.is_due(state.timestamp):
            self._log(state, logger)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Log what the run needed, unless a resumed one will."""
        if not state.is_interrupted:
            self._log(state, logger)

    def state_dict(self) -> dict[str, Any]:
        """Return which interval has begun."""
        return self._pace.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue within it."""
        self._pace.load_state_dict(state)

    def _log(self, state: State, logger: Logger) -> None:
        if not (self._is_logged if state.ranks.size > 1 else logger.destinations):
            return
        ranks = zip(*state.ranks.table([*_process(), *_device(state)]), strict=True)
        most = {
            name: max((v for v in values if v >= 0), default=_UNKNOWN)
            for name, values in zip(_NAMES, ranks, strict=True)
        }
        logger.log_metrics({f"memory/{name}": round(value / 1e6, 3) for name, value in most.items() if value >= 0})


def _process() -> tuple[float, float]:
    """Return how many bytes the process has in RAM, and had at most."""
    try:  # its peak is that of this program, where getrusage starts at that of the process that started it
        status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        status = ""
    sizes = {name: 1024.0 * int(size) for name, size in re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB", status, re.MULTILINE)}
    return sizes.get("VmRSS", _UNKNOWN), sizes.get("VmHWM") or _peak()


def _peak() -> float:
    try:
        import resource  # noqa: PLC0415  Windows has none
    except ImportError:
        return _UNKNOWN
    peak = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return peak if sys.platform == "darwin" else 1024 * peak


def _device(state: State) -> tuple[float, float, float]:
    """Return how many bytes tensors take on the GPU, took at most, and how many torch holds."""
    device = _device_of(state)
    if device is None or device.type != "cuda":
        return (_UNKNOWN,) * 3
    of = torch.cuda
    return of.memory_allocated(device), of.max_memory_allocated(device), of.memory_reserved(device)


def _device_of(state: State) -> torch.device | None:
    if state.device is not None:
        return torch.device(state.device)
    parameter = next(state.model.parameters(), None) if state.model is not None else None
    return None if parameter is None else parameter.device
