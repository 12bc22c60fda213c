"""The benchmarks of this package: what its study reads, counts and computes, and what the figures of steps mean."""

import gzip
import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from engine_core import Engine, Event, Logger, State

STUDY = Path(__file__).parents[3] / "benchmarks" / "sb_study"


@pytest.fixture(scope="module")
def study():
    before = set(sys.modules)
    sys.path.insert(0, str(STUDY))
    names = [file.stem for file in STUDY.glob("*.py") if file.stem != "__main__"]
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    sys.path.remove(str(STUDY))
    for name in set(names) - before:
        del sys.modules[name]


@pytest.fixture
def fashion(tmp_path):
    """A folder with 10,300 random images of 8x8 in place of Fashion-MNIST."""
    pixels, labels = torch.randint(256, (10_300, 8, 8)).byte(), torch.arange(10_300).remainder(10).byte()
    for name, rows in (("train-images-idx3-ubyte", pixels), ("train-labels-idx1-ubyte", labels)):
        sizes = b"".join(size.to_bytes(4, "big") for size in rows.shape)
        (tmp_path / f"{name}.gz").write_bytes(
            gzip.compress(bytes([0, 0, 8, rows.dim()]) + sizes + bytes(rows.numpy()), 1)
        )
    return tmp_path


def test_compute_to_a_loss_is_interpolated_in_the_logarithm(study):
    reach, reached = study.ladder.reach, study.ladder.Reached
    assert reach([1, 4, 16], [0.5, 0.3, 0.1], 0.2) == reached(pytest.approx(8.0), is_bound=False)
    assert reach([1, 4], [0.5, 0.3], 0.3) == reached(pytest.approx(4.0), is_bound=False)
    assert reach([1, 4], [0.5, 0.3], 0.6) == reached(1, is_bound=True)
    assert reach([1, 4], [0.5, 0.3], 0.2) is None
    assert reach([1, 4, 16], [0.5, 0.3, 0.6], 0.4).cost == pytest.approx(2.0)  # where it first crosses


def records_of(method, rungs, seeds=(0,), case="some", **given):
    """Return a record for each rung (epochs, compute, losses by seed)."""
    return [
        {"case": case, "method": method, "epochs": epochs, "seed": seed, "compute": compute, "loss": losses[i]}
        | {"cpu_s": 2.0 * compute, "accuracy": 0.5, **given}
        for epochs, compute, losses in rungs
        for i, seed in enumerate(seeds)
    ]


def test_ratio_is_of_means_over_seeds_and_those_of_seeds_are_reported(study):
    of = records_of("a", [(1, 10, (0.8, 0.6, 0.4)), (2, 40, (0.6, 0.2, -0.2))], range(3))
    baseline = records_of("vanilla", [(1, 20, (0.8, 0.8, 0.8)), (2, 40, (0.4, 0.4, 0.4))], range(3))
    ladders = study.ladder.ladder_of(of), study.ladder.ladder_of(baseline)
    assert study.ladder.ratio(*ladders).cost == pytest.approx(0.5)
    assert study.ladder.ratios_by_seed(of, baseline) == pytest.approx([0.5, 0.25])
    assert (
        "| a | 3 | 1, 2 | 0.2000 (sd 0.4000) | 50.00 % | 0.50 (2 of 3: 0.25 to 0.50) | 0.50 |"
        in study.report.as_markdown([*baseline, *of])
    )


def test_time_is_compute_at_the_median_price_of_a_method(study):
    """One slow run of vanilla's, even that which is compared with, makes no method fast."""
    baseline = records_of("vanilla", [(2, 10, (0.9,)), (4, 20, (0.5,))]) + records_of(
        "vanilla", [(8, 40, (0.1,))], cpu_s=1e3
    )
    of = records_of("a", [(4, 10, (0.5,)), (8, 20, (0.1,))], cpu_s=90.0)
    assert study.ladder.price(baseline) == 2
    assert study.ladder.price(of) == 6.75
    assert f"| 0.50 (1 of 1: 0.50 to 0.50) | {0.5 * 6.75 / 2:.2f} |" in study.report.as_markdown([*baseline, *of])


@pytest.mark.parametrize(
    ("name", "trained", "scored"),
    # 8 batches of 64 rows an epoch: one is before start=.1, of the 7 others half is kept
    [("vanilla", 512, 0), ("uniform", 64 + 7 * 32, 0), ("carried", 64 + 7 * 32, 0), ("composer", 64 + 7 * 32, 7 * 64)],
)
def test_compute_is_what_is_counted_by_hand(study, name, trained, scored):
    case = study.training.CASES["digits"]._replace(rows=512 + 10)
    run = study.training.train(name, case, 1, seed=0)
    assert (run["trained"], run["scored"], run["compute"]) == (trained, scored, 3 * trained + scored)


