"""A saver's folder: which checkpoint is the latest, and which stay."""

import os
import shutil
import tracemalloc

import pytest

from engine_core.checkpoint import Checkpoint, Store, read_content, resolve
from engine_core.checkpoint.store import has_checkpoint, read_resolved
from engine_core.errors import CheckpointError
from engine_core.time import Timestamp

EMPTY = Checkpoint({}, {}, {})


def at(epoch, batch):
    return Timestamp(epoch=epoch, batch=batch)


def names(store):
    return [path.name for path in store.saved()]


def saved(folder, *positions):
    """Save at these positions, or pairs of one and an attempt, by a clock that runs backwards."""
    store = Store(folder)
    for second, position in enumerate(positions):
        at, attempt = position if isinstance(position[0], Timestamp) else (position, 0)
        path = store.save(at, Checkpoint({}, {}, {}, {"attempt": attempt}))
        os.utime(path / "manifest.json", (100 - second, 100 - second))
    return store


def test_the_latest_is_the_last_that_was_saved(tmp_path):
    saved(tmp_path, at(0, 2), at(1, 10), at(0, 4))
    assert (tmp_path / "latest").read_text() == "ep0-ba4\n"
    assert resolve(tmp_path) == tmp_path / "ep0-ba4"
    assert resolve(tmp_path / "ep0-ba2") == tmp_path / "ep0-ba2"


def test_checkpoints_are_in_order_of_batch_and_attempt_whatever_the_clock_said(tmp_path):
    store = saved(tmp_path, at(0, 2), (at(2, 10), 1), (at(1, 10), 2), at(3, 10), (at(0, 4), 7))
    assert names(store) == ["ep0-ba2", "ep0-ba4", "ep3-ba10", "ep2-ba10", "ep1-ba10"]


def test_an_epoch_that_ended_counts_as_later_than_its_last_batch_whatever_the_clock_said(tmp_path):
    store = saved(tmp_path, at(0, 9), at(0, 10), at(1, 10))
    assert names(store) == ["ep0-ba9", "ep0-ba10", "ep1-ba10"]
    (tmp_path / "latest").unlink()
    assert resolve(tmp_path) == tmp_path / "ep1-ba10"


@pytest.mark.parametrize("attempt", ["7", -1, True, None, 2**63, [7]])
def test_an_attempt_that_is_no_count_is_0(tmp_path, attempt):
    store = saved(tmp_path, (at(1, 10), attempt), (at(0, 10), 1))
    assert names(store) == ["ep1-ba10", "ep0-ba10"]


def test_only_those_that_are_named_stay_with_the_latest(tmp_path):
    store = saved(tmp_path, *(at(0, batch) for batch in (1, 5, 6, 2, 3, 4)))
    (tmp_path / "latest").write_text("ep0-ba1\n")
    store.keep([*store.saved()[-2:], tmp_path / "ep0-ba5"])
    assert names(store) == ["ep0-ba1", "ep0-ba5", "ep0-ba6"]


def test_foreign_files_are_left_alone(tmp_path):
    store = Store(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "ep0-ba1-copy").mkdir()
    store.save(at(0, 1), EMPTY)
    store.save(at(0, 2), EMPTY)
    store.keep(store.saved()[-1:])
    assert names(store) == ["ep0-ba2"]
    assert (tmp_path / "notes.txt").exists()
    assert (tmp_path / "ep0-ba1-copy").exists()


def test_where_a_process_ended_between_two_renames_the_former_checkpoint_is_the_latest(tmp_path):
    store = Store(tmp_path)
    store.save(at(0, 1), EMPTY)
    (tmp_path / "ep0-ba1").rename(tmp_path / ".ep0-ba1.old")
    assert resolve(tmp_path) == tmp_path / ".ep0-ba1.old"


def test_where_a_process_ended_before_it_named_the_latest_it_is_the_last_that_can_be_read(tmp_path):
    store = saved(tmp_path / "checkpoints", at(0, 3), at(1, 6), at(0, 5))
    (store.folder / "latest").unlink()
    assert resolve(tmp_path) == resolve(store.folder) == store.folder / "ep1-ba6"
    for name in ("ep0-ba5", "ep1-ba6"):
        (store.folder / name / "manifest.json").write_text("{")
    assert resolve(store.folder) == store.folder / "ep0-ba3"
    (store.folder / "ep0-ba3").rename(store.folder / ".ep0-ba3.old")
    assert resolve(store.folder) == store.folder / ".ep0-ba3.old"


def test_a_folder_has_a_checkpoint_if_anything_in_it_says_so(tmp_path):
    assert not has_checkpoint(tmp_path / "nowhere")
    assert not has_checkpoint(tmp_path)
    (tmp_path / ".ep0-ba1.77.new").mkdir()
    assert not has_checkpoint(tmp_path)
    for name in ("latest", "ep0-ba1", ".ep0-ba1.old"):
        (tmp_path / name).mkdir()
        assert has_checkpoint(tmp_path)
        (tmp_path / name).rmdir()


def test_a_latest_that_is_not_a_file_is_refused(tmp_path):
    Store(tmp_path).save(at(0, 1), EMPTY)
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").mkdir()
    with pytest.raises(CheckpointError, match=r"latest' is not a file"):
        resolve(tmp_path)


@pytest.mark.parametrize("text", ["../elsewhere", "", "ep0-ba1/../..", "/", "\x00", "ep1-ba1 " + "x" * 10_000])
def test_a_latest_that_names_no_checkpoint_is_refused(tmp_path, text):
    Store(tmp_path).save(at(0, 1), EMPTY)
    (tmp_path / "latest").write_text(text)
    with pytest.raises(CheckpointError, match=r"latest' holds .*, which is not a checkpoint's name"):
        resolve(tmp_path)


def test_only_as_much_of_latest_as_a_name_takes_is_read(tmp_path):
    Store(tmp_path).save(at(0, 1), EMPTY)
    (tmp_path / "latest").write_bytes(b"ep0-ba1".ljust(2**24))
    tracemalloc.start()
    try:
        assert resolve(tmp_path).name == "ep0-ba1"
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_reader_moves_on_to_the_latest_of_a_live_run_that_removes_what_it_reads(tmp_path):
    store, read = Store(tmp_path), []
    store.save(at(0, 0), Checkpoint({}, {"batch": 0}, {}))

    def read_beside_a_writer(checkpoint):
        read.append(checkpoint.name)
        if len(read) < 4:
            store.save(at(0, len(read)), Checkpoint({}, {"batch": len(read)}, {}))
            store.keep([])
        return read_content(checkpoint)

    checkpoint, content = read_resolved(tmp_path, read_beside_a_writer)
    assert (checkpoint.name, content.state) == ("ep0-ba3", {"batch": 3})
    assert read == ["ep0-ba0", "ep0-ba1", "ep0-ba2", "ep0-ba3"]


def test_a_reader_tries_once_where_nothing_moves(tmp_path):
    store, read = Store(tmp_path), []
    shutil.rmtree(store.save(at(0, 0), EMPTY))
    with pytest.raises(CheckpointError, match="ep0-ba0' does not exist"):
        read_resolved(tmp_path, lambda checkpoint: read.append(checkpoint) or read_content(checkpoint))
    assert len(read) == 1


def test_there_is_no_checkpoint_where_nothing_is(tmp_path):
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        resolve(tmp_path / "nowhere")
