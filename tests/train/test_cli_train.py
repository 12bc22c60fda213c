"""`engine-core train`: a run from its config to its files, and what it says when it can't."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from click.testing import CliRunner

from engine_core.cli import main
from engine_core.config import Config, ConfigError
from engine_core.registry import Registry
from engine_core.run import train

torch.set_num_threads(1)

MODULE = """
    import torch
    from engine_core import Algorithm, AlgorithmMetadata, Callback

    def net():
        return torch.nn.Linear(4, 3)

    def largest(outputs, targets):
        return outputs.max()

    def loader(batches=6):
        return [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(batches)]

    class Doze(Algorithm):
        metadata = AlgorithmMetadata(events=("init", "batch_end"))

        def match(self, event, state):
            return event == "init" or state.timestamp.batch % 2 == 0

        def apply(self, event, state, logger):
            pass

    class Wake(Doze):
        match = lambda self, event, state: False
        may_rest = lambda self, state: True

    class Nan:
        def update(self, outputs, targets):
            pass

        reset = lambda self: None

        def compute(self):
            return float("nan")

    class Nap(Callback):
        def batch_end(self, state, logger):
            import pathlib, time
            if state.timestamp.batch == 4:
                pathlib.Path("napping").touch()
                time.sleep(600)

        def close(self, state, logger):
            print("closed after", state.timestamp.batch)
"""
CONFIG = """
model: {target: "nap:net"}
data: {target: "nap:loader"}
eval_data: {target: "nap:loader", args: {batches: 1}}
loss: {target: "torch.nn:CrossEntropyLoss"}
optimizer: {target: "torch.optim:SGD", args: {lr: 0.1}}
schedulers: [{target: "torch.optim.lr_scheduler:StepLR", args: {step_size: 1, gamma: 0.5}, interval: 6ba}]
trainer: {max_duration: 2ep, seed: 7}
algorithms: [doze]
"""


@pytest.fixture
def run(install, tmp_path, monkeypatch):
    """Return `run(*arguments, config=...)`, the command in an empty folder with `run.yaml`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    install("nap-plugin", {"algorithms": {"doze": "nap:Doze", "wake": "nap:Wake"}}, {"nap": MODULE}, version="1.2")

    def run(*arguments, config=CONFIG):
        (tmp_path / "run.yaml").write_text(config)
        return CliRunner().invoke(main, ["train", "run.yaml", *arguments])

    return run


def start(tmp_path, config):
    """Start the command as a separate process."""
    (tmp_path / "run.yaml").write_text(config)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "engine_core", "train", "run.yaml", "--out", "out"]
    return subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def read(path):
    return json.loads(path.read_text(), parse_constant=pytest.fail)


