"""The page on the files of a study names each key that a study writes, with its type, and no other."""

import dataclasses
import json
import re

import pytest

from engine_core.files import finite
from engine_core_report import read_study, write_study
from engine_core_study import record, results
from engine_core_study.design import Arm, Design, Setting, reported_jobs, tuning_jobs

from .conftest import DOCS
from .test_run_format import tables, told_in

TEXT = (DOCS / "reference" / "study-format.md").read_text(encoding="utf-8")
PARTS = ("study.json", "What was found of an arm", "The difference to the baseline", "A run of the study")
STUDY = {key: kind for part in PARTS for key, kind in tables(part, TEXT).items()}
GAINS = {"plain": 0.0, "better": 0.02, "worse": -0.03}


def design(seeds):
    """Return a study that is tuned, has a ladder and a target."""
    settings = [Setting(f"lr={lr}", {"algorithms": ["ema"], "lr": lr}) for lr in (0.1, 0.2)]
    arms = tuple(Arm(name, tuple(settings)) for name in GAINS)
    report, chosen_by = ("test/accuracy", "test/loss"), "val/accuracy"
    return Design("a.yaml", arms, "plain", seeds, report, ("1ep", "2ep"), chosen_by, target={"test/accuracy": 0.85})


def ended(job):
    """Return the record of a run as it may be: one diverges, and one fails."""
    if (job.arm, job.seed) == ("worse", 2):
        return dataclasses.replace(record.Record.of(job), error="RuntimeError: no room")
    epochs = int(job.length[:-2])
    accuracy = 0.75 + 0.05 * epochs + GAINS[job.arm] + 0.001 * (job.seed * len(job.arm) % 4)
    loss = float("nan") if (job.arm, job.seed) == ("better", 1) else 1 - accuracy
    return dataclasses.replace(
        record.Record.of(job),
        status="finished",
        values={"test/accuracy": accuracy, "test/loss": loss, "val/accuracy": accuracy},
        lower={"test/accuracy": False, "test/loss": True, "val/accuracy": None},
        seconds=2.5 * epochs,
        forward_rows=100 * epochs,
        backward_rows=50 * epochs,
        data=("a fingerprint",),
        began=float(job.seed),
        device="a processor",
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write what studies of different size leave, without their runs."""
    place = tmp_path_factory.mktemp("studies")
    for seeds in ((0,), (0, 1, 2, 3)):
        made = design(seeds)
        jobs = [*tuning_jobs(made), *reported_jobs(made, dict.fromkeys(GAINS, 1))]
        records = {job.folder: ended(job) for job in jobs[:-1]}
        content = finite(results.findings(made, jobs, records, place))
        study = place / str(len(seeds))
        study.mkdir()
        (study / "study.json").write_text(json.dumps(content))
        (study / "plan.json").write_text(json.dumps({"schema": results.SCHEMA, **made.to_json()}))
        for job in jobs[:-1]:
            record.write_record(records[job.folder], study / job.folder)
    return place


@pytest.mark.parametrize(("file", "types"), [("study.json", STUDY), ("plan.json", tables("plan.json", TEXT))])
def test_a_file_has_the_keys_that_the_page_names(file, types, folder):
    seen = set()
    for path in folder.glob(f"*/{file}"):
        told_in(json.loads(path.read_text()), types, seen)
    assert set(types) - seen == set()


def test_the_record_of_a_run_has_the_keys_that_the_page_names(folder):
    types = {key.removeprefix("runs[]."): kind for key, kind in STUDY.items() if key.startswith("runs[].")}
    seen = set()
    for path in folder.rglob(record.RECORD):
        told_in(json.loads(path.read_text()), {**types, "schema": "integer"}, seen)
    assert set(types) - seen == {"name"}


def test_the_schema_numbers_are_those_of_the_page():
    assert results.SCHEMA == record.SCHEMA == max(map(int, re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)))


def test_the_report_reads_what_a_study_writes(folder):
    for study in folder.iterdir():
        read = read_study(study)
        write_study(read, study / "report.html")
        assert [arm.name for arm in read.arms] == [*GAINS]
