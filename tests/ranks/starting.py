"""Start a program on several processes of torchrun's agent, and read what it wrote.

The processes are forked from one that has imported what takes long, which halves the time of the tests; those of the
command line start torchrun itself.
"""

from __future__ import annotations

import functools
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


def start(program, size, *arguments, restarts=0, timeout_s=240):
    """Run `program OUT.json ARGUMENTS...` on `size` processes; it is killed after the time-out.

    Args:
        restarts: how often all processes are started again after one has failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, __file__, str(size), str(restarts), str(program), str(out), *arguments]
        to_one = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        try:
            ended = subprocess.run(command, **to_one, text=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired as late:
            return Ended(124, f"ranks waited for each other: {late}", None)
        written = json.loads(out.read_text()) if out.exists() else None
    return Ended(ended.returncode, ended.stdout, written)


_start_once = functools.cache(start)


def written_by(program, size, *arguments):
    """Return what a program wrote that is started once for all tests, also if it fails or is late."""
    ended = _start_once(Path(str(program)), size, *arguments)
    assert ended.rc == 0, ended.output
    return ended.written


def run(*command):
    """Run a program as a script is run."""
    sys.argv = [*command]
    sys.path[0] = str(Path(command[0]).parent)
    runpy.run_path(command[0], run_name="__main__")


def main(size, restarts, *command):
    """Fork the processes from this one, as torchrun starts them, and wait for their end."""
    import sklearn.datasets  # noqa: F401, PLC0415  each of the programs needs these
    import torch  # noqa: PLC0415
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415

    import engine_core.trainer  # noqa: F401, PLC0415

    torch.optim.SGD([torch.zeros(1)])  # it imports the compiler
    gc.freeze()  # else each process copies it all at its end
    here = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "monitor_interval": 0.1}
    config = LaunchConfig(1, 1, int(size), start_method="fork", max_restarts=int(restarts), **here)
    elastic_launch(config, run)(*command)


if __name__ == "__main__":
    main(*sys.argv[1:])
