"""In which order a run's checkpoints are, and which of them stay: by what the run says, not by a clock."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint import read_content, read_manifest, resolve, write_content
from engine_core.errors import CheckpointError

from .parts import at, batches, trainer

WRITE = "engine_core.checkpoint.store.write_content"


@pytest.fixture
def _clock_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each checkpoint have an earlier time than all before it."""
    now = [1_000_000]

    def written(folder: Path, content: Any, *_: Any) -> None:
        write_content(folder, content)
        now[0] -= 100
        os.utime(folder / "manifest.json", (now[0], now[0]))

    monkeypatch.setattr(WRITE, written)


def run(folder: Path, *callbacks: Any, keep_last: int | None = None, **settings: Any) -> Any:
    saver = CheckpointSaver(folder, "1ba", keep_last=keep_last)
    return trainer(batches(*[8] * 6), max_duration="1ep", callbacks=[*callbacks, saver], **settings)


def fitted(folder: Path, duration: str | None = None, **settings: Any) -> None:
    with run(folder, **settings) as made:
        made.fit(duration)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("ep*"))


def attempts(folder: Path) -> dict[str, Any]:
    return {name: read_manifest(folder / name)["attempt"] for name in names(folder)}


@pytest.mark.usefixtures("_clock_set_back")
def test_a_clock_set_back_removes_the_old_checkpoints_and_keeps_the_new(tmp_path: Path) -> None:
    with run(tmp_path, keep_last=2) as made:
        made.fit("5ba")
        assert [path.name for path in made.state.callbacks[0].written()] == ["ep0-ba4", "ep0-ba5"]
    (tmp_path / "latest").unlink()
    assert resolve(tmp_path).name == "ep0-ba5"
    fitted(tmp_path, keep_last=2, autoresume=True)
    assert names(tmp_path) == ["ep0-ba5", "ep0-ba6", "ep1-ba6"]


@pytest.mark.parametrize("clock", ["as it is", "set back"])
def test_a_run_resumed_from_before_others_keeps_its_own(
    clock: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if clock == "set back":
        request.getfixturevalue("_clock_set_back")
    fitted(tmp_path, "5ba")
    seen: list[list[str]] = []
    look = at("batch_end", lambda state: (state.callbacks[1].written(), seen.append(names(tmp_path))))
    with run(tmp_path, look, keep_last=2, load_path=tmp_path / "ep0-ba1") as made:
        made.fit("3ba")
    assert seen[1:] == [["ep0-ba1", "ep0-ba2"], ["ep0-ba2", "ep0-ba3"]]
    assert attempts(tmp_path) == {"ep0-ba3": 1, "ep0-ba4": 1}


def test_the_attempt_is_one_more_than_that_of_the_checkpoint_that_was_resumed(tmp_path: Path) -> None:
    fitted(tmp_path, "2ba")
    fitted(tmp_path, "2ba", autoresume=True)
    fitted(tmp_path, autoresume=True)
    assert attempts(tmp_path) == {
        "ep0-ba1": 0,
        "ep0-ba2": 0,
        "ep0-ba3": 1,
        "ep0-ba4": 1,
        "ep0-ba5": 2,
        "ep0-ba6": 2,
    } | {"ep1-ba6": 2}
    fitted(tmp_path / "other", load_path=tmp_path / "ep0-ba4")
    assert attempts(tmp_path / "other") == {"ep0-ba5": 2, "ep0-ba6": 2, "ep1-ba6": 2}


def test_a_run_that_starts_with_saved_weights_alone_is_a_fresh_one(tmp_path: Path) -> None:
    fitted(tmp_path / "a", "2ba")
    fitted(tmp_path / "b", "2ba", load_path=tmp_path / "a", load_weights_only=True)
    assert attempts(tmp_path / "b") == {"ep0-ba1": 0, "ep0-ba2": 0}


def changed(checkpoint: Path, **manifest: Any) -> None:
    content = read_content(checkpoint)
    kept = {name: value for name, value in content.manifest.items() if name != "attempt"}
    write_content(checkpoint, replace(content, manifest={**kept, **manifest}))


def test_a_checkpoint_from_before_attempts_were_counted_is_of_the_first(tmp_path: Path) -> None:
    fitted(tmp_path, "2ba")
    changed(tmp_path / "ep0-ba2")
    fitted(tmp_path, "1ba", autoresume=True)
    assert "attempt" not in read_manifest(tmp_path / "ep0-ba2")
    assert read_manifest(tmp_path / "ep0-ba3")["attempt"] == 1


@pytest.mark.parametrize("attempt", ["1", -1, True, 1.0, None, 10**30])
def test_an_attempt_that_is_not_a_count_is_refused(attempt: Any, tmp_path: Path) -> None:
    fitted(tmp_path, "1ba")
    changed(tmp_path / "ep0-ba1", attempt=attempt)
    with pytest.raises(CheckpointError, match=f"manifest has an invalid attempt: {attempt!r}"):
        run(tmp_path, autoresume=True)
