"""A program that forks a study for each line on stdin and kills it after as many seconds as the line says, if any."""

import os
import signal
import sys
import time
from pathlib import Path

import torch

from engine_core_study import warm
from engine_core_study.file import read_study
from engine_core_study.folder import StudyRun
from engine_core_study.python import _Here
from engine_core_study.running import Pool

__all__ = ["warm"]


def study(file, folder):
    run = StudyRun(read_study(file), folder)
    if not (folder / "plan.json").exists():
        run.prepare()
    run.train(Pool(_Here(), 1))


def main():
    torch.set_num_threads(1)
    for line in sys.stdin:
        file, folder, seconds = line.split()
        child = os.fork()
        if not child:
            study(Path(file), Path(folder))
            os._exit(0)
        if seconds != "never":
            time.sleep(float(seconds))
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.write(f"{code}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
