"""The folder of a study: its plan, its runs, and what it found. The same command finishes what was ended."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine_core.arguments import path_of
from engine_core.changes import changes, leaves
from engine_core.errors import ArgumentError
from engine_core.files import cannot_write, finite, read_json, write_new, write_whole
from engine_core.messages import plural

from .design import Design, Job
from .record import Record
from .results import SCHEMA, findings
from .running import Pool, Study, check_jobs, expected
from .writing import to_csv, to_html, to_markdown, to_terminal

PLAN, RESULTS, TABLE = "plan.json", "study.json", "study.csv"


@dataclass(frozen=True)
class StudyResults:
    """What a study found.

    Args:
        folder: of the study.
        content: what `study.json` holds, see `docs/reference/study-format.md`.
    """

    folder: Path
    content: Mapping[str, Any]

    @property
    def arms(self) -> dict[str, Any]:
        """Return the arms by name, each with its `values`, `cost`, `ladder` and `to_target`."""
        return {arm["name"]: arm for arm in self.content["arms"]}

    @property
    def has_failed(self) -> bool:
        """Did a run fail?"""
        return any(run["status"] == "failed" for run in self.content["runs"])

    def shown(self, form: str | None = None, width: int = 100) -> str:
        """Return the tables: for a terminal, or as `markdown`, `json` or `csv`."""
        if form == "json":
            return json.dumps(self.content, indent=2) + "\n"
        if form is None:
            return to_terminal(self.content, width) + "\n"
        return {"markdown": to_markdown, "csv": to_csv}[form](self.content)

    def __str__(self) -> str:
        return self.shown()

    def _repr_html_(self) -> str:
        """Return the tables for a notebook."""
        return to_html(self.content)


def read_results(folder: Path | str) -> StudyResults:
    """Return what the study in a folder found, as it is in `study.json`.

    Raises:
        ArgumentError: (a ValueError) if it is missing, damaged, or of another version.
    """
    folder = path_of(folder)
    if not (folder / RESULTS).exists():
        raise ArgumentError(
            f"{str(folder)!r} holds no {RESULTS}: it is not a study's folder, or no run has ended in it"
        )
    content = read_json(folder / RESULTS)
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ArgumentError(f"{str(folder / RESULTS)!r} is not of this version: it has no schema {SCHEMA}")
    return StudyResults(folder, content)


class StudyRun:
    """A study, trained in its folder.

    Args:
        folder: a new one, or that of the same study.
    """

    def __init__(self, design: Design, folder: Path | str) -> None:
        self.design, self.folder = design, path_of(folder)
        self._study = Study(design, self.folder)

    @property
    def left_out(self) -> list[Job]:
        """The runs that did not fit into the budget."""
        return self._study.left_out

    def plan(self, width: int = 1) -> list[str]:
        """Return lines about the runs that are left, in their order, and how long they may take.

        Raises:
            ArgumentError: (a ValueError) if the folder holds another study.
        """
        if (self.folder / PLAN).exists():
            self._new_arms(self._described())
        chosen, jobs = self._study.chosen(), self._study.planned()
        records = self._study.records(jobs)
        lines = []
        for number, job in enumerate(jobs, 1):
            record, setting = records.get(job.folder), self.design.arm(job.arm).settings[job.setting].label
            done = "" if record is None else f"  {record.status}"
            is_open = job.folder.startswith("runs/") and job.arm not in chosen
            told = "  with the setting to be chosen" if is_open else f"  {setting}" if setting else ""
            lines.append(f"{number:4}. {job.name}{told}{done}")
        left, left_s = len(self._study.missing(jobs)), self.left_s(width)
        time = "not known until a run has ended" if left_s is None else f"about {_clock(left_s)}"
        return [*lines, f"{plural(left, 'run', 'runs')} left of {len(jobs)}: {time}"]

    def counted(self) -> tuple[int, int]:
        """Return how many runs have finished, and how many there will be."""
        jobs = self._study.planned()
        return len(jobs) - len(self._study.missing(jobs)), len(jobs)

    def left_s(self, width: int) -> float | None:
        """Return how many seconds the missing runs may take, `width` at once; None until one has ended."""
        jobs = self._study.planned()
        known = self._study.records(jobs).values()
        times = [expected(job, known) for job in self._study.missing(jobs)]
        return None if None in times else sum(each for each in times if each is not None) / max(1, width)

    def prepare(self, tell: Callable[[str], object] = lambda _: None, *, apart: bool = True) -> None:
        """Try each arm that is new, and claim the folder for this study.

        Args:
            tell: receives the name of each arm that is tried.
            apart: try them in processes, instead of this one.

        Raises:
            ArgumentError: (a ValueError) if the folder holds another study, with what differs, or can't be written to.
            EngineError: if an arm can't be made.
        """
        plan, arms, write = self._described(), self.design.arms, write_new
        if (self.folder / PLAN).exists():
            new = self._new_arms(plan)
            if read_json(self.folder / PLAN) == plan:
                return
            arms, write = tuple(arm for arm in arms if arm.name in new), write_whole
        elif self.folder.exists() and any(self.folder.iterdir()):
            raise ArgumentError(f"{str(self.folder)!r} is not empty, and holds no study: choose another folder (--out)")
        if arms:
            check_jobs(replace(self.design, arms=arms), self.folder, tell, apart=apart)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write(self.folder / PLAN, json.dumps(plan, indent=2) + "\n")
        except FileExistsError:  # another command claimed the folder while arms were tried
            self._new_arms(plan)
        except OSError as error:
            raise cannot_write(error, f"can't write to {str(self.folder)!r}: {error.strerror}") from error

    def _described(self) -> dict[str, Any]:
        described = {"schema": SCHEMA, **self.design.to_json()}
        found: dict[str, Any] = json.loads(json.dumps(finite(described), default=_lasting))
        return found

    def _new_arms(self, plan: dict[str, Any]) -> set[str]:
        """Return the arms that the folder's study lacks.

        Raises:
            ArgumentError: (a ValueError) if it is another study: arms or seeds are gone, or others would be trained.
        """
        saved = read_json(self.folder / PLAN)
        if not isinstance(saved, dict) or not isinstance(saved.get("arms"), dict):
            raise ArgumentError(f"{str(self.folder / PLAN)!r} is damaged: choose another folder (--out)")
        new: set[str] = plan["arms"].keys() - saved["arms"].keys()
        same = {**plan, "arms": {name: arm for name, arm in plan["arms"].items() if name not in new}}
        if {*saved.get("seeds", ())} <= {*plan["seeds"]}:
            same["seeds"] = saved.get("seeds")
        was, now = dict(leaves(saved)), dict(leaves(same))
        if found := changes(was, now):
            first = "; ".join(f"{each.path} was {each.was!r:.80} and is {each.now!r:.80}" for each in found[:3])
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            where = repr(str(self.folder))
            raise ArgumentError(f"{where} holds another study: {first}{more}; change it back, or choose another --out")
        return new

    def train(self, pool: Pool, tell: Callable[[Job | Record], object] = lambda _: None) -> StudyResults:
        """Train what is missing, and write what was found, also after an interruption, which passes."""

        def told(event: Job | Record) -> None:
            if isinstance(event, Record):
                self.write()
            tell(event)

        self._study = Study(self.design, self.folder, told)
        try:
            self._study.run(pool)
        finally:
            results = self.write()
        return results

    def write(self) -> StudyResults:
        """Write `study.json` and `study.csv` from what is known of the runs."""
        jobs = self._study.jobs()
        content = findings(self.design, jobs, self._study.records(jobs), self.folder)
        content = json.loads(json.dumps(finite(content), default=str))
        by = str(os.getpid())  # the same command, given twice, writes too
        try:
            write_whole(self.folder / RESULTS, json.dumps(content, indent=2) + "\n", by)
            write_whole(self.folder / TABLE, to_csv(content), by)
        except OSError as error:
            raise cannot_write(error, f"can't write to {str(self.folder)!r}: {error.strerror}") from error
        return StudyResults(self.folder, content)


def _lasting(value: object) -> str:
    """Return what an argument of a function's arm is called, the same in each process."""
    name = getattr(value, "__qualname__", None)
    return f"{getattr(value, '__module__', '')}.{name}" if name else re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _clock(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
