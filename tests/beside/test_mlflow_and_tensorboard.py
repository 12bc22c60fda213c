"""TensorBoard and MLflow in runs of the command line: a config's `loggers:`, `--check`, and several ranks."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine_core.callback import is_used_on
from engine_core.cli import main
from engine_core.registry import Registry
from engine_core_author import ThreadRanks
from engine_core_mlflow import MLflow
from engine_core_tensorboard import TensorBoard

from .tracker_runs import Memory, fit, in_mlflow, in_tensorboard, mlflow_runs, same_values

pytestmark = [
    pytest.mark.usefixtures("_quiet"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),  # MLflow's own
]
CONFIG = """
model: {{target: "engine_core.examples.digits:DigitsNet"}}
data: {{target: "engine_core.examples.digits:make_loader", args: {{split: train, batch_size: 256}}}}
eval_data: {{target: "engine_core.examples.digits:make_loader", args: {{split: test, batch_size: 180}}}}
loss: {{target: "torch.nn.functional:cross_entropy"}}
metrics: {{accuracy: {{target: "engine_core.examples.digits:Accuracy"}}}}
optimizer: {{target: "torch.optim:AdamW", args: {{lr: 3e-3}}}}
algorithms: [label_smoothing, ema]
loggers:
  - tensorboard
  - {{name: mlflow, args: {{uri: "{uri}", experiment: digits}}}}
trainer: {{max_duration: 2ep, seed: 17}}
"""


@pytest.fixture
def config(uri, tmp_path):
    path = tmp_path / "digits.yaml"
    path.write_text(CONFIG.format(uri=uri))
    return str(path)


def in_files(folder):
    """Return the numbers that `run_files` has."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    values = [line for line in lines if line.pop("kind") == "values"]
    return [
        (name, line["step"], value)
        for line in values
        for name, value in line.items()
        if name not in ("step", "seconds")
    ]


def test_both_have_what_the_runs_own_files_have(config, uri):
    done = CliRunner().invoke(main, ["train", config, "--out", "run"])
    assert done.exit_code == 0, done.output
    logged = in_files(Path("run"))
    assert len(logged) > 10
    assert same_values(in_tensorboard(Path("run", "tensorboard")), logged)
    assert same_values(in_mlflow(uri, experiment="digits"), logged)
    (run,) = mlflow_runs(uri, "digits")
    assert (run.info.run_name, run.info.status, run.data.params["max_duration"]) == ("run", "FINISHED", "2ep")
    assert run.data.tags["order/before_loss"] == "1. LabelSmoothing: runs alone"


def test_a_check_leaves_no_run_anywhere(config, uri, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    done = CliRunner().invoke(main, ["train", config, "--check"])
    assert done.exit_code == 0, done.output
    assert sorted(tmp_path.rglob("*")) == before
    assert mlflow_runs(uri, "digits") == []


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_tracker_is_listed_as_a_callback_and_used_on_rank_0_only(name):
    listed = [record for record in Registry.scan().records if record.distribution == f"engine-core-{name}"]
    assert [(record.kind, record.name) for record in listed] == [("callbacks", name)]
    made = Registry.scan().load("callbacks", name)
    assert [is_used_on(rank, made) for rank in range(3)] == [True, False, False]


def test_neither_is_imported_when_it_is_listed_made_and_logged_to_before_a_fit_starts():
    program = """
import sys
from click.testing import CliRunner
from engine_core.cli import main
from engine_core.registry import Registry
output = CliRunner().invoke(main, ["plugins", "list"]).output
print(sorted(word for line in output.splitlines() for word in line.split()[1:2] if word in ("mlflow", "tensorboard")))
print([name for name in ("torch", "engine_core_mlflow", "engine_core_tensorboard") if name in sys.modules])
for made in (Registry.scan().load("callbacks", name)() for name in ("mlflow", "tensorboard")):
    made.log_hyperparameters({"a": 1})
    made.log_metrics({"a": 1}, 0)
print([name for name in ("mlflow", "tensorboard", "torch") if name in sys.modules])
"""
    said = subprocess.check_output([sys.executable, "-W", "ignore", "-c", program], text=True)
    assert said.splitlines() == ["['mlflow', 'tensorboard']", "[]", "[]"]


def test_on_two_ranks_there_is_one_run_with_each_value_once(uri, tmp_path):
    def train(ranks):
        fit([TensorBoard(tmp_path / "tb"), MLflow(uri)], None, parallel=ranks)

    ThreadRanks.run(train)
    memory = Memory()
    ThreadRanks.run(lambda ranks: fit(memory, None, parallel=ranks))
    assert same_values(in_tensorboard(tmp_path / "tb"), memory.values)
    assert same_values(in_mlflow(uri), memory.values)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_the_example_of_the_readme_runs(name, uri):
    readme = Path(__file__).resolve().parents[2] / "plugins" / f"engine-core-{name}" / "README.md"
    (example,) = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(example, readme, "exec"), {})
    found = in_tensorboard(Path("tb")) if name == "tensorboard" else in_mlflow(uri)
    assert len([step for name, step, _ in found if name == "train/loss"]) == 8
