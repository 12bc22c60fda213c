"""Runs on executors: each trains in a process of its own, whatever the worker is, and none is lost with its worker."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import types
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from engine_core.cli import main
from engine_core_study.file import read_study
from engine_core_study.folder import StudyRun
from engine_core_study.running import Workers, processes

ARMS = """\
arms:
  plain: {}
  other: {with: {target: "study_parts:Noise"}}
report: test/loss
seeds: 1
"""
DYING = """
import os, pathlib, signal
class Dies(Slow):
    def apply(self, event, state, logger):
        super().apply(event, state, logger)
        died = pathlib.Path("died")
        if state.timestamp.batch == 9 and not died.exists():
            while not [*pathlib.Path().glob("there/runs/plain/seed-0/checkpoints/ep1-*")]:
                time.sleep(0.01)
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""


def trained(file, folder, executor, width=9):
    with executor:
        return StudyRun(read_study(file), folder).train(Workers(executor, width))


def values(results):
    return [(run["arm"], run["seed"], run["status"], run["values"], run["data"]) for run in results.content["runs"]]


def kinds(folder):
    return [json.loads(line)["kind"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


FOUND = []


@pytest.fixture
def alone(write, here):
    """Return what the study finds with `--jobs 1`, made once."""
    if not FOUND:
        with processes(1, 1) as pool:
            FOUND.extend(values(StudyRun(read_study(write(ARMS)), here / "alone").train(pool)))
    return FOUND


def spoil(place):
    """Leave behind what an earlier run, or another study, may have left in a worker."""
    os.chdir(place)
    sys.modules["study_parts"] = types.ModuleType("study_parts")
    torch.set_default_dtype(torch.float64)


class Daemons(Executor):
    """Runs what is submitted in a process that may have no children by Python's rule, as Dask's workers."""

    def __init__(self):
        self._pool = multiprocessing.get_context("spawn").Pool(1)

    def submit(self, function, /, *args):
        future = Future()
        self._pool.apply_async(function, args, {}, future.set_result, future.set_exception)
        return future

    def shutdown(self, wait=True, *, cancel_futures=False):
        self._pool.terminate()
        self._pool.join()


def forked():
    return ProcessPoolExecutor(1, multiprocessing.get_context("fork"), spoil, ("/",))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: ThreadPoolExecutor(2), id="threads"),
        *(pytest.param(each, id=each.__name__, marks=pytest.mark.full) for each in (forked, Daemons)),
    ],
)
def test_workers_of_each_kind_give_the_bits_of_processes_of_their_own(make, alone, write, here):
    assert values(trained(write(ARMS), here / "there", make())) == alone


@pytest.mark.full
def test_a_run_that_is_killed_on_a_worker_is_a_row_and_the_same_command_resumes_it(alone, write, here):
    with (here / "study_parts.py").open("a") as parts:
        parts.write(DYING)
    file = write(ARMS.replace("{}", "{with: {target: 'study_parts:Dies', args: {seconds: 0}}}"))
    first = trained(file, here / "there", ThreadPoolExecutor(1))
    assert [run["status"] for run in first.content["runs"]] == ["failed", "finished"]
    assert "its process ended before it could answer" in first.content["runs"][0]["error"]
    assert values(trained(file, here / "there", ThreadPoolExecutor(1))) == alone
    assert "resume" in kinds(here / "there/runs/plain/seed-0")


@pytest.mark.full
def test_a_pool_whose_worker_is_killed_makes_rows_and_the_same_command_finishes_them(alone, write, here):
    executor = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    worker = executor.submit(os.getpid).result()
    os.kill(worker, signal.SIGKILL)
    time.sleep(0.5)
    first = trained(write(ARMS), here / "there", executor, width=1)
    assert [(run["status"], "BrokenProcessPool" in run["error"]) for run in first.content["runs"]] == [
        ("failed", True)
    ] * 2
    assert first.has_failed
    assert values(trained(write(ARMS), here / "there", ThreadPoolExecutor(1))) == alone


def test_two_studies_of_one_folder_train_each_run_once(alone, write, here):
    """As after a kill of the study, whose executor goes on."""
    run = StudyRun(read_study(write(ARMS)), here / "there")
    with ThreadPoolExecutor(2) as executor:
        job = run._study.jobs()[0]
        first, second = [Workers(executor, 2).submit(job, here / "there") for _ in range(2)]
        assert first.result().began == second.result().began
    assert kinds(here / "there" / job.folder).count("start") == 1


class Odd(Executor):
    """Returns this."""

    def __init__(self, made):
        self._made = made

    def submit(self, function, /, *args):
        return self._made


def test_a_run_that_the_executor_cancels_is_a_row(write, here):
    future = Future()
    future.cancel()
    future.set_running_or_notify_cancel()
    found = trained(write(ARMS), here / "there", Odd(future), width=1)
    assert {(run["status"], run["error"]) for run in found.content["runs"]} == {
        ("failed", "the executor failed: CancelledError; the same command resumes it")
    }


@pytest.mark.parametrize(
    ("text", "executor", "words"),
    [
        ("", "builtins:dict", "has to return a concurrent.futures.Executor, not {}"),
        ("", "threading:Lock", "has to return a concurrent.futures.Executor, not True"),
        ("", "odd:make", "submit has to return a concurrent.futures.Future, not a builtins.int"),
        ("", "study_parts:make_executer", "--executor: "),
        ("budget: 1h", "concurrent.futures:ThreadPoolExecutor", "--jobs N"),
    ],
)
def test_what_is_no_executor_is_refused(text, executor, words, write, here, monkeypatch):
    monkeypatch.setattr(StudyRun, "prepare", lambda *_: None)
    monkeypatch.setitem(sys.modules, "odd", types.SimpleNamespace(make=lambda: Odd(3)))
    done = CliRunner().invoke(main, ["study", str(write(ARMS + text)), "--executor", executor, "--out", str(here)])
    assert (done.exit_code, words in done.stderr) == (2, True), done.stderr


EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "beside" / "study_processes.py"


@pytest.mark.full
def test_ctrl_c_saves_what_runs_on_workers_and_the_same_command_resumes(alone, write, here):
    (here / "study_processes.py").write_text(EXAMPLE.read_text().replace("(4,", "(1,"))
    file = write(ARMS.replace("{}", "{with: {target: 'study_parts:Slow', args: {seconds: 0.5}}}"))
    StudyRun(read_study(file), here / "there").prepare()
    command = [sys.executable, "-m", "engine_core", "study", str(file), "--executor", "study_processes:four"]
    streams = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "--out", "there"], cwd=here, **streams) as process:
        place, until = here / "there/runs/plain/seed-0", time.monotonic() + 120
        while not list(place.glob("checkpoints/ep1-*")) and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)  # to it alone, as if its workers were on other machines
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    record = json.loads((place / "study-run.json").read_text())
    assert (record["status"], "finished" in told) == ("interrupted", False)
    with processes(1, 1) as pool:
        assert values(StudyRun(read_study(file), here / "there").train(pool)) == alone
    assert "resume" in kinds(place)
