"""What a study found, written: units, chosen settings, and the seeds that are left out."""

import csv
import statistics
from dataclasses import replace

import pytest

from engine_core_study.design import Arm, Design, Setting, reported_jobs, tuning_jobs
from engine_core_study.record import Record
from engine_core_study.results import findings
from engine_core_study.writing import tables_of, to_csv, to_terminal

ACCURACY, LOSS = "test/accuracy", "test/loss"


def found(change=lambda record: record, *, arms=("plain", "mixup", "ema"), tuned=(), seeds=4):
    """Return what `study.json` holds of two lengths; `change` gives the record of a run another form."""
    settings = {name: (0.1, 0.2) if name in tuned else (0.1,) for name in arms}
    made = tuple(Arm(name, tuple(Setting(f"lr={lr}", {}) for lr in tried)) for name, tried in settings.items())
    report, lengths = (ACCURACY, LOSS), ("1ep", "2ep")
    design = Design("a.yaml", made, "plain", tuple(range(seeds)), report, lengths, "val/loss", target={ACCURACY: 0.85})
    jobs = [*tuning_jobs(design), *reported_jobs(design, {arm.name: len(arm.settings) - 1 for arm in made})]
    return findings(design, jobs, {job.folder: change(ended(job)) for job in jobs}, None)


def ended(job):
    epochs = int(job.length[0])
    accuracy = 0.7 + 0.1 * epochs + 0.01 * (job.seed * len(job.arm) % 3)
    lower = {ACCURACY: False, LOSS: True}
    counts = {"seconds": 0.25 * epochs, "samples": 100, "forward_rows": 100 * epochs, "backward_rows": 100 * epochs}
    values = {ACCURACY: accuracy, LOSS: 1 - accuracy}
    return replace(Record.of(job), status="finished", values=values, lower=lower, began=float(job.seed), **counts)


def column(content, head):
    _, header, rows = next(tables_of(content))
    return {row[0]: row[header.index(head)] for row in rows}


def without_rows(*arms):
    return lambda record: replace(record, forward_rows=None, backward_rows=None) if record.arm in arms else record


def test_the_cost_to_reach_a_target_names_its_unit():
    assert [*column(found(), "row passes to reach 0.85")] == ["plain", "mixup", "ema"]
    seconds = column(found(without_rows("plain", "mixup", "ema")), "CPU s to reach 0.85")
    assert seconds["plain"] == "0.336"  # 0.25 * 2 ** ((0.85 - 0.8075) / 0.1), between the lengths


def test_an_arm_that_tells_only_its_seconds_names_them_beside_the_others_row_passes():
    mixed = column(found(without_rows("mixup")), "row passes to reach 0.85")
    assert (mixed["plain"], mixed["mixup"].partition(" ")[2], mixed["ema"]) == ("403", "CPU s", "424")


def test_a_value_without_a_target_has_no_column_for_it():
    headers = [header for _, header, _ in tables_of(found())]
    assert [len(header) for header in headers] == [6, 5]


def test_the_chosen_setting_and_of_how_many_is_in_the_csv():
    content = found(tuned=("mixup",))
    rows = [*csv.DictReader(to_csv(content).splitlines())]
    assert {(row["arm"], row["chosen_setting"], row["settings_tried"]) for row in rows} == {
        ("plain", "lr=0.1", ""),
        ("mixup", "lr=0.2", "2"),
        ("ema", "lr=0.1", ""),
    }
    assert len(rows) == len(content["runs"]) == 2 + 2 * 3 * 4


def lost(record):
    """Lose two runs of an arm, and a value of another run."""
    if record.arm == "mixup" and record.seed in (1, 3):
        return replace(record, status="failed", values={}, samples=0, error="RuntimeError: no room")
    return replace(record, values={**record.values, LOSS: None}) if (record.arm, record.seed) == ("ema", 2) else record


def test_the_seeds_that_are_left_out_are_named_with_the_values_that_they_lack():
    told = "left out of means and differences, without a value: mixup seeds 1 and 3; ema seed 2 (test/loss)"
    assert told in found(lost)["notes"]
    assert not [note for note in found()["notes"] if "left out" in note]


def test_of_many_seeds_that_are_left_out_the_first_are_named():
    content = found(lambda record: replace(record, values={}) if record.arm == "ema" else record, seeds=9)
    assert "ema seeds 0, 1, 2 and 6 more" in " ".join(content["notes"])


def test_what_the_terminal_notes_is_in_the_json_as_it_is():
    notes = found(tuned=("mixup",))["notes"]
    told = ["4 seeds; differences are paired by seed, with 95 % intervals (t); a gain or loss has p <= 0.05, corrected"]
    told += [
        "CPU s: of training",
        "the weights before training are equal in all",
        "the first batches of each epoch are equal in all arms",
    ]
    assert [note[: len(part)] for note, part in zip(notes, told, strict=False)] == told
    shown = " ".join(to_terminal(found(tuned=("mixup",)), 200).split())
    assert [note for note in notes if note not in shown] == []


def test_a_count_that_is_not_known_is_null():
    content = found(lost)
    failed = next(run for run in content["runs"] if run["status"] == "failed")
    ran = next(run for run in content["runs"] if run["status"] == "finished")
    assert [failed[name] for name in ("samples", "batches", "wall_s")] == [None] * 3
    assert [ran[name] for name in ("samples", "tokens", "forward_rows")] == [100, None, 100]
    assert (content["arms"][0]["cost"]["tokens"], content["arms"][0]["ladder"][0]["tokens"]) == (None, None)


def test_the_deviation_at_each_length_is_in_json_and_csv():
    content = found(lost)
    plain, mixup, ema = (arm["ladder"] for arm in content["arms"])
    spread = statistics.stdev([0.0, 0.02, 0.01, 0.0])
    assert [rung["sd"][ACCURACY] for rung in plain] == [pytest.approx(spread)] * 2
    assert [rung["n"] for rung in mixup] == [2, 2]
    assert (ema[0]["values"][LOSS], ema[0]["sd"][LOSS]) == (None, None)
    rows = [*csv.DictReader(to_csv(content).splitlines())]
    told = {(row["arm"], row["length"]): (row[f"{ACCURACY} sd"], row[f"{LOSS} sd"]) for row in rows}
    assert told["plain", "2ep"] == tuple(str(plain[1]["sd"][name]) for name in (ACCURACY, LOSS))
    assert told["ema", "1ep"] == (str(ema[0]["sd"][ACCURACY]), "")


def test_the_correction_is_told_for_the_arms_that_it_counts():
    assert "corrected for 2 arms (Holm)" in found()["notes"][0]
    assert "corrected" not in found(seeds=2)["notes"][0]
    assert "corrected" not in found(lost)["notes"][0]  # two seeds of one of two arms are left
