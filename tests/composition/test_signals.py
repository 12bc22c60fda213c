"""A signal at any time, from another process, leaves the model, modes and generators the run's own, and it resumes."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("signalling.py")
pytestmark = pytest.mark.full
DRAWS, DRAWS_OF_TWO = range(10), range(3)
ON_TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Return a function that gives what one process or two tell of all draws, and where they write what is wrong."""

    @functools.cache
    def run(ranks):
        root = tmp_path_factory.mktemp(f"of-{ranks}")
        draws, way = (DRAWS, []) if ranks == 1 else (DRAWS_OF_TWO, ON_TWO)
        command = [sys.executable, *way, str(PROGRAM), str(root), *map(str, draws)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, root

    return run


@pytest.mark.parametrize(("ranks", "number"), [*((1, n) for n in DRAWS), *((2, n) for n in DRAWS_OF_TWO)])
def test_all_is_the_runs_own_after_a_signal_and_the_resumed_run_is_the_whole_one(ranks, number, told):
    _, root = told(ranks)
    wrong = [json.loads((root / str(number) / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
    assert wrong == [[]] * ranks, f"see {PROGRAM.name}"


@pytest.mark.parametrize(("ranks", "kinds"), [(1, ["fit", "eval", "predict"]), (2, ["fit", "eval"])])
def test_signals_came_in_all_of_them(ranks, kinds, told):
    assert [kind for kind in kinds if f"{kind}: SIG" not in told(ranks)[0]] == []
