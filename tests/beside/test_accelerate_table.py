"""Each of the 17 algorithms in a loop with Accelerate does what it does in our Trainer, or is refused by name."""

import pytest
import torch

from . import accelerate_runs
from .accelerate_runs import DIFFERS, EVEN, SETTINGS, Run, cell, make_accelerator
from .cases import ALONE, BATCH, CASES, check_page, differences, make_loaders, make_net, train_ours

REFUSED = {"step": set(), "accumulation": {"sam", "gradient_penalty", "carried"}}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_cell_is_equal_or_says_why_not(setting, case):
    found = cell(setting, case)
    expected = "refused: " if case in REFUSED[setting] else "differs: " if (setting, case) in DIFFERS else "equal"
    assert found.startswith(expected), found


def test_these_are_the_17():
    assert len(ALONE) == 17


def test_a_reason_says_what_to_do():
    assert cell("accumulation", "sam") == (
        "refused: no closure: gradient_accumulation_steps makes a step of several batches; set it to 1"
    )


def test_losses_count_as_accelerate_weighs_them():
    """A step of a whole batch and half a batch: both count half."""
    loaders, own = make_loaders(batch=BATCH // 2, rows=6), make_net()
    run = Run(accelerator=make_accelerator(2), loaders=loaders)
    run.train(1)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.05, momentum=0.9)
    for inputs, targets, _ in loaders[0]:
        (torch.nn.functional.cross_entropy(own(inputs), targets) / 2).backward()
    optimizer.step()
    assert run.state.timestamp[:3] == (1, 1, 6)
    assert all(torch.equal(value, run.net.state_dict()[name]) for name, value in own.state_dict().items())


def test_clipping_is_ours():
    theirs, ours = Run("ema", max_grad_norm=0.5).train(), train_ours("ema", grad_clip_norm=0.5)
    assert differences(theirs, ours) == []


def test_clipping_comes_after_all_batches_of_a_step():
    loaders = make_loaders(batch=BATCH // 2, rows=EVEN)
    theirs = Run("ema", max_grad_norm=0.5, accelerator=make_accelerator(2), loaders=loaders).train()
    assert differences(theirs, train_ours("ema", grad_clip_norm=0.5, rows=EVEN, microbatch_size=BATCH // 2)) == []


def test_the_page_shows_these_cells():
    check_page("accelerate", accelerate_runs)
