"""The plugin in tests/api1, made for hook API 1, trains. See tests/core/test_api1.py for what it is."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from .parts import batches, linear, trainer

EPOCH = """
init fit_start epoch_start
before_dataloader after_dataloader batch_start before_train_batch before_forward after_forward before_loss after_loss
before_backward after_backward after_train_batch batch_end batch_checkpoint
before_dataloader after_dataloader batch_start before_train_batch before_forward after_forward before_loss after_loss
before_backward after_backward after_train_batch batch_end batch_checkpoint
before_dataloader epoch_end
eval_start eval_batch_start eval_before_forward eval_after_forward eval_batch_end eval_end
epoch_checkpoint fit_end
"""


@pytest.fixture
def run(api1):
    """Return a trainer that has trained an epoch with everything of the plugin, switched on by name."""
    run = trainer(
        batches(8, 8),
        max_duration="1ep",
        eval_dataloader=batches(4),
        algorithms=["double_loss", ("api1_scale_inputs", {"factor": 3}), ("api1_keep_first", {"keep": 5}), "anywhere"],
        callbacks=["api1_witness", "api1_bystander"],
        loggers=["api1_ledger"],
    )
    run.engine.host.register(api1.Hooks())
    with run:
        run.fit()
    return run


def test_its_callback_hears_every_event_of_hook_api_1(run):
    assert run.state.callbacks[0].heard == EPOCH.split()


def test_its_algorithms_change_the_training_as_they_always_did(run):
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (inputs, targets), factor in zip(batches(8, 8), (2, 1), strict=True):  # the loss is doubled in the first half
        optimizer.zero_grad()
        (factor * cross_entropy(model(3 * inputs[:5]), targets[:5])).backward()
        optimizer.step()

    torch.testing.assert_close(run.state.model.weight, model.weight, rtol=0, atol=0)
    torch.testing.assert_close(run.state.model.bias, model.bias, rtol=0, atol=0)


def test_its_log_and_its_hooks_take_part(api1, run):
    written = [entry for entry in api1.journal if entry.startswith(("Ledger: api1", "Ledger after", "Hooks"))]
    step = [
        "Hooks first",
        "Ledger after batch {}",
        "Hooks at batch_end: Anywhere=7#0",
        "Ledger: api1/hooks is 1 at step {}",
    ]
    first, second = (
        [entry.format(batch) for entry in ("Hooks around: 3 traces", *step, "Hooks last")] for batch in (1, 2)
    )
    begun = ["Hooks around: 0 traces", "Ledger: api1/kept is 5 at step 0"]
    assert written == ["Ledger: api1/keep is 5", *begun, *first, begun[0], "Ledger: api1/kept is 10 at step 1", *second]