def test_kept_rows_weigh_as_many_as_they_stand_for(study):
    selector, scores = study.weighting.KeepTheHardest(0.25), torch.arange(8.0)
    drawn = torch.zeros(8)
    for seed in range(600):
        rows = selector(scores, 4, torch.Generator().manual_seed(seed))
        assert rows.tolist() == sorted(set(rows.tolist())) and selector.weights.sum() == 8
        drawn[rows] += selector.weights
    assert torch.allclose(drawn / 600, torch.ones(8), atol=0.25)  # 4.3 standard deviations
    assert drawn[6:].tolist() == [600, 600]


def test_reweighting_replaces_the_loss_in_steps_on_kept_rows_only(study):
    selector = study.weighting.KeepTheHardest(0.25)
    outputs, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    state = State(model=torch.nn.Linear(1, 1), algorithms=[study.weighting.Reweight(selector)], loss=torch.tensor(0.0))
    state.outputs, state.batch = outputs, (None, labels)
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.AFTER_LOSS)
        assert state.loss == 0
        selector.weights = torch.tensor([1.0, 3.0, 3.0, 1.0])
        engine.run_event(Event.AFTER_LOSS)
    losses = F.cross_entropy(outputs, labels, reduction="none")
    assert torch.allclose(state.loss, (losses[0] + 3 * losses[1] + 3 * losses[2] + losses[3]) / 8)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:selective_backprop. with scale_factor")
def test_every_method_trains_and_all_but_vanilla_on_fewer_rows(study, fashion, monkeypatch):
    monkeypatch.setattr(study.training, "validate", lambda model, split: (0.0, len(split.val_labels) / 10_000))
    case = study.training.CASES["fashion"]._replace(rows=256, batch=32)
    for name, method in study.methods.METHODS.items():
        run = study.training.train(name, case, 1, 0, fashion)
        assert run["accuracy"] == 1
        assert (run["trained"] == 256) == (method.kind == "vanilla"), name


@pytest.mark.full
def test_run_writes_what_is_missing_and_report_makes_table_and_picture(study, tmp_path):
    out, plan = tmp_path / "results.jsonl", {"methods": ["vanilla", "carried"], "epochs": [1, 2]}
    study.plan.run_missing(["digits"], out, tmp_path, **plan, seeds=[0])
    first = out.read_text()
    study.plan.run_missing(["digits"], out, tmp_path, **plan, seeds=[0, 1])
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert out.read_text().startswith(first) and len(first.splitlines()) == 4 and len(records) == 8
    study.report.write_report(records, tmp_path)
    table = (tmp_path / "RESULTS.md").read_text()
    assert "## digits, 2 seeds" in table and "| vanilla | 2 | 1, 2 |" in table and "| carried | 2 | 1, 2 |" in table
    picture = (tmp_path / "compute.svg").read_text()
    assert picture.count("<circle") == 4 and ">carried</text>" in picture


BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "selective_backprop"


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(BENCHMARK), *arguments], capture_output=True, text=True, check=False, timeout=300
    )


@pytest.fixture
def ratios():
    spec = importlib.util.spec_from_file_location("ratios_of_steps", BENCHMARK / "ratios.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.full
def test_it_prints_what_was_asked_for_and_a_goal_decides_the_exit_code():
    done = run("mlp", "--processes", "2", "--rounds", "1", "--kinds", "kept", "drawing 0.5")
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line}
    assert len(rows["kept"]) == 3, done.stderr
    assert rows["drawing"][:3] == ["0.5", "/", "vanilla"]
    assert done.returncode == int("MISS" in done.stdout)


def test_a_ratio_is_that_of_steps_of_one_round(ratios):
    """A machine that is three times as slow in one round changes nothing."""
    rounds, others = [1.0, 3.0, 1.0, 1.5], [2.0, 6.0, 2.0, 2.0]
    assert ratios.ratio_of([rounds, rounds], [others, others]) == (0.5, 0)


def test_how_far_processes_differ_says_how_well_a_ratio_is_known(ratios):
    ratio, error = ratios.ratio_of([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], [[1.0, 1.0]] * 3)
    assert ratio == 2 and error == pytest.approx(1 / 3**0.5)
