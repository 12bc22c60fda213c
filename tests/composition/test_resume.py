"""With any algorithms and settings, a run that is cut and resumed in new processes is the uninterrupted run."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("resuming.py")
PHASES = ("whole", "stopped", "resumed", "again")
pytestmark = pytest.mark.full
DRAWS, DRAWS_OF_TWO = range(60), range(20)
ON_TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a function that gives the folder in which a process for each phase, or two, have run all draws."""

    @functools.cache
    def folder(ranks):
        root = tmp_path_factory.mktemp(f"of-{ranks}")
        draws, way = (DRAWS, []) if ranks == 1 else (DRAWS_OF_TWO, ON_TWO)
        for phase in PHASES:
            command = [sys.executable, *way, str(PROGRAM), phase, str(root), *map(str, draws)]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )
            assert done.returncode == 0, done.stderr
        return root

    return folder


@pytest.mark.parametrize(("ranks", "number"), [*((1, n) for n in DRAWS), *((2, n) for n in DRAWS_OF_TWO)])
def test_a_run_that_is_resumed_in_another_process_is_the_whole_run(ranks, number, runs):
    found = {phase: json.loads((runs(ranks) / str(number) / f"{phase}.json").read_text()) for phase in PHASES}
    for each in found.values():
        assert "error" not in each, each["error"]
    whole, parts = (found[phase]["parts"] for phase in ("whole", "again"))
    differing = {name: (part, parts[name]) for name, part in whole.items() if parts[name] != part}
    assert differing == {}, f"{found['whole']['settings']}; see {PROGRAM.name}"
