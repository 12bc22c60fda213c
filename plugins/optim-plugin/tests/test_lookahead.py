"""Lookahead equals the hand-written loop, comes before averages, and is resumed from a checkpoint."""

import optim_parts
import pytest
import torch
from optim_parts import Recorder, pause_after, same
from parts import batches, net
from torch.nn import functional as F

from engine_core import Engine, Event, Logger, State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core_author import ThreadRanks
from optim_plugin import EMA, Lookahead

DATA = batches(8, 8, 8, 8)


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def make_trainer(*algorithms, callbacks=(), **settings):
    model = net()
    given = {"model": model, "data": DATA, "optimizers": make_optimizer(model), **settings}
    return optim_parts.make_trainer(algorithms, *callbacks, **given)


def train_by_hand(k, alpha):
    """Return the weights and buffers after each of 8 batches; the momentum goes on, and so does BatchNorm."""
    model, steps = net(), []
    optimizer, slow = make_optimizer(model), [p.detach().clone() for p in model.parameters()]
    for step, (inputs, targets) in enumerate(DATA * 2, start=1):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        if step % k == 0:
            with torch.no_grad():
                for own, parameter in zip(slow, model.parameters(), strict=True):
                    parameter.copy_(own.lerp_(parameter, alpha))
        steps.append({name: value.clone() for name, value in model.state_dict().items()})
    return steps


@pytest.mark.parametrize(("k", "alpha"), [(1, 0.5), (3, 0.8), (5, 0.25)])
def test_training_equals_the_hand_written_loop_and_buffers_are_left_alone(k, alpha):
    recorder, lookahead = Recorder(), Lookahead(k, alpha)
    with make_trainer(lookahead, callbacks=[recorder]) as trainer:
        trainer.fit("1ep")
        trainer.fit()  # with the slow weights of the first
    assert lookahead.state_dict()["average"].keys() == dict(net().named_parameters()).keys()
    for ours, hand in zip(recorder.steps, train_by_hand(k, alpha), strict=True):
        assert same(ours, hand)


@pytest.mark.parametrize("batch", [2, 3, 5])
def test_a_run_resumed_between_two_moves_is_that_of_one_go(batch, tmp_path):
    with make_trainer(Lookahead(3), callbacks=[CheckpointSaver(tmp_path), pause_after(batch)]) as trainer:
        trainer.fit()
    with make_trainer(Lookahead(3), load_path=tmp_path) as trainer:
        trainer.fit()
    assert same(dict(trainer.state.model.state_dict()), train_by_hand(3, 0.8)[-1])


def test_an_average_is_of_the_weights_that_training_goes_on_from():
    with Engine(State(algorithms=[EMA(), Lookahead()]), Logger()) as engine:
        assert [place.name for place in engine.explain(Event.BATCH_END)] == ["lookahead", "ema"]


def test_ranks_have_the_weights_of_one_process():
    def train(ranks):
        with make_trainer(Lookahead(3), parallel=ranks) as trainer:
            trainer.fit()
        return dict(trainer.state.model.state_dict())

    one, other = ThreadRanks.run(train)
    assert same(one, other)


@pytest.mark.parametrize("arguments", [{"k": 0}, {"k": 1.5}, {"alpha": 0}, {"alpha": 1}, {"alpha": "half"}], ids=str)
def test_an_impossible_pace_is_refused(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises((ValueError, TypeError), match=f"{name}={value!r}"):
        Lookahead(**arguments)
