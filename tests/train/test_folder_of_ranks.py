"""One folder for all ranks, or an error on each of them that names those that do not have it."""

from pathlib import Path

import pytest

from engine_core.callbacks.checkpoint_saver import check_folder
from engine_core.errors import CheckpointError
from engine_core_author.ranks import ThreadRanks

torch = pytest.importorskip("torch")


def looked_at(folders, *, writes=False):
    """Return the error that each rank gets for its folder."""

    def look(ranks):
        try:
            check_folder(folders[ranks.rank], ranks, writes=writes)
        except CheckpointError as error:
            return str(error)
        return None

    return ThreadRanks.run(look, size=len(folders))


def test_a_rank_that_does_not_see_the_folder_is_named_on_all_ranks(tmp_path):
    own = [tmp_path / name for name in ("shared", "shared", "other")]
    for folder in own:
        folder.mkdir(exist_ok=True)
    errors = looked_at(own)
    assert all(error.endswith("machines share") for error in errors)
    assert errors[0].count("rank 2 does not see what rank 0 writes there") == 1
    assert "rank 1 " not in errors[0]
    assert [*tmp_path.rglob("*/*")] == []


@pytest.mark.parametrize("writes", [False, True])
def test_one_folder_is_fine_and_left_as_it_was(tmp_path, writes):
    assert looked_at([tmp_path] * 3, writes=writes) == [None] * 3
    assert [*tmp_path.iterdir()] == []


def test_a_rank_that_can_not_write_there_is_named_where_each_writes(tmp_path, monkeypatch):
    touch = Path.touch

    def refuse(self, *arguments):
        if self.name == "1":
            raise OSError(30, "Read-only file system")
        touch(self, *arguments)

    monkeypatch.setattr(Path, "touch", refuse)
    assert looked_at([tmp_path] * 2) == [None, None]
    for error in looked_at([tmp_path] * 2, writes=True):
        assert "rank 1 can't write there (Read-only file system)" in error
