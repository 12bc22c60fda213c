"""Runs as notebooks show them: each as its page, in a frame of its own."""

from __future__ import annotations

import html
from dataclasses import fields
from pathlib import Path

from engine_core.messages import escaped

from . import reading
from .page import render

HEIGHT = 600


class RunData(reading.RunData):
    """One run as it is on the disk; a notebook shows the page of `report`.

    Attributes:
        folder: as it was given; for a manifest, the folder that it stands for.
        manifest: the run as it was when it started, see `Manifest`.
        started: when the run began, with its offset.
        status: `finished`, `paused` or `unfinished`.
        results: the content of `results.json`; empty unless the run is finished.
        series: what is drawn, by name: `x`, `t` and `y` are steps, seconds and values.
        last: the latest value of each name.
        best: of each evaluation result, `{"value", "step", "epoch"}`.
        resumed: step and seconds at which the run was resumed.
        steps: how many batches are complete, as far as the files say.
        warnings: those of the run, and what is wrong with its files.
    """

    def _repr_html_(self) -> str:
        """Return the page in a frame that can reach nothing of the notebook."""
        page, title = html.escape(render([self])), html.escape(escaped(self.manifest.run_name))
        look = f'width="100%" height="{HEIGHT}" title="{title}"'
        return f'<iframe sandbox="allow-scripts" srcdoc="{page}" {look}></iframe>'


def read_run(path: Path | str) -> RunData:
    """Return what a run has left, given its folder or its manifest. A notebook shows it as the page of `report`.

    The run may still train, or have been killed: what is not there is left out, a last line that is being written too,
    and damaged lines are counted in the warnings.

    Raises:
        ArgumentError: (a ValueError) if there is no run, or a newer engine-core wrote it.
    """
    read = reading.RunReader(path).read()
    return RunData(**{field.name: getattr(read, field.name) for field in fields(read)})
