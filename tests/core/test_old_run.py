"""The folder of a run that an older version wrote in six files: it is shown as it was, see tests/old_run."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine_core.cli import main
from engine_core_report import read_run
from engine_core_report.series import Stretch

RUN = Path(__file__).parent.parent / "old_run" / "run"


@pytest.fixture
def run():
    return read_run(RUN)


def invoke(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


def test_all_that_it_tells_is_read(run):
    assert (run.status, run.has_ended, run.steps, run.warnings) == ("finished", True, 12, [])
    assert run.best == {"eval/loss": {"value": 1.2651032209396362, "step": 12, "epoch": 2}}
    assert (run.series["train/loss"].x, run.last["eval/loss"]) == ([*range(12)], 1.2651032209396362)
    assert run.resumed == [(6, 3.995)]
    assert run.strips == {"EMA/BATCH_END": [Stretch(0, 6, 6), Stretch(6, 12, 6)]}
    assert (run.timing.batches, run.timing.resumed_at, len(run.timing.spans)) == (6, 6, 39)
    assert [(saved.name, saved.marks) for saved in run.checkpoints] == [("ep2-ba12", ("latest",))]


def test_the_commands_show_it(tmp_path):
    assert invoke("report", RUN, "--out", tmp_path / "page.html").exit_code == 0
    (row,) = json.loads(invoke("runs", RUN, "--json").output)
    assert (row["status"], row["values"]["eval/loss"]["last"]) == ("finished", 1.2651032209396362)
    assert (invoke("diff", RUN, RUN).exit_code, "EMA" in invoke("explain", RUN).output) == (0, True)


def test_told_in_three_files_it_looks_the_same(run, tmp_path):
    shutil.copytree(RUN, tmp_path / "run")
    lines = [json.loads(line) for line in (RUN / "metrics.jsonl").read_text().splitlines()]
    events = (tmp_path / "run" / "events.jsonl").read_text()
    values = "".join(f"{json.dumps({'kind': 'values', **line})}\n" for line in lines)
    (tmp_path / "run" / "metrics.jsonl").write_text(values + events)
    results, timing = (json.loads((RUN / f"{name}.json").read_text()) for name in ("results", "timing"))
    (tmp_path / "run" / "results.json").write_text(json.dumps({**results, "timing": timing}))
    for name in ("events.jsonl", "timing.json"):
        (tmp_path / "run" / name).unlink()
    now = read_run(tmp_path / "run")
    assert replace(now, folder=run.folder, results=run.results) == run
