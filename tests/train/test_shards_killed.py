"""Two processes that save one checkpoint after the other, killed at each step: the latest one always loads."""

import os
import signal
import sys

import pytest

from engine_core.checkpoint import Checkpoint, Store, read_content, resolve
from engine_core.errors import CheckpointError
from engine_core.time import Timestamp

from .shards import MODEL, TENSORS, part_of, rank_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forked, which is POSIX's")

STEPS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir"}
SAVED, REFUSED = 0, 3


def content_of(version):
    return Checkpoint({name: value + version for name, value in MODEL.items()}, {"version": version}, TENSORS)


def die_at(step):
    """Let this process be killed before it touches files for a certain time."""
    left = [step]

    def hear(event, arguments):
        if event in STEPS:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

    sys.addaudithook(hear)


def save_in_a_process(folder, version, ranks, begun, step):
    """Save this rank's share in a forked process, which is killed at a step; return its id."""
    share = part_of(content_of(version), ranks.rank, ranks.size)
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if step is not None:
            die_at(step)
        Store(folder).save(Timestamp(batch=1), share, ranks, begun)
        code = SAVED
    except CheckpointError:
        code = REFUSED
    finally:
        os._exit(code)


def end_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.full), 1])
def test_whichever_process_is_killed_at_whatever_step_the_latest_checkpoint_loads(victim, tmp_path):
    folder, lost = tmp_path / "checkpoints", tmp_path / "lost"
    store = Store(folder)
    store.lock()
    store.save(Timestamp(batch=1), content_of(0))
    saved, code, step = 0, -1, 0
    while code != SAVED:
        version = saved + 1
        begun = store.begin(Timestamp(batch=1))
        given = [rank_of(rank, 2, is_lost=lost.exists, timeout_s=20) for rank in (0, 1)]
        pids = [save_in_a_process(folder, version, r, begun, step if r.rank == victim else None) for r in given]
        code = end_of(pids[victim])
        lost.touch()
        other = end_of(pids[1 - victim])
        found = read_content(resolve(folder))
        assert found.state["version"] in (saved, version)
        assert (found.model["weight"] == content_of(found.state["version"]).model["weight"]).all()
        assert code in (SAVED, -signal.SIGKILL)
        assert other == (SAVED if victim == 0 or found.state["version"] == version else REFUSED)
        saved, step = found.state["version"], step + 1
        lost.unlink()
    assert step > (25 if victim == 0 else 4)
    assert saved == version
    store.unlock()
    store.lock()
    assert sorted(path.name for path in folder.iterdir()) == [".id", ".lock", "ep0-ba1", "latest"]
    store.unlock()
