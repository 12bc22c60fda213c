"""A step or an evaluation that raises leaves what algorithms had changed for a while as it was before."""

import pytest
import torch

from .parts import acting, batches, linear, trainer


def fails(*_):
    raise ZeroDivisionError


def zero_weights(first, second):
    """Return an algorithm for which weights are zero from one event to the other."""
    kept = []

    def swap(event, state):
        weight = state.model.weight.data
        if event == first:
            kept.append(weight.clone())
            weight.zero_()
        else:
            weight.copy_(kept.pop())

    return acting(swap, first, second, writes=("model",))


def trainer_of(*algorithms, **settings):
    return trainer(batches(4), algorithms=algorithms, **settings)


PAIRS = [(f"{name}_start", f"{name}_end") for name in ("fit", "epoch", "batch")]
PAIRS += [(f"before_{name}", f"after_{name}") for name in ("train_batch", "loss")]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_a_loss_that_raises_leaves_no_swapped_weights(pair):
    made = trainer_of(zero_weights(*pair), loss_fn=fails)
    with made, pytest.raises(ZeroDivisionError):
        made.fit()
    assert torch.equal(made.state.model.weight, linear().weight)


@pytest.mark.parametrize(
    "pair",
    [("eval_start", "eval_end"), ("eval_batch_start", "eval_batch_end"), ("eval_before_forward", "eval_after_forward")],
    ids=str,
)
def test_an_evaluation_that_raises_leaves_no_swapped_weights_and_the_run_continues(pair):
    with trainer_of(zero_weights(*pair)) as made:
        hook = made.state.model.register_forward_hook(fails)
        with pytest.raises(ZeroDivisionError):
            made.eval(batches(4))
        assert torch.equal(made.state.model.weight, linear().weight)
        hook.remove()
        made.fit()
    assert made.state.timestamp.batch == 1


def test_a_fit_that_continues_in_an_epoch_that_an_exception_cut_begins_its_pair_again():
    heard, calls = [], iter(range(9))

    def interrupted_once(outputs, targets):
        if next(calls) == 1:
            raise KeyboardInterrupt
        return torch.nn.functional.cross_entropy(outputs, targets)

    tell = acting(lambda event, state: heard.append((str(event), state.timestamp.batch)), "epoch_start", "epoch_end")
    with trainer(batches(4, 4, 4, 4), algorithms=tell, loss_fn=interrupted_once) as made:
        with pytest.raises(KeyboardInterrupt):
            made.fit()
        made.fit()
    assert heard == [("epoch_start", 0), ("epoch_end", 1), ("epoch_start", 1), ("epoch_end", 3)]
