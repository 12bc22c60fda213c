"""A run that an older version began is trained longer: its values and events are continued, see tests/old_run."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine_core.cli import main
from engine_core_report import read_run

OLD = Path(__file__).parent.parent / "old_run"


@pytest.mark.filterwarnings("ignore::engine_core.errors.CheckpointWarning")
def test_it_is_continued_in_the_form_of_today(tmp_path, monkeypatch):
    shutil.copytree(OLD, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    events = (tmp_path / "run" / "events.jsonl").read_text()
    done = CliRunner().invoke(main, ["train", "run.yaml", "--out", "run", "--max-duration", "3ep"])
    sys.modules.pop("old_net")
    assert done.exit_code == 0, done.output
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert (text.startswith(before), (tmp_path / "run" / "events.jsonl").read_text()) == (True, events)
    lines = [json.loads(line) for line in text.removeprefix(before).splitlines()]
    assert {line["kind"] for line in lines} - {"warning"} == {"resume", "values", "epoch", "evaluation", "end"}
    assert [line["step"] for line in lines if "train/loss" in line] == [*range(12, 18)]
    run = read_run("run")
    assert (run.status, run.series["train/loss"].x) == ("finished", [*range(18)])
    assert ([step for step, _ in run.resumed], len(run.strips["EMA/BATCH_END"])) == ([6, 12], 3)
    table = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert [row.partition(",")[0] for row in table] == ["step", *map(str, range(19))]