def logged(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    values = [line for line in lines if line["kind"] == "values"]
    return [{key: value for key, value in line.items() if key not in ("kind", "seconds")} for line in values]


def test_the_results_hold_metrics_time_and_counts(run, tmp_path):
    assert run("--out", "out").exit_code == 0
    results = read(tmp_path / "out" / "results.json")
    best = min((row["eval/loss"], row["step"]) for row in logged(tmp_path / "out") if "eval/loss" in row)
    assert {key: value for key, value in results.items() if not isinstance(value, float)} == {
        "epochs": 2,
        "batches": 12,
        "samples": 96,
        "algorithms": {"Doze/INIT": 1, "Doze/BATCH_END": 6},
        "best": {"eval/loss": {"value": best[0], "step": best[1], "epoch": best[1] // 6}},
        "weights": "trained",
        "checkpoints": {"latest": "checkpoints/ep2-ba12", "best": None},
    }
    assert sorted(key for key, value in results.items() if isinstance(value, float)) == [
        *("eval/loss", "samples_per_second", "seconds", "train/loss", "train/loss_epoch", "train/lr/0"),
    ]


def test_an_algorithm_that_never_ran_is_in_the_results(run, tmp_path):
    result = run("--out", "out", config=CONFIG.replace("[doze]", "[doze, wake]"))
    assert re.search(r"^  Doze  2 events  7x\n  Wake  0 events  0x$", result.output, re.MULTILINE)
    assert read(tmp_path / "out" / "results.json")["algorithms"] == {"Doze/INIT": 1, "Doze/BATCH_END": 6, "Wake": 0}


def test_a_metric_that_is_nan_is_null_in_the_results(run, tmp_path):
    run("--out", "out", config=CONFIG + "metrics: {nan: {target: 'nap:Nan'}}")
    assert read(tmp_path / "out" / "results.json")["eval/nan"] is None


@pytest.mark.filterwarnings("default:eval/loss is approximate")
def test_a_loss_that_depends_on_the_size_of_batches_is_marked_in_the_results(run, tmp_path):
    own = CONFIG.replace("torch.nn:CrossEntropyLoss", "nap:largest").replace("batches: 1", "batches: 2")
    assert run("--out", "out", config=own).exit_code == 0
    assert read(tmp_path / "out" / "results.json")["approximate"] == ["eval/loss"]


def test_the_manifest_holds_what_repeats_the_run(run, tmp_path):
    run("--out", "out", "--seed", "5", "--max-duration", "3ba")
    manifest = read(tmp_path / "out" / "manifest.json")
    assert manifest["config"]["trainer"] == {"max_duration": "3ba", "seed": 5, "run_name": "out"}
    assert manifest["config"]["algorithms"] == [{"name": "doze"}]
    assert (manifest["seed"], manifest["versions"]["nap-plugin"], manifest["versions"]["torch"]) == (
        *(5, "1.2", torch.__version__),
    )
    doze = {"algorithm": "Doze", "name": "doze", "why": "runs alone", "distribution": "nap-plugin", "version": "1.2"}
    assert (manifest["schema"], manifest["order"]) == (1, {"init": [doze], "batch_end": [doze]})


def test_the_config_of_the_manifest_runs_and_gives_the_same(run, tmp_path):
    run("--out", "out", config=CONFIG.replace("seed: 7", ""))
    again = read(tmp_path / "out" / "manifest.json")["config"]
    torch.rand(3)
    assert run("--out", "again", config=json.dumps(again)).exit_code == 0
    assert logged(tmp_path / "out") == logged(tmp_path / "again")


def test_every_step_and_every_evaluation_is_logged(run, tmp_path):
    run("--out", "out")
    assert [(line["step"], *sorted(set(line) - {"step"})) for line in logged(tmp_path / "out")] == [
        *((step, "train/loss", "train/lr/0") for step in range(6)),
        (6, "train/loss_epoch"),
        (6, "eval/loss"),
        *((step, "train/loss", "train/lr/0") for step in range(6, 12)),
        (12, "train/loss_epoch"),
        (12, "eval/loss"),
    ]


def test_a_scheduler_steps_at_its_interval(run, tmp_path):
    run("--out", "out")
    assert [line["train/lr/0"] for line in logged(tmp_path / "out") if "train/lr/0" in line] == [0.1] * 6 + [0.05] * 6


def test_runs_are_collected_below_runs(run, tmp_path):
    for _ in range(2):
        run(config=CONFIG.replace("seed: 7", "run_name: nap"))
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["nap", "nap-2"]


def test_the_folder_of_another_run_is_refused(run, tmp_path):
    run("--out", "out")
    before = logged(tmp_path / "out")
    result = run("--out", "out", "--seed", "8")
    assert (result.exit_code, result.output) == (
        *(2, "Error: 'out' holds another run; choose another folder, or remove that one, or resume it (autoresume)\n"),
    )
    assert logged(tmp_path / "out") == before


def test_modules_beside_the_config_are_found(run, tmp_path, install):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "nap_beside.py").write_text("from nap import *")
    (tmp_path / "own" / "run.yaml").write_text(CONFIG.replace("nap:", "nap_beside:"))
    result = CliRunner().invoke(main, ["train", "own/run.yaml", "--out", "out"])
    assert result.exit_code == 0, result.output


def test_train_checks_names_before_it_imports_a_plugin(install, tmp_path):
    install("loud-plugin", {"algorithms": {"loud": "loud:Loud"}}, {"loud": "raise SystemExit"})
    target = {"target": "nap:net"}
    config = Config(model=target, data=target, optimizer=target, algorithms=["loud", "lout"])
    with pytest.raises(ConfigError, match=r"algorithms\[1\]: 'lout' is not among"):
        train(config, tmp_path / "out")
    assert "loud" not in sys.modules


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_duration: 2ep, ", "", "Error: run.yaml:8: trainer: max_duration is missing: say how long to train"),
        ("[doze]", "[dose]", "Error: run.yaml:9: algorithms[0]: 'dose' is not among the installed algorithms; did you"),
        ("nap:net", "nap:nett", "Error: run.yaml:2: model: 'nap' has no attribute 'nett'; did you mean 'net'?"),
        ("lr: 0.1", "lr: -1", "Error: run.yaml:6: optimizer: SGD: Invalid learning rate: -1 (at "),
        ("gamma", "gama", "Error: run.yaml:7: schedulers[0].args.gama: StepLR has no argument 'gama'; did you mean"),
        ("batches: 1", "batches: 0", "Error: run.yaml: the evaluation loader 'eval' is empty"),
    ],
)
def test_a_mistake_is_one_message_and_leaves_nothing(run, tmp_path, old, new, message):
    result = run("--out", "out", config=CONFIG.replace(old, new))
    assert (result.exit_code, result.output.count("\n"), (tmp_path / "out").exists()) == (2, 1, False)
    assert result.output.startswith(message)


