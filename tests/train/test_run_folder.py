"""A run takes its folder for itself."""

import pytest

from engine_core.errors import ArgumentError
from engine_core.loggers.run_files import RunFiles
from engine_core.ranks import Ranks
from engine_core.run.folder import FolderReporter


def claiming(folder):
    return FolderReporter(RunFiles(folder)).claiming(Ranks(), "{}", again=False)


def test_of_two_runs_that_want_one_folder_the_second_is_refused(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(ArgumentError, match="was taken by another run"), claiming(out), claiming(out):
        pass
    assert not out.exists()


def test_a_folder_that_cannot_be_made_is_one_message(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match=r"can't write to .*: Not a directory; choose another folder"):
        claiming(tmp_path / "file" / "below").__enter__()


def test_a_run_that_fails_after_it_has_logged_keeps_its_folder(tmp_path):
    with pytest.raises(ZeroDivisionError), claiming(tmp_path):
        (tmp_path / "metrics.jsonl").write_text("{}")
        raise ZeroDivisionError
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "metrics.jsonl"]


def test_a_further_attempt_describes_itself_and_keeps_what_the_one_before_said(tmp_path):
    for attempt in ("first", "second", "third"):
        reporter = FolderReporter(RunFiles(tmp_path))
        with reporter.claiming(Ranks(), attempt, again=True):
            assert (tmp_path / "manifest.json").read_text() != attempt or attempt == "first"
            reporter.begin()
    told = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert told == {"manifest.json": "third", "manifest-0.json": "first", "manifest-1.json": "second"}
