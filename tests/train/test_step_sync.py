"""What ranks agree on in a step, with ranks that are only played."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from engine_core import Loss, State
from engine_core.errors import ArgumentError
from engine_core.ranks import Ranks
from engine_core.trainer.loaders import IndexOrder
from engine_core.trainer.requests import StepSync
from engine_core_author import ThreadRanks

from .parts import Memory, acting, at, batches, linear, trainer


class Interrupted(Ranks):
    """A signal comes while this rank waits for its first message."""

    sync = None

    def table(self, numbers):
        table = super().table(numbers)
        if self.sync is not None:
            self.sync.signal, self.sync = 15, None
        return table


def test_a_signal_that_comes_while_a_rank_waits_counts_from_the_next_message():
    state = State(ranks=(ranks := Interrupted()))
    sync = ranks.sync = StepSync(state, set(), Any)
    sync.agree_on_end()
    assert state.loop.interrupted_by is None
    sync.agree_on_end()
    assert state.loop.interrupted_by == 15


def test_a_loader_that_gives_batches_out_of_order_is_refused_on_several_ranks():
    loader = DataLoader([1, 2])
    loader.in_order = False
    IndexOrder(loader)
    with pytest.raises(ArgumentError, match="leave in_order out"):
        IndexOrder(loader, Ranks())


def skip_one_step(state):
    """Ask after the message at the loss, on the last rank alone."""
    if state.rank == state.world_size - 1 and state.timestamp.batch == 1:
        state.skip_step()


def double_the_loss(event, state):
    state.loss = 2 * state.loss


def trained(ranks, skips):
    """Return the weights after three steps, and the losses."""
    losses = []
    callbacks = [at("batch_end", lambda state: losses.append(state.loss.item()))]
    plugins = {"algorithms": [acting(double_the_loss, "before_backward", writes=("loss",))]}
    if skips:
        plugins, callbacks = {}, [at("before_backward", skip_one_step), *callbacks]
    for callback in callbacks:
        type(callback).every_rank = True
    with trainer(batches(3) * 3, linear(), parallel=ranks, callbacks=callbacks, **plugins) as made:
        made.fit()
    return made.state.model.weight.flatten().tolist(), losses


@pytest.mark.parametrize("skips", [True, False])
def test_what_is_done_before_backward_counts_for_the_step_on_all_ranks(skips):
    (weights, losses), (same_weights, same_losses) = ThreadRanks.run(lambda ranks: trained(ranks, skips))
    expected_weights, expected_losses = trained(None, skips)
    assert weights == same_weights == pytest.approx(expected_weights, abs=1e-6)
    assert losses == same_losses == pytest.approx(expected_losses)


WEIGHT = torch.tensor([0.2, 1.0, 5.0])


def mean_of_tokens(outputs, targets):
    """Say what counts: the targets that are not class 1."""
    return Loss(F.cross_entropy(outputs, targets, ignore_index=1, reduction="sum"), (targets != 1).sum())


LOSSES = {
    "mean of tokens": mean_of_tokens,
    "class weights": nn.CrossEntropyLoss(WEIGHT),
    "ignored targets": nn.CrossEntropyLoss(WEIGHT, ignore_index=1),
    "rows": lambda outputs, targets: 2 * F.cross_entropy(outputs, targets),
    "soft targets": nn.CrossEntropyLoss(),
    "sums": nn.CrossEntropyLoss(reduction="sum"),
    "own sums": lambda o, t: Loss(F.cross_entropy(o, t, reduction="sum"), None),
    "parts": lambda o, t: {"ce": F.cross_entropy(o, t), "l2": o.square().mean(), "rest": o.detach().mean()},
    "squares": nn.MSELoss(),
}


def run_of(name, microbatch_size, ranks=None):
    """Return weights, the losses logged, and the evaluation of two epochs with uneven batches, one of a single row."""
    data, memory, model = batches(8, 5, 1, 3), Memory(), linear()
    if name in ("soft targets", "squares"):
        data = [(inputs, F.one_hot(targets, 3) * 0.8 + 0.1) for inputs, targets in data]
    given = {"loss_fn": LOSSES[name], "loggers": memory, "eval_dataloader": data, "max_duration": "2ep"}
    given["optimizers"] = lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9)
    with trainer(data, model, microbatch_size=microbatch_size, parallel=ranks, **given) as made:
        made.fit()
        return torch.cat([p.detach().flatten() for p in model.parameters()]), memory.metrics, made.state.metrics


@pytest.mark.parametrize("name", LOSSES)
def test_a_run_is_the_same_on_one_two_and_four_ranks(name):
    weights, logs, results = run_of(name, None)
    on_two, on_four = (
        ThreadRanks.run(lambda ranks, size=size: run_of(name, size, ranks), of) for size, of in ((2, 2), (None, 4))
    )
    for of_weights, of_logs, of_results in [run_of(name, 2), *on_two, *on_four]:
        torch.testing.assert_close(of_weights, weights, rtol=0, atol=2e-6)
        assert of_results == pytest.approx(results, rel=1e-5)
        if of_logs:  # rank 0's
            assert of_logs == [(step, pytest.approx(metrics, rel=1e-5, abs=1e-6)) for step, metrics in logs]


class Counting(ThreadRanks):
    """Counts the messages that it sends."""

    sent = 0

    def table(self, numbers):
        self.sent += 1
        return super().table(numbers)


@pytest.mark.parametrize(("name", "microbatch_size"), [("class weights", None), ("sums", None), ("rows", 2)])
def test_a_step_sends_one_message_also_in_microbatches(name, microbatch_size):
    def program(ranks):
        sent = []
        note = at("batch_start", lambda state: sent.append(ranks.sent))
        settings = {"loss_fn": LOSSES[name], "microbatch_size": microbatch_size, "callbacks": note}
        with trainer(batches(8, 8, 8, 8), parallel=ranks, **settings) as made:
            made.fit()
        return [after - before for before, after in pairwise(sent[1:])]  # an epoch begins with more

    assert Counting.run(program) == [[1, 1], [1, 1]]
