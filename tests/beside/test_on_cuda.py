"""What only a CUDA device shows of the adapters. Skipped where there is none."""

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from .accelerate_runs import Run
from .cases import CASES, ended, make_algorithms, make_loaders, train_ours
from .lightning_runs import ITS_WARNINGS, Digits, make_callback, make_trainer
from .transformers_runs import KEYS, Losses, left_by
from .transformers_runs import make_trainer as make_transformers_trainer

pytestmark = [*ITS_WARNINGS, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(autouse=True)
def _one_kernel_for_each_operation(monkeypatch):
    """Have the same convolutions each time, and no device that another test chose for the process."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def with_accelerate(case, _):
    run = Run(case, accelerator=Accelerator())
    return run.train(), run.state


def with_lightning(case, _):
    module, callback = Digits(), make_callback(case)
    make_trainer([callback], accelerator="gpu").fit(module, *make_loaders())
    return ended(module.net, callback.state, module.losses), callback.state


def with_transformers(case, folder):
    losses, args = Losses(), {"use_cpu": False, "remove_unused_columns": case != "carried"}
    algorithms = make_algorithms(case, keys=KEYS)
    trainer = make_transformers_trainer(folder, algorithms, args=args, engine_callbacks=[losses])
    trainer.train()
    return left_by(trainer, losses), trainer.engine_state


TRAINED_WITH = {"accelerate": with_accelerate, "lightning": with_lightning, "transformers": with_transformers}


def furthest(one, other):
    """Return the largest difference of two numbers of the same name and place."""
    assert [*one] == [*other]
    return max(((value.cpu() - other[name].cpu()).abs().max().item() for name, value in one.items()), default=0.0)


ROUNDING = 1e-6


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("library", TRAINED_WITH)
def test_an_algorithm_does_on_the_card_what_it_does_in_our_trainer(library, case, tmp_path):
    ours = train_ours(case, device="cuda")
    theirs, state = TRAINED_WITH[library](case, tmp_path)
    assert state.device.type == "cuda"
    assert theirs.clock == ours.clock
    assert theirs.losses == pytest.approx(ours.losses, rel=1e-5)
    # Most are equal to the bit. Where convolutions or sizes change, the card adds up in an order of its own.
    assert furthest(theirs.weights, ours.weights) < ROUNDING
    assert furthest(theirs.averages, ours.averages) < ROUNDING
