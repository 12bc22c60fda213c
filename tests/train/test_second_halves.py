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


class DoubleTargets(Algorithm):
    """Targets are doubled for the loss."""

    metadata = AlgorithmMetadata(events=("before_loss", "after_loss"), writes=("batch",))

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        inputs, targets = state.batch
        state.batch = (inputs, targets * 2 if event == "before_loss" else targets / 2)


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


def test_an_evaluation_that_raises_in_a_fit_ends_its_own_pairs_once():
    trainer = trainer_of(ZeroWeights("eval_start", "eval_end"), eval_dataloader=[(torch.ones(4, 3), torch.ones(4, 1))])
    with trainer, pytest.raises(RuntimeError):
        trainer.fit()
    assert not torch.equal(trainer.state.model.weight, torch.zeros(1, 2))


def test_a_microbatch_is_restored_before_the_whole_batch_is_back():
    seen = []

    class Watch(DoubleTargets):
        def apply(self, event, state, logger):
            super().apply(event, state, logger)
            seen.append((str(event), len(state.batch[0]), state.batch[1][0].item()))

    trainer = trainer_of(Watch(), loss_fn=fails, microbatch_size=1)
    with trainer, pytest.raises(ZeroDivisionError):
        trainer.fit()
    assert seen == [("before_loss", 1, 2.0), ("after_loss", 1, 1.0)]
    assert trainer.state.batch[1].tolist() == [[1.0]] * 4


def test_a_fit_can_continue_after_ctrl_c_as_if_the_step_had_not_begun():
    calls = []

    def interrupted_once(outputs, targets):
        calls.append(targets[0].item())
        if len(calls) == 1:
            raise KeyboardInterrupt
        return torch.nn.functional.mse_loss(outputs, targets)

    trainer = trainer_of(DoubleTargets(), loss_fn=interrupted_once, batches=3)
    with trainer:
        with pytest.raises(KeyboardInterrupt):
            trainer.fit()
        trainer.fit()
    assert calls == [2.0, 2.0, 2.0]


def test_a_fit_that_continues_in_an_epoch_that_an_exception_cut_begins_its_pair_again():
    heard = []

    class Tell(Algorithm):
        metadata = AlgorithmMetadata(events=("epoch_start", "epoch_end"))

        def match(self, event, state):
            return event in self.metadata.events

        def apply(self, event, state, logger):
            heard.append((str(event), state.timestamp.batch))

    def interrupted_once(outputs, targets, calls=[]):  # noqa: B006  it counts
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return torch.nn.functional.mse_loss(outputs, targets)

    trainer = trainer_of(Tell(), loss_fn=interrupted_once, batches=4)
    with trainer:
        with pytest.raises(KeyboardInterrupt):
            trainer.fit()
        trainer.fit()
    assert heard == [("epoch_start", 0), ("epoch_end", 1), ("epoch_start", 1), ("epoch_end", 3)]
