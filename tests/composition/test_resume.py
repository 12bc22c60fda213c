"""With any algorithms and settings, a run that is resumed in a new process, twice, is the uninterrupted run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("resuming.py")
pytestmark = pytest.mark.full
DRAWS = range(20)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return the folder in which three processes, one after the other, have run all draws."""
    root = tmp_path_factory.mktemp("runs")
    for phase in ("whole", "resumed", "again"):
        command = [sys.executable, str(PROGRAM), phase, str(root), *map(str, DRAWS)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        assert done.returncode == 0, done.stderr
    return root


@pytest.mark.parametrize("phase", ["resumed", "again"])
@pytest.mark.parametrize("number", DRAWS)
def test_a_run_that_is_resumed_in_another_process_is_the_whole_run(number, phase, runs):
    whole, rest = (json.loads((runs / str(number) / f"{name}.json").read_text()) for name in ("whole", phase))
    again = f"python {PROGRAM} {phase} FOLDER {number}, after the phases before it"
    assert "error" not in whole, whole["error"]
    assert "error" not in rest, f"{rest['error']}\n{again}"
    differing = {
        name: (part, rest["parts"][name]) for name, part in whole["parts"].items() if rest["parts"][name] != part
    }
    assert differing == {}, f"from {rest['from']}; settings: {whole['settings']}; {again}"
