"""A saver's folder belongs to one run: two don't share it, and what a killed one has left is tidied up."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from engine_core.checkpoint import Checkpoint, Store, read_content, resolve
from engine_core.errors import CheckpointError
from engine_core.time import Timestamp

EMPTY = Checkpoint({}, {}, {})

LOCKS = """
import multiprocessing, sys, time
from pathlib import Path
from engine_core.checkpoint import Store
from engine_core.errors import CheckpointError
store = Store(Path(sys.argv[1]))
try:
    store.lock()
except CheckpointError as error:
    sys.exit(str(error))
if "fork" in sys.argv:
    fork = multiprocessing.get_context("fork")
    runs = fork.Event()
    worker = fork.Process(target=lambda: (runs.set(), time.sleep(60)))
    worker.start()
    runs.wait()
    print(worker.pid, flush=True)
print("locked", flush=True)
sys.stdin.read()
"""


def locking(folder, *how):
    return subprocess.Popen(
        [sys.executable, "-c", LOCKS, str(folder), *how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.full
def test_a_folder_in_use_is_refused_and_free_when_its_process_is_killed(tmp_path):
    with locking(tmp_path) as first:
        assert first.stdout.readline() == "locked\n"
        with pytest.raises(CheckpointError, match=rf"in use by another run \(process {first.pid}\)"):
            Store(tmp_path).lock()
        first.kill()
    store = Store(tmp_path)
    store.lock()
    store.lock()
    with locking(tmp_path) as second:
        assert "in use by another run" in second.communicate()[1]
    store.unlock()
    with locking(tmp_path) as third:
        assert third.communicate("")[0] == "locked\n"


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_worker_that_outlives_the_run_does_not_hold_its_folder(tmp_path):
    with locking(tmp_path, "fork") as first:
        worker = int(first.stdout.readline())
        assert first.stdout.readline() == "locked\n"
        try:
            with pytest.raises(CheckpointError, match="in use"):  # the worker has let go, and not the run
                Store(tmp_path).lock()
            first.kill()
            first.wait()
            os.kill(worker, 0)
            store = Store(tmp_path)
            store.lock()
            store.unlock()
        finally:
            os.kill(worker, signal.SIGKILL)


def test_what_a_killed_process_had_begun_is_removed(tmp_path):
    Store(tmp_path).save(Timestamp(epoch=0, batch=1), EMPTY)
    begun = [tmp_path / name for name in (".ep0-ba1.77.new", ".ep0-ba1.old", ".latest.new")]
    for path in begun[:2]:
        path.mkdir()
    begun[2].touch()
    store = Store(tmp_path)
    store.lock()
    store.unlock()
    assert not any(path.exists() for path in begun)
    assert resolve(tmp_path) == tmp_path / "ep0-ba1"


def test_a_checkpoint_that_a_killed_process_was_about_to_replace_is_put_back(tmp_path):
    store = Store(tmp_path)
    path = store.save(Timestamp(epoch=0, batch=1), EMPTY)
    path.rename(tmp_path / ".ep0-ba1.old")
    store.lock()
    store.unlock()
    assert resolve(tmp_path) == path
    assert read_content(path).model == {}


def test_a_disk_without_locks_is_not_taken_for_another_run(tmp_path, monkeypatch):
    def fail(file):
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patched:
        patched.setattr("engine_core.checkpoint.store._lock_file", fail)
        with pytest.raises(OSError, match="No locks available"):
            Store(tmp_path).lock()
    store = Store(tmp_path)
    store.lock()
    store.unlock()
