"""A saver's folder: which checkpoint is the latest, which stay, and that it belongs to one run."""

import errno
import os
import signal
import subprocess
import sys
import tracemalloc

import pytest

from engine_core.checkpoint import Checkpoint, Store, read_content, resolve
from engine_core.checkpoint.store import has_checkpoint, read_resolved
from engine_core.errors import CheckpointError
from engine_core.time import Timestamp


def at(epoch, batch):
    return Timestamp(epoch=epoch, batch=batch)


def names(store):
    return [path.name for path in store.saved()]


def saved(folder, *positions):
    """Save at these positions, or pairs of one and an attempt, by a clock that runs backwards."""
    store = Store(folder)
    for second, position in enumerate(positions):
        at, attempt = position if isinstance(position[0], Timestamp) else (position, 0)
        path = store.save(at, Checkpoint({}, {"batch": at.batch}, {}, {"attempt": attempt}))
        os.utime(path / "manifest.json", (100 - second, 100 - second))
    return store


def locked_once(store):
    store.lock()
    store.unlock()


def test_checkpoints_are_in_order_of_batch_and_attempt_whatever_the_clock_said(tmp_path):
    store = saved(tmp_path, at(0, 2), (at(2, 10), 1), (at(1, 10), 2), at(3, 10), (at(0, 4), 7))
    assert names(store) == ["ep0-ba2", "ep0-ba4", "ep3-ba10", "ep2-ba10", "ep1-ba10"]


def test_only_those_that_are_named_stay_with_the_latest_and_foreign_files(tmp_path):
    store = saved(tmp_path, *(at(0, batch) for batch in (1, 5, 6, 2, 3, 4)))
    (tmp_path / "latest").write_text("ep0-ba1\n")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "ep0-ba1-copy").mkdir()
    store.keep([*store.saved()[-2:], tmp_path / "ep0-ba5"])
    assert names(store) == ["ep0-ba1", "ep0-ba5", "ep0-ba6"]
    assert (tmp_path / "notes.txt").exists() and (tmp_path / "ep0-ba1-copy").exists()


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
    (tmp_path / ".ep0-ba1.77.new").mkdir()
    assert not has_checkpoint(tmp_path / "nowhere") and not has_checkpoint(tmp_path)
    for name in ("latest", "ep0-ba1", ".ep0-ba1.old"):
        (tmp_path / name).mkdir()
        assert has_checkpoint(tmp_path)
        (tmp_path / name).rmdir()


def test_a_latest_that_is_not_a_file_or_names_no_checkpoint_is_refused(tmp_path):
    saved(tmp_path, at(0, 1))
    for text in ("../elsewhere", "", "ep0-ba1/../..", "/", "\x00", "ep1-ba1 " + "x" * 10_000):
        (tmp_path / "latest").write_text(text)
        with pytest.raises(CheckpointError, match=r"latest' holds .*, which is not a checkpoint's name"):
            resolve(tmp_path)
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").mkdir()
    with pytest.raises(CheckpointError, match=r"latest' is not a file"):
        resolve(tmp_path)


def test_only_as_much_of_latest_as_a_name_takes_is_read(tmp_path):
    saved(tmp_path, at(0, 1))
    (tmp_path / "latest").write_bytes(b"ep0-ba1".ljust(2**24))
    tracemalloc.start()
    try:
        assert resolve(tmp_path).name == "ep0-ba1"
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_reader_moves_on_to_the_latest_of_a_live_run_that_removes_what_it_reads(tmp_path):
    store, read = saved(tmp_path, at(0, 0)), []

    def read_beside_a_writer(checkpoint):
        read.append(checkpoint.name)
        if len(read) < 4:
            saved(tmp_path, at(0, len(read)))
            store.keep([])
        return read_content(checkpoint)

    checkpoint, content = read_resolved(tmp_path, read_beside_a_writer)
    assert (checkpoint.name, content.state) == ("ep0-ba3", {"batch": 3})
    assert read == ["ep0-ba0", "ep0-ba1", "ep0-ba2", "ep0-ba3"]


LOCKS = """
import multiprocessing, sys, time
from pathlib import Path
from engine_core.checkpoint import Store
store = Store(Path(sys.argv[1]))
store.lock()
fork = multiprocessing.get_context("fork")
runs = fork.Event()
worker = fork.Process(target=lambda: (runs.set(), time.sleep(60)))
worker.start()
runs.wait()
print(worker.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_folder_in_use_is_refused_until_its_process_is_killed_though_a_forked_worker_lives_on(tmp_path):
    command = [sys.executable, "-c", LOCKS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        worker = int(first.stdout.readline())
        try:
            with pytest.raises(CheckpointError, match=rf"in use by another run \(process {first.pid}\)"):
                Store(tmp_path).lock()
            first.kill()
            first.wait()
            os.kill(worker, 0)
            locked_once(Store(tmp_path))
        finally:
            os.kill(worker, signal.SIGKILL)


def test_what_a_killed_process_had_begun_is_removed_and_what_it_was_about_to_replace_is_put_back(tmp_path):
    saved(tmp_path, at(0, 1), at(0, 2))
    begun = [tmp_path / name for name in (".ep0-ba1.77.new", ".ep0-ba1.old", ".latest.new")]
    for path in begun:
        path.mkdir() if "ep" in path.name else path.touch()
    (tmp_path / "ep0-ba2").rename(tmp_path / ".ep0-ba2.old")
    assert resolve(tmp_path) == tmp_path / ".ep0-ba2.old"
    locked_once(Store(tmp_path))
    assert not any(path.exists() for path in begun)
    assert resolve(tmp_path) == tmp_path / "ep0-ba2"
    assert read_content(tmp_path / "ep0-ba2").state == {"batch": 2}


def test_a_disk_without_locks_is_not_taken_for_another_run(tmp_path, monkeypatch):
    def fail(file):
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patched:
        patched.setattr("engine_core.checkpoint.store._lock_file", fail)
        with pytest.raises(OSError, match="No locks available"):
            Store(tmp_path).lock()
    locked_once(Store(tmp_path))
