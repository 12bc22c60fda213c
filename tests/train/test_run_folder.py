"""A run takes its folder for itself."""

from pathlib import Path

import pytest

from engine_core.errors import ArgumentError
from engine_core.ranks import Ranks
from engine_core.run.folder import claimed


def test_of_two_runs_that_want_one_folder_the_second_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with (
        pytest.raises(ArgumentError, match="was taken by another run"),
        claimed(out, Ranks(), "{}", again=False),
        claimed(out, Ranks(), "{}", again=False),
    ):
        pass
    assert not out.exists()


def test_a_folder_that_cannot_be_made_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match=r"can't write to .*: Not a directory; choose another folder"):
        claimed(tmp_path / "file" / "below", Ranks(), "{}", again=False).__enter__()


def test_a_run_that_fails_after_it_has_logged_keeps_its_folder(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), claimed(tmp_path, Ranks(), "{}", again=False):
        (tmp_path / "metrics.jsonl").write_text("{}")
        raise ZeroDivisionError
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "metrics.jsonl"]


def test_a_further_attempt_describes_itself_and_keeps_what_the_one_before_said(tmp_path: Path) -> None:
    for attempt in ("first", "second", "third"):
        with claimed(tmp_path, Ranks(), attempt, again=True) as begin:
            assert (tmp_path / "manifest.json").read_text() != attempt or attempt == "first"
            begin()
    told = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert told == {"manifest.json": "third", "manifest-0.json": "first", "manifest-1.json": "second"}
