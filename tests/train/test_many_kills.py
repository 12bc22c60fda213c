"""Kills by the dozen, at random and at each step of a save: the latest loads, and the run ends as the whole one."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine_core.checkpoint import read_content, resolve
from engine_core.checkpoint.store import has_checkpoint

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the runs are forked, which is POSIX's"),
]

WIDE, NARROW = 64_000, 16
KILLED_IN = "ep0-ba6"
KILLS, LEAST_DURING_SAVES = 40, 10
LEAST_STEPS = 20


@pytest.fixture(scope="module")
def answer():
    """Return `answer(folder, **job)`, which runs one process to its end."""
    command = [sys.executable, str(Path(__file__).with_name("killing.py"))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:

        def answer(folder, **job):
            folder.mkdir(exist_ok=True)
            process.stdin.write(json.dumps({"folder": str(folder), "kill_in": KILLED_IN, **job}) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield answer
        process.stdin.close()


@pytest.fixture(scope="module")
def wholes(answer, tmp_path_factory):
    """Return the folders of uninterrupted runs, by the width of their nets."""
    folders = {width: tmp_path_factory.mktemp("whole") for width in (WIDE, NARROW)}
    for width, folder in folders.items():
        assert answer(folder, width=width, kill_at_step=None)["code"] == 0
    return folders


def lines(folder):
    """Return the complete lines of the log, without times."""
    file = folder / "metrics.jsonl"
    complete = file.read_text().split("\n")[:-1] if file.exists() else []
    return [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in complete]


def is_before(line, at):
    """Was a line logged before the checkpoint of this name was saved?"""
    batch = int(at.strip(".").removesuffix(".old").partition("-ba")[2])
    return bool(line["step"] < batch)  # the evaluation after this many batches is logged after it


def assert_nothing_is_lost(folder, whole, what):
    logged, all_lines = lines(folder), lines(whole)
    assert logged == all_lines[: len(logged)], what
    saved = folder / "checkpoints"
    if has_checkpoint(saved):
        at = resolve(saved)
        read_content(at)
        assert len(logged) >= sum(is_before(line, at.name) for line in all_lines), what


def was_saving(folder):
    """Has a process ended during a save, as far as can be seen: with something begun, or not yet removed or named?"""
    saved = folder / "checkpoints"
    if not saved.is_dir():
        return False
    names = {path.name for path in saved.iterdir()}
    there = sorted((int(name.partition("-ba")[2]), name) for name in names if name.startswith("ep"))
    latest = (saved / "latest").read_text().strip() if "latest" in names else None
    has_begun = any(name.endswith((".new", ".old")) for name in names)
    return has_begun or len(there) > 2 or (bool(there) and there[-1][1] != latest)


def assert_ends_as(folder, whole, what):
    last = resolve(whole).relative_to(whole)
    for name in (last / "model.safetensors", last / "state.safetensors", Path("metrics.csv")):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), (what, name)
    assert resolve(folder).relative_to(folder) == last
    assert lines(folder) == lines(whole), what


def test_forty_kills_at_random_moments(answer, wholes, tmp_path):
    draw, whole = random.Random(7), wholes[WIDE]
    duration_s = answer(tmp_path / "timed", width=WIDE)["seconds"]
    killed = saving = run = 0
    while killed < KILLS:
        folder, what = tmp_path / str(run), f"after {killed} kills, run {run}"
        code = answer(folder, width=WIDE, kill_after_s=draw.uniform(0, duration_s))["code"]
        if code == 0:
            assert_ends_as(folder, whole, what)
            run += 1
            continue
        assert code == -9, what
        killed += 1
        saving += was_saving(folder)
        assert_nothing_is_lost(folder, whole, what)
    assert answer(folder, width=WIDE)["code"] == 0
    assert_ends_as(folder, whole, "the last run")
    assert saving >= LEAST_DURING_SAVES


@pytest.mark.parametrize("replaces", [False, True], ids=["a new checkpoint", "one of the same name"])
def test_a_kill_at_each_step_of_a_save(replaces, answer, wholes, tmp_path):
    whole, begun, counted = wholes[NARROW], tmp_path / "begun", tmp_path / "counted"
    number = 0
    answer(begun, width=NARROW, kill_at_step=number)
    while replaces and not (begun / "checkpoints" / KILLED_IN).exists():
        shutil.rmtree(begun)
        number += 1
        answer(begun, width=NARROW, kill_at_step=number)
    assert resolve(begun).name == "ep0-ba5"
    shutil.copytree(begun, counted)
    assert answer(counted, width=NARROW, kill_at_step=None)["code"] == 0
    steps = int((counted / "steps").read_text())
    for step in range(steps):
        folder, what = tmp_path / str(step), f"killed before step {step} of {steps}"
        shutil.copytree(begun, folder)
        assert answer(folder, width=NARROW, kill_at_step=step)["code"] == -9, what
        assert_nothing_is_lost(folder, whole, what)
        assert answer(folder, width=NARROW)["code"] == 0, what
        assert_ends_as(folder, whole, what)
        shutil.rmtree(folder)
    assert steps >= LEAST_STEPS


def test_a_run_that_was_killed_before_its_first_save_logs_each_step_once(answer, wholes, tmp_path):
    assert answer(tmp_path, width=NARROW, kill_at_step=0, kill_in="ep0-ba1")["code"] == -9
    assert lines(tmp_path)
    assert answer(tmp_path, width=NARROW)["code"] == 0
    assert_ends_as(tmp_path, wholes[NARROW], "the second run")
