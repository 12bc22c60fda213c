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
        claimed(out, Ranks(), again=False),
        claimed(out, Ranks(), again=False),
    ):
        pass
    assert not out.exists()


def test_a_folder_that_cannot_be_made_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match=r"can't write to .*: Not a directory; choose another folder"):
        claimed(tmp_path / "file" / "below", Ranks(), again=False).__enter__()


def test_a_run_that_fails_after_it_has_logged_keeps_its_folder(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}")
    with pytest.raises(ZeroDivisionError), claimed(tmp_path, Ranks(), again=False):
        raise ZeroDivisionError
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "metrics.jsonl"]
