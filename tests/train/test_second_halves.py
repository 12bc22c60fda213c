"""A step or an evaluation that raises leaves what algorithms had changed for a while as it was before."""

import pytest
import torch

from engine_core import Algorithm, AlgorithmMetadata, Trainer


class ZeroWeights(Algorithm):
    """Weights are zero from one event to the other."""

    def __init__(self, first, second):
        self.metadata = AlgorithmMetadata(events=(first, second), writes=("model",))
        self.kept = None

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        weight = state.model.weight.data
        if event == self.metadata.events[0]:
            self.kept = weight.clone()
            weight.zero_()
        else:
            weight.copy_(self.kept)


def fails(*_):
    raise ZeroDivisionError


def trainer_of(*algorithms, loss_fn=None, batches=1, **options):
    model = torch.nn.Linear(2, 1)
    data = [(torch.ones(4, 2), torch.ones(4, 1)) for _ in range(batches)]
    return Trainer(
        model,
        data,
        max_duration="1ep",
        loss_fn=loss_fn or torch.nn.MSELoss(),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        algorithms=algorithms,
        **options,
    )


PAIRS = [
    ("fit_start", "fit_end"),
    ("epoch_start", "epoch_end"),
    ("batch_start", "batch_end"),
    ("before_train_batch", "after_train_batch"),
    ("before_loss", "after_loss"),
]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_a_loss_that_raises_leaves_no_swapped_weights(pair):
    trainer = trainer_of(ZeroWeights(*pair), loss_fn=fails)
    weight = trainer.state.model.weight.detach().clone()
    with trainer, pytest.raises(ZeroDivisionError):
        trainer.fit()
    assert torch.equal(trainer.state.model.weight, weight)


@pytest.mark.parametrize(
    "pair",
    [("eval_start", "eval_end"), ("eval_batch_start", "eval_batch_end"), ("eval_before_forward", "eval_after_forward")],
    ids=str,
)
def test_an_evaluation_that_raises_leaves_no_swapped_weights_and_the_run_continues(pair):
    trainer = trainer_of(ZeroWeights(*pair))
    weight = trainer.state.model.weight.detach().clone()
    hook = trainer.state.model.register_forward_hook(fails)
    with trainer:
        with pytest.raises(ZeroDivisionError):
            trainer.eval([(torch.ones(4, 2), torch.ones(4, 1))])
        assert torch.equal(trainer.state.model.weight, weight)
        hook.remove()
        trainer.fit()
    assert trainer.state.timestamp.batch == 1


def test_a_fit_that_continues_in_an_epoch_that_an_exception_cut_begins_its_pair_again():
    heard, calls = [], []

    class Tell(Algorithm):
        metadata = AlgorithmMetadata(events=("epoch_start", "epoch_end"))

        def match(self, event, state):
            return True

        def apply(self, event, state, logger):
            heard.append((str(event), state.timestamp.batch))

    def interrupted_once(outputs, targets):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return torch.nn.functional.mse_loss(outputs, targets)

    with trainer_of(Tell(), loss_fn=interrupted_once, batches=4) as trainer:
        with pytest.raises(KeyboardInterrupt):
            trainer.fit()
        trainer.fit()
    assert heard == [("epoch_start", 0), ("epoch_end", 1), ("epoch_start", 1), ("epoch_end", 3)]
