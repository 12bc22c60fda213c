"""What the tests of all plugins share: a clean environment, one thread, the same random numbers, one step of a run."""  # noqa: INP001

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

try:
    import torch
except ModuleNotFoundError:  # what needs none is tested without it, too
    torch = None  # type: ignore[assignment]
else:
    from engine_core import Trainer
    from engine_core_author import AlgorithmConformance, PassConformance

TESTS = Path(__file__).parents[1] / "tests"
sys.path.append(str(TESTS / "train"))  # for its parts.py
SHARED = runpy.run_path(str(TESTS / "conftest.py"))  # a neutral shell, calm settings, fixtures
install, ends, _a_shell_without_habits = map(SHARED.get, ("install", "ends", "_a_shell_without_habits"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the conformance kit to the full ring, but for the first algorithm of each package."""
    first: dict[Path, type] = {}
    for item in items if torch else ():
        kit = getattr(item, "cls", None) or object
        ours = Path(__file__).parent in item.path.parents and issubclass(kit, (AlgorithmConformance, PassConformance))
        if ours and first.setdefault(item.path, kit) is not kit:
            item.add_marker(pytest.mark.full)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    if torch:
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    if torch:
        torch.manual_seed(0)


@pytest.fixture(scope="session")
def one_step() -> Callable[..., tuple[torch.Tensor, float]]:
    """Return a function that trains on one batch by SGD with lr=1, and gives all weights and the loss afterwards."""

    def step(net: torch.nn.Module, batch: Any, size: int | None, ranks: Any, **settings: Any) -> Any:
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
        how: Any = {"microbatch_size": size, "parallel": ranks, "max_duration": "1ba", "progress_bar": False}
        with Trainer(net, [batch], optimizers=optimizer, **how, **settings) as trainer:
            trainer.fit()
            return torch.nn.utils.parameters_to_vector(net.parameters()).detach(), trainer.state.loss.item()

    return step
