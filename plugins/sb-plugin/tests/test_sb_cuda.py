"""What differs on a CUDA device: its generators, and that nothing waits for it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Engine, Event, Logger, State
from sb_plugin import SelectiveBackprop, select_using_loss
from sb_plugin.select import draw_rows

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture
def batch():
    return torch.randn(32, 16, device="cuda"), torch.randint(0, 4, (32,), device="cuda")


@pytest.fixture
def engine(batch):
    model = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 4)).cuda()
    algorithm = SelectiveBackprop(0, 1, scale_factor=1, interrupt=0)
    state = State(model=model, algorithms=[algorithm], loss_fn=F.cross_entropy, seed=1, device="cuda", batch=batch)
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.INIT)
        engine.run_event(Event.AFTER_DATALOADER)
        yield engine


def test_global_generators_and_statistics_are_untouched(engine, batch):
    cpu, cuda = torch.get_rng_state(), torch.cuda.get_rng_state()
    before = {name: value.clone() for name, value in engine.state.model.state_dict().items()}
    engine.state.batch = batch
    engine.run_event(Event.AFTER_DATALOADER)
    assert torch.equal(torch.get_rng_state(), cpu)
    assert torch.equal(torch.cuda.get_rng_state(), cuda)
    assert all(torch.equal(value, before[name]) for name, value in engine.state.model.state_dict().items())


def test_a_step_does_not_wait_for_the_device(engine, batch):
    engine.state.batch = batch
    torch.cuda.set_sync_debug_mode("error")
    try:
        engine.run_event(Event.AFTER_DATALOADER)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert engine.state.batch[0].shape == (16, 16)


def test_a_generator_of_the_cpu_gives_the_rows_it_gives_on_the_cpu():
    scores = torch.randn(64)
    chosen = [draw_rows(s, 16, 0.25, torch.Generator().manual_seed(3)).tolist() for s in (scores, scores.cuda())]
    assert chosen[0] == chosen[1]


def test_training_under_autocast_still_gets_gradients(batch):
    model = nn.Linear(16, 4).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        rows, targets = select_using_loss(*batch, model, F.cross_entropy)
        loss = F.cross_entropy(model(rows), targets)
    loss.backward()
    assert model.weight.grad is not None
