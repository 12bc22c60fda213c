"""With any algorithms and settings, a run that is cut and resumed in new processes is the uninterrupted run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("resuming.py")


@pytest.mark.full
@pytest.mark.parametrize(("ranks", "draws"), [(1, range(60)), (2, range(12))])
def test_a_run_that_is_resumed_in_another_process_is_the_whole_run(ranks, draws, tmp_path):
    command = [sys.executable, str(PROGRAM), str(ranks), str(tmp_path), *map(str, draws)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    differences = json.loads((tmp_path / "differences.json").read_text())
    assert differences == {str(number): None for number in draws}, f"see {PROGRAM.name}"
