"""What the tests of all plugins share: a clean environment, one thread, and the same random numbers each time."""  # noqa: INP001

import os

import pytest
import torch

for variable in ("ENGINE_CORE_PLUGINS", "ENGINE_CORE_DISABLE_PLUGINS"):  # the developer's shell may set them
    os.environ.pop(variable, None)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)
