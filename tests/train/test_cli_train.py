"""`engine-core train`: a run from its config to its files, and what it says when it can't."""

import json
import re

import pytest
import torch

from engine_core.manifest import read_manifest
from engine_core.registry import Registry

from .leaving import DOZES, cli

__all__ = ["cli"]
torch.set_num_threads(1)


@pytest.fixture
def run(cli):
    """Return `run(*arguments, config=...)`, the command in an empty folder with `run.yaml`."""
    return lambda *arguments, config=DOZES: cli("train", "run.yaml", *arguments, config=config)


def read(path):
    return json.loads(path.read_text(), parse_constant=pytest.fail)


def logged(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    values = [line for line in lines if line["kind"] == "values"]
    return [{key: value for key, value in line.items() if key not in ("kind", "seconds")} for line in values]


def test_the_results_hold_metrics_time_and_counts_and_algorithms_that_never_ran(run, tmp_path):
    config = DOZES.replace("[doze]", "[doze, wake]") + "metrics: {nan: {target: 'left:Nan'}}"
    result = run("--out", "out", config=config)
    assert re.search(r"^  Doze  2 events  7x\n  Wake  0 events  0x$", result.output, re.MULTILINE)
    results = read(tmp_path / "out" / "results.json")
    best = min((row["eval/loss"], row["step"]) for row in logged(tmp_path / "out") if "eval/loss" in row)
    assert {key: value for key, value in results.items() if not isinstance(value, float)} == {
        "epochs": 2,
        "batches": 12,
        "samples": 96,
        "algorithms": {"Doze/INIT": 1, "Doze/BATCH_END": 6, "Wake": 0},
        "best": {"eval/loss": {"value": best[0], "step": best[1], "epoch": best[1] // 6}, "eval/nan": None},
        "eval/nan": None,
        "weights": "trained",
        "checkpoints": {"latest": "checkpoints/ep2-ba12", "best": None},
    }
    assert sorted(key for key, value in results.items() if isinstance(value, float)) == [
        *("eval/loss", "samples_per_second", "seconds", "train/loss", "train/loss_epoch", "train/lr/0")
    ]


@pytest.mark.filterwarnings("default:eval/loss is approximate")
def test_a_loss_that_depends_on_the_size_of_batches_is_marked_in_the_results(run, tmp_path):
    own = DOZES.replace("torch.nn:CrossEntropyLoss", "left:largest").replace("batches: 1", "batches: 2")
    assert run("--out", "out", config=own).exit_code == 0
    assert read(tmp_path / "out" / "results.json")["approximate"] == ["eval/loss"]


def test_the_manifest_holds_what_repeats_the_run(run, tmp_path):
    run("--out", "out", "--seed", "5", "--max-duration", "3ba")
    manifest = read(tmp_path / "out" / "manifest.json")
    assert manifest["config"]["trainer"] == {"max_duration": "3ba", "seed": 5, "run_name": "out"}
    assert manifest["config"]["algorithms"] == [{"name": "doze"}]
    versions = manifest["versions"]
    assert (manifest["seed"], versions["left-plugin"], versions["torch"]) == (5, "1.2", torch.__version__)
    doze = {"algorithm": "Doze", "name": "doze", "why": "runs alone", "distribution": "left-plugin", "version": "1.2"}
    assert (manifest["schema"], manifest["order"]) == (1, {"init": [doze], "batch_end": [doze]})


def test_every_step_is_logged_and_the_config_of_the_manifest_repeats_it(run, tmp_path):
    run("--out", "out", config=DOZES.replace("seed: 7", ""))
    lines = logged(tmp_path / "out")
    assert [(line["step"], *sorted(set(line) - {"step"})) for line in lines] == [
        fact
        for epoch in (1, 2)
        for fact in (
            *((step, "train/loss", "train/lr/0") for step in range(6 * epoch - 6, 6 * epoch)),
            *((6 * epoch, "train/loss_epoch"), (6 * epoch, "eval/loss")),
        )
    ]
    assert [line["train/lr/0"] for line in lines if "train/lr/0" in line] == [0.1] * 6 + [0.05] * 6
    again = read(tmp_path / "out" / "manifest.json")["config"]
    torch.rand(3)
    assert run("--out", "again", config=json.dumps(again)).exit_code == 0
    assert lines == logged(tmp_path / "again")


def test_runs_are_collected_below_runs(run, tmp_path):
    for _ in range(2):
        run(config=DOZES.replace("seed: 7", "run_name: mine"))
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["mine", "mine-2"]


def test_what_measures_is_asked_for_before_anything_is_made(run, monkeypatch, tmp_path):
    registry = Registry.scan()
    monkeypatch.setattr(registry, "records", [each for each in registry.records if each.name != "profiler"])
    result = run("--out", "out", "--timing")
    says = "'profiler' is not among.*pip install \"engine-core\\[insight\\]\" brings it"
    assert (result.exit_code, bool(re.search(says, result.output)), (tmp_path / "out").exists()) == (2, True, False)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_duration: 2ep, ", "", ":8: trainer: max_duration is missing: say how long to train"),
        ("[doze]", "[dose]", ":9: algorithms[0]: 'dose' is not among the installed algorithms; did you"),
        ("torch.nn:Linear", "left:nett", ":2: model: 'left' has no attribute 'nett'; did you mean 'net'?"),
        ("lr: 0.1", "lr: -1", ":6: optimizer: SGD: Invalid learning rate: -1 (at "),
        ("gamma", "gama", ":7: schedulers[0].args.gama: StepLR has no argument 'gama'; did you mean"),
        ("batches: 1", "batches: 0", ": the evaluation loader 'eval' is empty"),
    ],
)
def test_a_mistake_is_one_message_and_leaves_nothing(run, tmp_path, old, new, message):
    result = run("--out", "out", config=DOZES.replace(old, new))
    assert (result.exit_code, result.output.count("\n"), (tmp_path / "out").exists()) == (2, 1, False)
    assert result.output.startswith(f"Error: run.yaml{message}")


def test_what_an_algorithm_finds_wrong_at_the_first_batch_is_one_message(run, install):
    refuse = "from left import Doze\nfrom engine_core.errors import ArgumentError\nclass Refuse(Doze):\n"
    refuse += "    def validate(self, state):\n        raise ArgumentError('not this batch')\n"
    install("refuse-plugin", {"algorithms": {"refuse": "refuse:Refuse"}}, {"refuse": refuse})
    result = run("--out", "out", config=DOZES.replace("doze", "refuse"))
    assert (result.exit_code, result.output.partition("Error: ")[2]) == (
        2,
        "not this batch\nraised by validate of algorithm Refuse (refuse-plugin 1.0) at AFTER_DATALOADER\n",
    )


def test_a_second_ctrl_c_ends_within_a_batch_closes_callbacks_and_loses_no_line(run, tmp_path, capfd):
    done = run("--out", "out", config=DOZES + "callbacks: [{target: 'left:Stuck'}]")
    assert done.exit_code == 130
    assert "ending after this batch; signal again to end at once" in capfd.readouterr().err
    assert done.output.splitlines()[-4:] == [
        "closed after 4",
        "interrupted at batch 4",
        "no model was written, since the run was cut off",
        "no checkpoint was saved, so the run can't be resumed",
    ]
    assert [line["step"] for line in logged(tmp_path / "out")] == [0, 1, 2, 3]
    rows = (tmp_path / "out" / "metrics.csv").read_text().splitlines()[1:]
    assert [row.partition(",")[0] for row in rows] == ["0", "1", "2", "3"]


RECIPE = """
kind: tiny
summary: Faster.
algorithms: [wake]
optimizer: {target: "torch.optim:SGD", args: {lr: 0.1}}
because: {wake: "It wakes.", optimizer: "It steps."}
"""


def test_a_recipe_is_told_with_its_reasons_and_recorded_and_resumes_and_repeats(run, install, tmp_path):
    (tmp_path / "fast.yaml").write_text(RECIPE)
    path = f"from pathlib import Path\nFAST = Path({str(tmp_path / 'fast.yaml')!r})"
    install("acme", {"recipes": {"fast": "acme_fast:FAST"}}, {"acme_fast": path}, version="1.2")
    config = "".join(line for line in DOZES.splitlines(keepends=True) if not line.startswith("optimizer"))
    first = run("--recipe", "fast", "--out", "out", "--max-duration", "1ep", config=config)
    assert first.output.splitlines()[:5] == [
        "recipe fast (acme 1.2) adds",
        "  algorithms: [{name: wake}]",
        "      It wakes.",
        "  optimizer: {target: 'torch.optim:SGD', args: {lr: 0.1}}",
        "      It steps.",
    ]
    again = run("--recipe", "fast", "--out", "out", "--autoresume", "--quiet", config=config)
    assert (again.exit_code, "recipe" in again.output) == (0, False), again.output
    manifest = read_manifest(tmp_path / "out")
    assert (manifest.overrides, [each["name"] for each in manifest.config["algorithms"]]) == (
        ("recipe=fast",),
        ["doze", "wake"],
    )
    assert manifest.config["recipe"] == {"name": "fast", "distribution": "acme", "version": "1.2"}
    # Without the recipe, and although it is gone.
    (tmp_path / "fast.yaml").unlink()
    repeated = run("--out", "repeated", config=json.dumps(manifest.config))
    assert (repeated.exit_code, "adds" in repeated.output) == (0, False), repeated.output
    assert logged(tmp_path / "repeated") == logged(tmp_path / "out")


WIDHT = "algorithms[widen].args.widht=8"


def test_what_was_set_is_trained_with_and_recorded_as_given(run, tmp_path):
    given = ["optimizer.args.lr=1e-3", "algorithms+=average", "algorithms[average].args.start=3", "trainer.seed=null"]
    setting = [word for text in given for word in ("--set", text)]
    result = run(*setting, "--out", "out", "--seed", "5", "--max-duration", "1ba")
    assert result.exit_code == 0, result.output
    manifest = read_manifest(tmp_path / "out")
    assert manifest.config["trainer"]["seed"] == 5
    assert manifest.overrides == tuple(given)
    assert manifest.config["optimizer"]["args"] == {"lr": 0.001}
    assert manifest.config["algorithms"] == [{"name": "doze"}, {"name": "average", "args": {"start": 3}}]
    assert logged(tmp_path / "out")[0]["train/lr/0"] == 0.001
    content = read(tmp_path / "out" / "manifest.json")
    del content["overrides"]  # as before there were any
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(content))
    assert read_manifest(tmp_path / "out").overrides == ()


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["optimizer.args.lr=-1"], "run.yaml:6 with --set optimizer.args.lr=-1: optimizer: SGD: Invalid learning rate"),
        (["algorithms+=dose"], "--set algorithms+=dose: algorithms[1]: 'dose' is not among the installed algorithms"),
        (["algorithms+=widen", WIDHT], f"--set {WIDHT}: algorithms[1].args.widht: Widen has no argument 'widht'"),
    ],
)
def test_what_is_set_is_checked_like_the_file_when_it_is_made(run, texts, said):
    result = run(*(word for text in texts for word in ("--set", text)))
    assert (result.exit_code, result.output.startswith(f"Error: {said}")) == (2, True), result.output
