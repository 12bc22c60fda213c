"""With any algorithms and settings, a run that is cut and resumed in new processes is the uninterrupted run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("resuming.py")
PHASES = ("whole", "stopped", "resumed", "again")
ON_TWO = [str(PROGRAM.parents[1] / "ranks" / "starting.py"), "2"]


def difference(folder: Path) -> object:
    """Return what a draw raised, or how its resumed run differs from the whole one."""
    found = {phase: json.loads((folder / f"{phase}.json").read_text()) for phase in PHASES}
    errors = [each["error"] for each in found.values() if "error" in each]
    whole, parts = (found[phase].get("parts", {}) for phase in ("whole", "again"))
    differing = {name: (part, parts.get(name)) for name, part in whole.items() if parts.get(name) != part}
    return errors or (differing and (differing, found["whole"]["settings"]))


@pytest.mark.full
@pytest.mark.parametrize(("way", "draws"), [([], range(60)), (ON_TWO, range(20))], ids=["one process", "two ranks"])
def test_a_run_that_is_resumed_in_another_process_is_the_whole_run(way, draws, tmp_path):
    for phase in PHASES:
        command = [sys.executable, *way, str(PROGRAM), phase, str(tmp_path), *map(str, draws)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
    differences = {number: difference(tmp_path / str(number)) for number in draws}
    assert {number: said for number, said in differences.items() if said} == {}, f"see {PROGRAM.name}"
