"""The benchmark of steps in benchmarks/selective_backprop: that it runs, and what its figures mean."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "selective_backprop"


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(BENCHMARK), *arguments], capture_output=True, text=True, check=False, timeout=300
    )


@pytest.fixture
def ratios() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ratios_of_steps", BENCHMARK / "ratios.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_prints_what_was_asked_for_and_a_goal_decides_the_exit_code() -> None:
    done = run("mlp", "--rounds", "1", "--kinds", "kept", "drawing 0.5")
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line}
    assert len(rows["kept"]) == 3, done.stderr
    assert rows["drawing"][:3] == ["0.5", "/", "vanilla"]
    assert done.returncode == int("MISS" in done.stdout)


@pytest.mark.parametrize(("wrong", "said"), [(("mpl",), "'mpl'"), (("mlp", "--kinds", "keep"), "'keep'")])
def test_what_does_not_exist_is_told(wrong: tuple[str, ...], said: str) -> None:
    done = run(*wrong)
    assert done.returncode == 2 and f"{said}, only" in done.stderr


def test_a_ratio_is_that_of_steps_of_one_round(ratios: ModuleType) -> None:
    """A machine that is three times as slow in one round changes nothing."""
    ratio, error = ratios.ratio_of([1.0, 3.0, 1.0, 1.5], [2.0, 6.0, 2.0, 2.0])
    assert ratio == 0.5 and error == 0
    ratio, error = ratios.ratio_of([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    assert ratio == 2 and error == pytest.approx(1.4826 * 1.2533 / 3**0.5)
