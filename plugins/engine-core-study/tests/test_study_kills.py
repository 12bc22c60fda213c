"""Killed at any time, the study or one of its runs: the same command finishes with the table of a study in one go."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine_core_study.file import read_study
from engine_core_study.folder import RESULTS, TABLE, StudyRun
from engine_core_study.record import RECORD
from engine_core_study.running import processes

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the studies are forked, which is POSIX's"),
]
KILLS = 20
STUDY = """\
set: {trainer.max_duration: 4ep}
arms:
  plain: {with: {target: "study_parts:Slow", args: {seconds: 0.002}}}
  noisy: {from: plain, with: {target: "study_parts:Noise"}}
seeds: 2
report: [test/accuracy, test/loss]
tune: {optimizer.args.lr: [0.1, 0.5]}
choose_by: val/loss
"""
TIMES = {"written", "seconds", "wall_s", "began", "cost"}


def timeless(value):
    """Return what a study found without what depends on when, and how fast, it ran."""
    if isinstance(value, dict):
        return {key: timeless(inner) for key, inner in value.items() if key not in TIMES}
    if isinstance(value, list):  # one of the notes says which runs trained side by side
        return [timeless(inner) for inner in value if not str(inner).startswith(("CPU s: ", "GPU s: "))]
    return value


def found(folder):
    return timeless(json.loads((folder / RESULTS).read_text()))


@pytest.fixture
def run(here):
    """Return a function that runs a study in a process of its own, killed after some seconds, and gives its code."""
    command = [sys.executable, str(Path(__file__).with_name("killing_studies.py"))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:

        def ask(file, folder, seconds="never"):
            process.stdin.write(f"{file} {folder} {seconds}\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield ask
        process.stdin.close()


def test_twenty_kills_at_random_times_change_nothing_in_the_table(run, write, here):
    file = write(STUDY)
    assert run(file, here / "warm") == 0
    began = time.monotonic()
    assert run(file, here / "whole") == 0
    whole_s, draw = time.monotonic() - began, random.Random(3)
    killed, rounds = 0, 0
    while killed < KILLS:
        folder = here / f"killed-{rounds}"
        rounds += 1
        # Often enough that a study is killed several times, at its begin and its end too.
        while run(file, folder, draw.uniform(0, 0.25 * whole_s)) != 0 and killed < KILLS:
            killed += 1
            for path in folder.rglob(RECORD):
                json.loads(path.read_text())
        assert run(file, folder) == 0
        assert found(folder) == found(here / "whole")
        assert (folder / TABLE).exists()


def test_a_run_that_is_killed_is_a_row_and_the_same_command_resumes_it(write, here):
    file = write(STUDY.replace("0.002", "0.05").replace("[0.1, 0.5]", "[0.5]"))

    def trained(folder, tell=lambda _: None):
        run = StudyRun(read_study(file), folder)
        run.prepare()
        with processes(2, 1) as pool:
            return run.train(pool, tell)

    whole = trained(here / "whole")
    killed = []

    def kill(event):
        place = here / "killed" / event.folder
        if not hasattr(event, "status") and not killed:
            killed.append(event.folder)
            until = time.monotonic() + 60
            while not list(place.glob("checkpoints/ep*")) and time.monotonic() < until:
                time.sleep(0.01)
            os.kill(child_in(place), signal.SIGKILL)

    results = trained(here / "killed", kill)
    failed = [run for run in results.content["runs"] if run["status"] == "failed"]
    assert [run["folder"] for run in failed] == killed
    assert "ended before it could answer" in failed[0]["error"]
    again = trained(here / "killed")
    assert timeless(again.content) == timeless(whole.content)
    lines = (here / "killed" / killed[0] / "metrics.jsonl").read_text().splitlines()
    assert "resume" in [json.loads(line)["kind"] for line in lines]


def child_in(place):
    """Return the process that writes a run's output."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "fd" / "1").readlink() == place / "output.txt":
                    return int(entry.name)
            except OSError:
                continue
    raise AssertionError(f"no process trains {place}")


def test_the_processes_of_a_killed_study_end_with_it(write, here):
    file = write(STUDY.replace("0.002", "0.05"))
    command = [sys.executable, "-m", "engine_core", "study", str(file), "--jobs", "2"]
    with subprocess.Popen(command, cwd=here, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        until = time.monotonic() + 120
        while len(outputs := list(here.glob("studies/study/*/*/*/*/output.txt"))) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        children = [child_in(path.parent) for path in outputs]
        process.kill()
    until = time.monotonic() + 20
    while any(map(is_alive, children)) and time.monotonic() < until:
        time.sleep(0.05)
    assert [child for child in children if is_alive(child)] == []


def test_ctrl_c_saves_what_runs_and_the_same_command_resumes(write, here):
    file = write(STUDY.replace("0.002", "0.05"))
    command = [sys.executable, "-m", "engine_core", "study", str(file), "--jobs", "2"]
    streams = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=here, start_new_session=True, **streams) as process:
        until = time.monotonic() + 120
        while not list(here.glob("studies/study/*/*/*/*/checkpoints/ep*")) and time.monotonic() < until:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command resumes the study in studies/study" in told
    assert "Traceback" not in told
    interrupted = [
        path.parent for path in here.rglob(RECORD) if json.loads(path.read_text())["status"] == "interrupted"
    ]
    assert interrupted
    whole = StudyRun(read_study(file), here / "whole")
    whole.prepare()
    again = StudyRun(read_study(file), here / "studies/study")
    again.prepare()
    for run in (whole, again):
        with processes(2, 1) as pool:
            run.train(pool)
    assert found(here / "studies/study") == found(here / "whole")
    lines = [line for folder in interrupted for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert "resume" in [json.loads(line)["kind"] for line in lines]


def is_alive(process):
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
