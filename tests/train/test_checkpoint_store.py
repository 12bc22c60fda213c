"""A saver's folder: which checkpoint is the latest, which stay, and that two runs don't share it."""

import subprocess
import sys

import pytest

from engine_core.checkpoint import Content, Store, resolve
from engine_core.errors import CheckpointError
from engine_core.time import Timestamp

EMPTY = Content({}, {}, {})


def at(epoch, batch):
    return Timestamp(epoch=epoch, batch=batch)


def names(store):
    return [path.name for path in store.saved()]


def test_the_latest_is_the_last_that_was_saved(tmp_path):
    store = Store(tmp_path)
    for position in (at(0, 2), at(1, 10), at(0, 4)):
        store.save(position, EMPTY)
    assert names(store) == ["ep0-ba2", "ep0-ba4", "ep1-ba10"]
    assert (tmp_path / "latest").read_text() == "ep0-ba4\n"
    assert resolve(tmp_path) == tmp_path / "ep0-ba4"
    assert resolve(tmp_path / "ep0-ba2") == tmp_path / "ep0-ba2"


def test_an_epoch_that_ended_counts_as_later_than_its_last_batch(tmp_path):
    store = Store(tmp_path)
    for position in (at(1, 10), at(0, 10), at(0, 9)):
        store.save(position, EMPTY)
    assert names(store) == ["ep0-ba9", "ep0-ba10", "ep1-ba10"]


def test_only_the_last_stay_with_the_latest_and_those_that_are_named(tmp_path):
    store = Store(tmp_path)
    for batch in (1, 2, 3, 4, 5):
        store.save(at(0, batch), EMPTY)
    store.save(at(0, 2), EMPTY)
    store.keep(1, [tmp_path / "ep0-ba3"])
    assert names(store) == ["ep0-ba2", "ep0-ba3", "ep0-ba5"]


def test_foreign_files_are_left_alone(tmp_path):
    store = Store(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "ep0-ba1-copy").mkdir()
    store.save(at(0, 1), EMPTY)
    store.save(at(0, 2), EMPTY)
    store.keep(1)
    assert names(store) == ["ep0-ba2"]
    assert (tmp_path / "notes.txt").exists()
    assert (tmp_path / "ep0-ba1-copy").exists()


def test_where_a_process_ended_between_two_renames_the_former_checkpoint_is_the_latest(tmp_path):
    store = Store(tmp_path)
    store.save(at(0, 1), EMPTY)
    (tmp_path / "ep0-ba1").rename(tmp_path / ".ep0-ba1.old")
    assert resolve(tmp_path) == tmp_path / ".ep0-ba1.old"


@pytest.mark.parametrize("text", ["../elsewhere", "", "ep0-ba1/../..", "/", "\x00", "ep1-ba1 " + "x" * 10_000])
def test_a_latest_that_names_no_checkpoint_is_refused(tmp_path, text):
    Store(tmp_path).save(at(0, 1), EMPTY)
    (tmp_path / "latest").write_text(text)
    with pytest.raises(CheckpointError, match=r"latest' holds .*, which names no checkpoint"):
        resolve(tmp_path)


def test_there_is_no_checkpoint_where_nothing_is(tmp_path):
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        resolve(tmp_path / "nowhere")


LOCKS = """
import sys
from pathlib import Path
from engine_core.checkpoint import Store
from engine_core.errors import CheckpointError
store = Store(Path(sys.argv[1]))
try:
    store.lock()
except CheckpointError as error:
    sys.exit(str(error))
print("locked", flush=True)
sys.stdin.read()
"""


def locking(folder):
    return subprocess.Popen(
        [sys.executable, "-c", LOCKS, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


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


def test_what_a_killed_process_had_begun_is_taken_away(tmp_path):
    begun = tmp_path / ".ep0-ba1.77.new"
    begun.mkdir()
    store = Store(tmp_path)
    store.lock()
    store.unlock()
    assert not begun.exists()