def test_what_an_algorithm_finds_wrong_at_the_first_batch_is_one_message(run, install):
    refuse = "from nap import Doze\nfrom engine_core.errors import ArgumentError\nclass Refuse(Doze):\n"
    refuse += "    def validate(self, state):\n        raise ArgumentError('not this batch')\n"
    install("refuse-plugin", {"algorithms": {"refuse": "refuse:Refuse"}}, {"refuse": refuse})
    result = run("--out", "out", config=CONFIG.replace("doze", "refuse"))
    assert (result.exit_code, result.output.partition("Error: ")[2]) == (
        2,
        "not this batch\nraised by validate of algorithm Refuse (refuse-plugin 1.0) at AFTER_DATALOADER\n",
    )


def test_a_run_that_logged_nothing_leaves_its_folder_free(run, tmp_path):
    assert run("--out", "out", config=CONFIG.replace("nap:loader", "nap:net", 1)).exit_code == 2
    assert not (tmp_path / "out").exists()
    assert run("--out", "out").exit_code == 0


def test_a_second_ctrl_c_ends_within_a_batch_closes_callbacks_and_loses_no_line(run, tmp_path):
    process = start(tmp_path, CONFIG + "callbacks: [{target: 'nap:Nap'}]")
    while process.poll() is None and not (tmp_path / "napping").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "ending after this batch; signal again to end at once" in stderr
    assert stdout.splitlines() == [
        "closed after 4",
        "interrupted at batch 4",
        "no model was written, since the run was cut off",
        "no checkpoint was saved, so the run can't be resumed",
    ]
    assert [line["step"] for line in logged(tmp_path / "out")] == [0, 1, 2, 3]
    rows = (tmp_path / "out" / "metrics.csv").read_text().splitlines()[1:]
    assert [row.partition(",")[0] for row in rows] == ["0", "1", "2", "3"]


def test_what_measures_is_asked_for_before_anything_is_made(run, monkeypatch, tmp_path):
    registry = Registry.scan()
    monkeypatch.setattr(registry, "records", [each for each in registry.records if each.name != "profiler"])
    result = run("--out", "out", "--timing")
    assert result.exit_code == 2
    assert "'profiler' is not among" in result.output
    assert 'pip install "engine-core[insight]" brings it' in result.output
    assert not (tmp_path / "out").exists()
