"""The facts of a run as JSON lines, for programs that follow it. Knows no file and no stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..files import finite
from ..logger import Logger
from ..state import State
from .facts import Facts

_KINDS = {"finished": "end", "paused": "pause", "interrupted": "pause", "failed": "fail"}


class JsonLines(Facts):
    """Writes each fact of a run as one line.

    Args:
        write: receives a line, without its end.

    Example:
        >>> lines = []
        >>> JsonLines(lines.append).end("failed", exit_code=1)
        >>> lines[0][:38]
        '{"kind": "fail", "step": 0, "epoch": 0'
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        super().__init__()
        self._write = write
        self._last: dict[str, Any] | None = None
        self._results: dict[str, Any] = {}

    def close(self, state: State, logger: Logger) -> None:
        """Remember where the run ended, and its results."""
        self._last, self._results = self.fact("", state), state.results.to_json()

    def tell(self, fact: dict[str, Any], state: State) -> None:
        """Write the fact."""
        self._write(as_line(fact))

    def end(self, status: str, exit_code: int | None, *, folder: Path | None = None, **left: Path | str | None) -> None:
        """Write how the run ended, with the latest results; call it once, after the engine is closed.

        Args:
            status: `finished`, `paused`, `interrupted` or `failed`.
            exit_code: of the command; None: there is none.
            left: `model`, `average` and `checkpoint`, what was saved, and `resume`, the command that resumes the run;
                None, or left out, for what there is not.
        """
        last = {**(self._last or self.fact("", State())), "kind": _KINDS[status]}
        told = {"folder": folder, **dict.fromkeys(("model", "average", "checkpoint", "resume")), **left}
        paths = {name: None if value is None else str(value) for name, value in told.items()}
        self.tell({**last, "status": status, "exit_code": exit_code, **paths, "results": self._results}, State())


def as_line(fact: Mapping[str, Any]) -> str:
    """Return a fact as JSON in one line; a number that is not finite, which JSON lacks, is null.

    Example:
        >>> as_line({"kind": "evaluation", "metrics": {"eval/loss": float("nan")}})
        '{"kind": "evaluation", "metrics": {"eval/loss": null}}'
    """
    return json.dumps(finite(fact), allow_nan=False)
