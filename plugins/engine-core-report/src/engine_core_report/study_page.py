"""What a study found, as one page of HTML that links to the pages of its runs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from engine_core.arguments import path_of
from engine_core.errors import ArgumentError
from engine_core.files import MOST_BYTES_OF_JSON, why_not
from engine_core.manifest import NAME

from .forest import costs_of, forest_of, ladders_of
from .notebook import read_run
from .page import assemble, write_page, write_report
from .study import Run, StudyData

PAGE, OUTPUT = "report.html", "output.txt"
FAILED, REPORTED, CHOOSING = "Runs that failed", "Runs", "Runs that chose the settings"
_FOLDER = re.compile(r"(runs|tune)(/(?!\.)[^/\\]+)+")


def write_study(study: StudyData, path: Path | str, *, force: bool = False) -> None:
    """Write the page of a study, and that of each run into the run's folder; a run without one is told on the page.

    Args:
        path: the file; its folder has to be there.
        force: overwrite files that are not such pages.

    Raises:
        ArgumentError: (a ValueError) if another file is there, or if it can't be written.
    """
    path, problems = path_of(path), list[str]()
    pages, outputs = dict[str, Path](), dict[str, Path]()
    for run in study.runs:
        folder = _folder_of(study, run)
        if folder is not None and why_not(folder / OUTPUT, sys.maxsize) is None:
            outputs[run.folder] = folder / OUTPUT
        if folder is None or why_not(folder / NAME, MOST_BYTES_OF_JSON) is not None:
            continue
        try:
            write_report([read_run(folder)], folder / PAGE, force=force)
        except ArgumentError as error:
            problems.append(f"{run.name} has no page: {error}")
        else:
            pages[run.folder] = folder / PAGE

    def addresses(files: Mapping[str, Path]) -> dict[str, str]:
        start = path.absolute().parent
        return {of: quote(Path(os.path.relpath(file.absolute(), start)).as_posix()) for of, file in files.items()}

    write_page(render_study(study, addresses(pages), addresses(outputs), problems), path, force=force)


def _folder_of(study: StudyData, run: Run) -> Path | None:
    """Return the folder of a run, unless its name leads out of the study's folder."""
    folder = study.folder / run.folder
    try:
        is_inside = folder.resolve().is_relative_to(study.folder.resolve())
    except (OSError, ValueError):  # a name that no folder can have
        return None
    return folder if is_inside and _FOLDER.fullmatch(run.folder) else None


def render_study(
    study: StudyData, links: Mapping[str, str], outputs: Mapping[str, str], problems: Sequence[str] = ()
) -> str:
    """Return the page.

    Args:
        links: the address of a run's page, by the run's folder.
        outputs: likewise of what it printed.
        problems: what is wrong with runs.
    """
    ladders = ladders_of(study)
    runs: dict[str, list[Run]] = {FAILED: [], REPORTED: [], CHOOSING: []}
    for run in study.runs:
        of = FAILED if run.status == "failed" else CHOOSING if run.folder.startswith("tune/") else REPORTED
        runs[of].append(run)
    parts = {
        "title": study.folder.resolve().name,
        "version": study.versions.get("engine-core", "of an unknown version"),
        "study": study,
        "forests": [forest_of(study, name) for name in study.report],
        "ladders": ladders,
        "costs": costs_of(study),
        "runs": {title: rows for title, rows in runs.items() if rows},
        "links": links,
        "outputs": outputs,
        "problems": problems,
        "not_finished": sum(run.status != "finished" for run in study.runs),
        "charts": [ladder.to_json() for ladder in ladders],
    }
    return assemble("study.html", parts)
