"""What all tests of training share: one thread, known numbers, and clocks and generators that no test leaves moved."""

import time

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _no_wait_for_workers():
    """Don't wait 5 s for each worker of an iterator in a cycle, which torch can't tell to end any more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)
        yield


@pytest.fixture(autouse=True)
def _same_numbers():
    torch.manual_seed(0)
    yield
    assert torch.is_grad_enabled()


@pytest.fixture
def wait(monkeypatch):
    """Return `wait(seconds)`, the only thing in the test that takes time."""
    now_s = 0.0

    def wait(seconds):
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    return wait
