"""What is known of one run of a study, as a file in the run's folder. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from engine_core.errors import ArgumentError
from engine_core.files import finite, read_json, write_whole

from .design import Job, run_name

RECORD = "study-run.json"
"""The file in a run's folder that says how it ended and what it cost; it is there once the run has finished."""
STOP = "stop"
"""The file in a study's folder that lets its runs, wherever they train, save and end; Ctrl-C leaves it there."""
SCHEMA = 1


@dataclass(frozen=True)
class Record:
    """How a run ended, and what it cost.

    Args:
        status: `finished`, `failed` or `interrupted`.
        values: the last value of each result that the study asks for; None where it is not finite or not there.
        lower: of each result, is the lower of two values better? None: nothing says so.
        seconds, unit: of training without evaluation: `CPU s` of the process, or `GPU s` between synchronisations.
        wall_s: of the whole run, with evaluation.
        forward_rows, backward_rows: rows that went through the model in training, and those with gradients; None where
            the model's arguments don't tell how many rows they have.
        weights, data: fingerprints of the weights before training, and of the first batch of each epoch as loaded.
        began: seconds since the epoch.
    """

    arm: str
    setting: int
    length: str | None
    seed: int
    folder: str
    status: str = "failed"
    error: str = ""
    values: Mapping[str, float | None] = field(default_factory=dict)
    lower: Mapping[str, bool | None] = field(default_factory=dict)
    seconds: float = 0.0
    unit: str = "CPU s"
    wall_s: float = 0.0
    samples: int = 0
    tokens: int = 0
    batches: int = 0
    forward_rows: int | None = None
    backward_rows: int | None = None
    weights: str = ""
    data: tuple[str, ...] = ()
    began: float = 0.0
    device: str = ""

    @property
    def name(self) -> str:
        """What a progress screen calls the run."""
        return run_name(self.arm, self.setting, self.length, self.seed, self.folder)

    @classmethod
    def of(cls, job: Job) -> Record:
        """Return the record of a run that has not ended."""
        return cls(job.arm, job.setting, job.length, job.seed, job.folder)


def write_record(record: Record, folder: Path) -> None:
    """Write the record into the run's folder, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / RECORD, json.dumps({"schema": SCHEMA, **finite(asdict(record))}, indent=2) + "\n")


def read_record(job: Job, folder: Path) -> Record | None:
    """Return the record of a run, or None if there is none that can be read, as after a kill.

    Args:
        folder: of the study.
    """
    try:
        told = read_json(folder / job.folder / RECORD)
    except ArgumentError:
        return None
    if not isinstance(told, dict) or told.get("schema") != SCHEMA:
        return None
    known = {each.name for each in fields(Record)}
    try:
        record = Record(**{name: value for name, value in told.items() if name in known})
    except TypeError:
        return None
    is_ours = (record.arm, record.seed, record.length) == (job.arm, job.seed, job.length)
    return record if is_ours else None
