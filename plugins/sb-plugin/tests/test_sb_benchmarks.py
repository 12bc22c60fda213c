"""The benchmark of this package: what the figures of its steps mean."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

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
