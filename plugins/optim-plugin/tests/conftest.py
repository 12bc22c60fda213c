"""What all tests of optim-plugin share: one thread and the same numbers, so that they are gentle and repeatable."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)
