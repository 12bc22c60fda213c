"""Start a program on several processes, as a user does with torchrun, and read what it wrote."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple


class Ended(NamedTuple):
    """How a program ended, what it printed, and the JSON that it wrote to its first argument, if it did."""

    rc: int
    output: str
    written: Any


def start(program: Path, size: int, *arguments: str, timeout_s: float = 120) -> Ended:
    """Run `program OUT.json ARGUMENTS...` on `size` processes; it is killed after the time-out."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        ended = subprocess.run(
            [*torchrun, str(program), str(out), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        written = json.loads(out.read_text()) if out.exists() else None
    return Ended(ended.returncode, ended.stdout, written)
