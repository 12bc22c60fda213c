"""Studies on the executors of Dask, submitit and MPI, by the programs and commands of the page; a search by Optuna."""

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import dask
import distributed
import optuna
import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/howto/studies-on-many-machines.md").read_text()
PROGRAMS = ROOT / "docs/examples/beside"
COMMANDS = [c for c in re.findall(r"^(?:mpiexec|engine-core study) .*", PAGE, re.MULTILINE) if "processes" not in c]
PARTS = """
import multiprocessing, os, pathlib, signal
import torch
from torch.utils.data import DataLoader, TensorDataset
from engine_core import Algorithm, Event

def make_loader(split):
    points = torch.load("points.pt")  # where the study was started
    rows = slice(0, 64) if split == "train" else slice(64, 96)
    return DataLoader(TensorDataset(points[rows], (points[rows].sum(1) > 0).long()), 8, shuffle=split == "train")

class KillsItsWorker(Algorithm):
    def match(self, event, state):
        return event is Event.BATCH_START and state.timestamp.batch == 9 and not pathlib.Path("killed").exists()

    def apply(self, event, state, logger):
        pathlib.Path("killed").touch()
        os.kill(multiprocessing.parent_process().pid, signal.SIGKILL)
"""
RUN = """
model: {target: "torch.nn:Linear", args: {in_features: 4, out_features: 2}}
data: {target: "study_parts:make_loader", args: {split: train}}
eval_data: {target: "study_parts:make_loader", args: {split: test}}
loss: {target: "torch.nn.functional:cross_entropy"}
optimizer: {target: "torch.optim:SGD", args: {lr: 0.1}}
algorithms: [{target: "study_parts:KillsItsWorker"}]
trainer: {max_duration: 2ep, device: cpu}
"""
STUDY = """
base: run.yaml
seeds: 1
arms: {slow: {}, fast: {set: {optimizer.args.lr: 0.2}}}
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Return a folder with a study and the modules of the page."""
    folder = tmp_path_factory.mktemp("study")
    torch.save(torch.randn(96, 4, generator=torch.Generator().manual_seed(1)), folder / "points.pt")
    for name, text in (("study_parts.py", PARTS), ("run.yaml", RUN), ("study.yaml", STUDY), ("killed", "")):
        (folder / name).write_text(text)
    for program in PROGRAMS.glob("study_*.py"):
        shutil.copy(program, folder)
    return folder


def trained(here, command, out):
    """Return what became of the runs of a study, and what it printed."""
    words = shlex.split(command.replace("engine-core ", "python3 -m engine_core ").replace("-n 5", "-n 3"))
    words = [sys.executable if word == "python3" else word for word in words]
    done = subprocess.run(
        [*words, "--out", out], cwd=here, env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    content = json.loads((here / out / "study.json").read_text())
    return [(run["status"], run["values"], run["data"]) for run in content["runs"]]


@pytest.fixture(scope="module")
def alone(here):
    return trained(here, "engine-core study study.yaml --jobs 1", "alone")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.rpartition(" ")[2])
def test_an_executor_gives_the_bits_of_processes_of_their_own(command, here, alone):
    out = re.sub(r"\W", "-", command)
    (here / out).mkdir()
    shutil.copy(here / "alone/plan.json", here / out)  # so that it need not try the arms again
    if is_dask := "dask" in command:
        (here / "killed").unlink()  # Dask trains a run again whose worker was killed
    assert trained(here, command, out) == alone
    if is_dask:
        assert (here / "killed").exists()


def test_what_is_tested_is_on_the_page():
    assert [command.rpartition(" ")[2] for command in COMMANDS] == [
        "study_dask:here", "study_slurm:Jobs", "mpi4py.futures:MPIPoolExecutor",
    ]  # fmt: skip
    assert all(f"{{literalinclude}} ../examples/beside/{file.name}" in PAGE for file in PROGRAMS.glob("study_*.py"))


def test_a_cluster_of_dask_is_found_by_its_address(monkeypatch):
    make = runpy.run_path(str(PROGRAMS / "study_dask.py"))["cluster"]
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with (
        distributed.LocalCluster(**options) as cluster,
        dask.config.set({"scheduler-address": cluster.scheduler_address}),
        make() as executor,
    ):
        assert executor.submit(os.getpid).result() == os.getpid()


def test_the_search_by_optuna_prunes_and_finds_the_better_values(capsys):
    search = runpy.run_path(str(PROGRAMS / "optuna_search.py"))["search"]
    states = [trial.state for trial in search.trials]
    assert states.count(optuna.trial.TrialState.PRUNED) + states.count(optuna.trial.TrialState.COMPLETE) == 10
    assert 0 < states.count(optuna.trial.TrialState.PRUNED) < 6
    assert search.best_value < search.trials[0].value
    assert str(search.best_params) in capsys.readouterr().out
    assert "{literalinclude} ../examples/beside/optuna_search.py" in (ROOT / "docs/howto/optuna.md").read_text()
