"""Start a program on several processes of torchrun's agent, and read what it wrote.

The processes are forked from one that has imported what takes long, which halves the time of the tests; those of the
command line and of kills start torchrun itself.
"""

from __future__ import annotations

import gc
import json
import runpy
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
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        ended = subprocess.run(
            [sys.executable, __file__, str(size), str(program), str(out), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        written = json.loads(out.read_text()) if out.exists() else None
    return Ended(ended.returncode, ended.stdout, written)


def run(*command: str) -> None:
    """Run a program as a script is run."""
    sys.argv = [*command]
    sys.path[0] = str(Path(command[0]).parent)
    runpy.run_path(command[0], run_name="__main__")


def main(size: str, *command: str) -> None:
    """Fork the processes from this one, as torchrun starts them, and wait for their end."""
    import sklearn.datasets  # noqa: F401, PLC0415  each of the programs needs these
    import torch  # noqa: PLC0415
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415

    import engine_core.trainer  # noqa: F401, PLC0415

    torch.optim.SGD([torch.zeros(1)])  # it imports the compiler
    gc.freeze()  # else each process copies it all at its end
    here = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "monitor_interval": 0.1}
    config = LaunchConfig(1, 1, int(size), start_method="fork", max_restarts=0, **here)
    elastic_launch(config, run)(*command)


if __name__ == "__main__":
    main(*sys.argv[1:])
