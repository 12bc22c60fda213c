"""What all tests of training share: one thread, known numbers, and clocks and generators that no test leaves moved."""

import signal
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _ctrl_c_is_heard() -> Iterator[None]:
    """Let children hear it even where a shell runs the tests in its background, and ignores it for all of them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _same_numbers() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    assert torch.is_grad_enabled()
