"""Runs as one page of HTML that loads nothing. Knows what was read of a run, and how a page looks."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader
from markupsafe import Markup

from engine_core.arguments import path_of
from engine_core.errors import ArgumentError
from engine_core.files import write_whole
from engine_core.messages import escaped

from .charts import Chart, charts_of
from .ranking import name_runs
from .reading import RunData
from .sections import (
    algorithms_of,
    checkpoints_of,
    differences_of,
    files_of,
    orders_of,
    settings_of,
    summary_of,
    time_of,
)
from .wording import cell

GENERATOR = b'<meta name="generator" content="engine-core report">'
"""What a page of ours has near its begin, so that nothing else is overwritten."""
_HEAD_BYTES = 4096


def write_report(runs: Sequence[RunData], path: Path | str, *, force: bool = False) -> None:
    """Write one page about runs; afterwards the file is complete, or as it was before.

    Args:
        path: the file; its folder has to be there.
        force: overwrite a file that is not such a page.

    Raises:
        ArgumentError: (a ValueError) without a run, if another file is there, or if it can't be written.
    """
    write_page(render(runs), path, force=force)


def write_page(content: str, path: Path | str, *, force: bool = False) -> None:
    """Write a page, as `write_report` does."""
    path = path_of(path)
    if os.path.lexists(path) and not path.is_symlink() and not path.is_file():
        raise ArgumentError(f"{str(path)!r} is not a file: give the name of one")
    if not force and not _is_ours(path):
        raise ArgumentError(
            f"{str(path)!r} is there and is not a report: give another name, or --force to overwrite it"
        )
    try:
        write_whole(path, content, by=f".{secrets.token_hex(8)}")
    except OSError as error:
        raise ArgumentError(
            f"the report can't be written to {str(path)!r}: {error.strerror}; choose another place"
        ) from None


def render(runs: Sequence[RunData], *, follows: bool = False) -> str:
    """Return the page; a run that is given twice is on it once.

    Args:
        follows: it is served, and asks the server for what has come since.

    Raises:
        ArgumentError: (a ValueError) without a run.
    """
    return assemble("content.html", _parts(runs), follows=follows)


def assemble(content: str, parts: Mapping[str, Any], *, follows: bool = False) -> str:
    """Return the page of a template and what it shows; the script draws `parts["charts"]`."""
    data = Markup(_as_json({"charts": parts["charts"]}))  # noqa: S704  escaped there
    around = {**_fixed(follows=follows), "content": content, "data": data, "follows": follows}
    return _templates().get_template("template.html").render({**parts, **around})


def update_of(runs: Sequence[RunData]) -> str:
    """Return the JSON of what changes on a page that follows runs: `charts`, and `content`, the markup of the rest."""
    parts = _parts(runs)
    content = _templates().get_template("content.html").render(parts)
    return _as_json({"charts": parts["charts"], "content": content, "ended": all(run.has_ended for run in runs)})


def _parts(runs: Sequence[RunData]) -> dict[str, Any]:
    """Return all that the page shows of runs."""
    named = name_runs(runs)
    if not named:
        raise ArgumentError("a report needs a run: give the folder of one")
    charts = charts_of(named)
    first = named[0][1]
    files, files_left_out = files_of(named)
    return {
        "title": " · ".join(name for name, _ in named),
        "version": first.manifest.versions.get("engine-core", "of an unknown version"),
        "runs": named,
        "summary": summary_of(named),
        "differences": [(name, differences_of(first, run)) for name, run in named[1:]],
        "warnings": [(name, warning) for name, run in named for warning in run.warnings],
        "panels": [(panel, list(group)) for panel, group in groupby(charts, key=lambda chart: chart.panel)],
        "words": _words,
        "charts": [chart.to_json() for chart in charts],
        "files": files,
        "files_left_out": files_left_out,
        "time": [found for name, run in named if (found := time_of(name, run))],
        "algorithms": [row for name, run in named for row in algorithms_of(name, run)],
        "orders": [(name, list(orders_of(run))) for name, run in named if run.manifest.order],
        "checkpoints": [row for name, run in named for row in checkpoints_of(name, run)],
        "settings": [settings_of(name, run) for name, run in named],
    }


def _fixed(*, follows: bool) -> dict[str, Any]:
    """Return scripts and styles with their hashes, which the browser compares."""
    scripts = [_read("vendor/uPlot.iife.min.js"), _read("report.js"), *([_read("follow.js")] if follows else [])]
    styles = [_read("vendor/uPlot.min.css"), _read("report.css")]
    hashes = [" ".join(f"'sha256-{_digest(text)}'" for text in texts) for texts in (scripts, styles)]
    ours = {"scripts": [Markup(text) for text in scripts], "styles": [Markup(text) for text in styles]}  # noqa: S704
    return {**ours, "script_hashes": Markup(hashes[0]), "style_hashes": Markup(hashes[1])}  # noqa: S704


@functools.cache
def _templates() -> Environment:
    looks: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(autoescape=True, finalize=_visible, loader=FunctionLoader(_read), **looks)
    environment.filters["cell"] = cell
    environment.filters["picture"] = _picture
    return environment


def _visible(value: Any) -> Any:
    """Show characters that would hide or turn around a text."""
    return escaped(value, keep="\n\t") if isinstance(value, str) and not isinstance(value, Markup) else value


def _picture(svg: str) -> str:
    """Return an SVG as the address of an image, which can run nothing."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode('utf-8', 'replace')).decode()}"


def _words(chart: Chart) -> str:
    """Return a chart in words."""
    told = [
        f"{row.label} from {cell(row.first).text} to {cell(row.last).text}, lowest {cell(row.lowest).text}, "
        f"highest {cell(row.highest).text}"
        for row in chart.rows
    ]
    return f"{chart.title}: {'; '.join(told)}"


def _as_json(content: Any) -> str:
    """Return JSON that no browser can take for markup."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@functools.cache
def _read(name: str) -> str:
    return (files(__package__) / name).read_bytes().decode()


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _is_ours(path: Path) -> bool:
    """Is there nothing at the path, or a page of ours?"""
    if not os.path.lexists(path):
        return True
    if path.is_symlink() or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return GENERATOR in file.read(_HEAD_BYTES)
    except OSError:
        return False
