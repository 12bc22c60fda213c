"""What a study shows while it trains: runs that are done, running and left, and when it will end."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.live import Live

from engine_core.messages import escaped, plural

from .design import Job
from .folder import StudyRun
from .record import Record
from .writing import figure


class Screen:
    """Writes a line to stderr for each run that ends, and on a terminal one below for what is running."""

    def __init__(self, run: StudyRun, width: int) -> None:
        self._run, self._width = run, width
        self._console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._running: dict[str, Job] = {}

    def __enter__(self) -> Screen:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._live.stop()

    def trying(self, arm: str) -> None:
        """Tell which arm is tried before anything trains."""
        self._show(f"trying arm {arm}")

    def told(self, event: Job | Record) -> None:
        """Tell that a run begins or ended."""
        if isinstance(event, Job):
            self._running[event.folder] = event
        else:
            self._running.pop(event.folder, None)
            self._console.print(escaped(self._line(event)))
        if self._console.is_terminal:
            self._show(self._status())

    def _line(self, record: Record) -> str:
        done, known = self._run.counted()
        if record.status != "finished":
            return f"[{done}/{known}] {record.name}: {record.status}: {record.error}"
        values = ", ".join(f"{key} {figure(record.values.get(key))}" for key in self._run.design.report[:2])
        return f"[{done}/{known}] {record.name}: {values}, {record.seconds:.1f} {record.unit}"

    def _status(self) -> str:
        done, known = self._run.counted()
        names = ", ".join(job.name for job in self._running.values())
        left = known - done - len(self._running)
        left_s = self._run.left_s(self._width)
        end = "" if left_s is None else f", ends about {time.strftime('%H:%M', time.localtime(time.time() + left_s))}"
        return f"{plural(done, 'run', 'runs')} done, {len(self._running)} running ({names}), {left} left{end}"

    def _show(self, text: str) -> None:
        if self._console.is_terminal:
            self._live.update(escaped(text), refresh=True)


__all__ = ["Screen"]
