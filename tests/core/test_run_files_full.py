"""`RunFiles` on a full disk: what waits is in the checkpoint and written later, and no temporary file stays."""

import json
import sys

import pytest

from engine_core import State
from engine_core.loggers.run_files import RunFiles
from engine_core.loggers.whole_lines import MOST_DUE_BYTES

linux = pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is a device of Linux")


def steps(folder):
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def limited(monkeypatch):
    """Return a function that limits the size of files in bytes, until the test ends or it is given None."""
    resource = pytest.importorskip("resource")
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the limit would cut it

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (former[0] if size is None else size, former[1]))

    yield limit
    limit(None)


def test_lines_and_rows_that_wait_are_in_the_checkpoint(tmp_path, limited, recwarn):
    files = RunFiles(tmp_path)
    for step in range(3):
        files.log_metrics({"loss": step / 2}, step)
    limited(20)
    for step in range(3, 6):
        files.log_metrics({"loss": step / 2}, step)
    state = json.loads(json.dumps(files.state_dict()))
    limited(None)
    again = RunFiles(tmp_path)
    again.load_state_dict(state)
    again.fit_start(State(), None)
    again.log_metrics({"loss": 3.0}, 6)
    again.close()
    assert steps(tmp_path) == [*range(7)]
    table = (tmp_path / "metrics.csv").read_text().splitlines()
    assert table == ["step,loss", *(f"{step},{step / 2}" for step in range(7))]


MANY = {f"layer{layer}/norm": layer / 7 for layer in range(40)}


def test_the_latest_that_wait_stay_small_in_the_checkpoint_and_the_others_are_lost(tmp_path, limited, recwarn):
    files = RunFiles(tmp_path)
    limited(20)
    for step in range(600):
        files.log_metrics({**MANY, "bad": float("nan")}, step)
    state = files.state_dict()
    waiting = [json.loads(line)["step"] for line in state["due"]]
    assert MOST_DUE_BYTES * 0.7 < len(json.dumps(state["due"], indent=1)) < MOST_DUE_BYTES * 1.1
    assert waiting == [*range(600 - len(waiting), 600)]
    assert state["lost"] == 600 - len(waiting)
    limited(None)
    files.close()
    assert steps(tmp_path) == waiting
    assert str(recwarn.list[-1].message) == (
        f"logger destination RunFiles could not write in {str(tmp_path)!r}, and its buffer overflowed: "
        f"{600 - len(waiting)} lines for metrics.jsonl are lost"
    )


def test_what_is_written_at_once_is_not_bounded(tmp_path, recwarn):
    files = RunFiles(tmp_path)
    files.start_over()
    for step in range(2):
        files.log_metrics({"text": "a" * MOST_DUE_BYTES}, step)
    files.fit_start(State(), None)
    files.close()
    assert steps(tmp_path) == [0, 1]
    assert not recwarn.list


def test_a_resumed_run_reports_at_its_end_what_was_lost_before_the_checkpoint(tmp_path, limited, recwarn):
    files = RunFiles(tmp_path)
    files.log_metrics({"loss": 0.5}, 0)
    limited(20)
    for step in range(1, 4):
        files.log_metrics({"text": "a" * MOST_DUE_BYTES}, step)
    state = json.loads(json.dumps(files.state_dict()))
    limited(None)
    again = RunFiles(tmp_path)
    again.load_state_dict(state)
    again.fit_start(State(), None)
    again.close()
    assert str(recwarn.list[-1].message).endswith("3 lines for metrics.jsonl are lost")


@linux
def test_what_is_lost_at_the_end_is_reported_in_one_line_with_what_was_dropped_earlier(tmp_path, recwarn):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    files = RunFiles(tmp_path)
    for step in range(400):
        files.log_metrics({**MANY, "loss": step}, step)
    assert files.latest["loss"] == 399
    files.close()
    assert str(recwarn.list[-1].message) == (
        f"logger destination RunFiles can't write in {str(tmp_path)!r} at its end ([Errno 28] No space left on "
        "device): 400 lines for metrics.jsonl and the table metrics.csv are lost"
    )


def test_a_table_that_cannot_be_written_is_as_it_was_and_is_reported(tmp_path, recwarn):
    (tmp_path / "metrics.csv").write_text("an earlier one")
    files = RunFiles(tmp_path)
    files.log_metrics({"a": 1}, 0)
    (tmp_path / ".metrics.csv.new").mkdir()
    files.close()
    assert (tmp_path / "metrics.csv").read_text() == "an earlier one"
    assert str(recwarn.list[-1].message).endswith(": the table metrics.csv is lost")
