"""Files that grow by whole lines: what a full disk does not take is kept, neither halved nor merged with the next."""

import csv
import json
import subprocess
import sys

import pytest

from engine_core import State
from engine_core.errors import ArgumentError
from engine_core.loggers.run_files import RunFiles
from engine_core.loggers.whole_lines import Lines, write_table

PROGRAM = """
import json, resource, sys, warnings
from pathlib import Path
from engine_core import Engine, Logger, State, Timestamp
from engine_core.loggers.run_files import RunFiles

warnings.simplefilter("always")
state, files = State(), RunFiles(sys.argv[1])
path = Path(sys.argv[1], "metrics.jsonl")
with Engine(state, Logger([files])) as engine:
    engine.run_event("init")
    engine.run_event("fit_start")
    for batch in range(9):
        state.timestamp = Timestamp(batch=batch)
        room = path.stat().st_size + 9 if 3 <= batch < 5 else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        engine.logger.log_metrics({"train/loss": batch / 7, "text": "a" * 40})
        saved = files.state_dict()
        assert batch not in (3, 4) or saved["bytes"] == path.stat().st_size
        assert path.read_bytes().endswith(b"\\n")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files as Linux does")
def test_lines_that_a_full_disk_does_not_take_are_written_whole_when_there_is_room(tmp_path):
    """The file may not grow by more than 9 bytes at steps 3 and 4."""
    command = [sys.executable, "-B", "-c", PROGRAM, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("DestinationWarning: logger destination RunFiles can't write in") == 1
    assert "([Errno 27] File too large); training continues" in done.stderr
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(len(row) == 3 and None not in row.values() for row in rows)
    assert [line["step"] for line in lines] == [int(row["step"]) for row in rows] == [*range(9)]


def test_a_last_line_without_its_end_is_not_merged_with_the_next(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 0}\n{"st')
    lines = Lines(path)
    lines.add('{"step": 2}')
    lines.add('{"step": 3}')
    lines.close()
    assert path.read_bytes() == b'{"step": 0}\n{"st\n{"step": 2}\n{"step": 3}\n'


def test_a_line_that_is_not_utf_8_is_passed_over_as_any_damaged_one(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 0, "a": "\xed\xa0\x80"}\n{"step": 1, "a": 2}\n')
    write_table(tmp_path / "metrics.jsonl", tmp_path / "metrics.csv")
    assert (tmp_path / "metrics.csv").read_text().split() == ["step,a", "1,2"]


def test_what_another_has_written_to_the_file_stays(tmp_path):
    first, second = Lines(tmp_path / "file"), Lines(tmp_path / "file")
    for lines, line in ((first, "a"), (second, "b"), (first, "c")):
        lines.add(line)
        lines.flush()
    first.close()
    second.close()
    assert (tmp_path / "file").read_bytes() == b"a\nb\nc\n"


def test_a_folder_that_cannot_be_made_is_reported_when_the_fit_starts(tmp_path):
    (tmp_path / "file").touch()
    files = RunFiles(tmp_path / "file" / "run")
    with pytest.raises(ArgumentError, match=r"^RunFiles can't write in '.*run' \(.*\); give it a folder that you can"):
        files.fit_start(State(), None)


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is a device of Linux")
def test_a_line_for_which_there_is_no_room_is_refused(tmp_path):
    (tmp_path / "file").symlink_to("/dev/full")
    lines = Lines(tmp_path / "file")
    lines.add("a")
    with pytest.raises(OSError, match="No space left on device"):
        lines.flush()
    with pytest.raises(OSError, match="No space left on device"):
        lines.close()
    assert lines.unwritten == 1
