"""Losses and gradients that are not finite: a warning, a skipped step, a stop, or a rollback."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from engine_core import Callback, Engine, Logger, State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.callbacks.loss_guard import LossGuard
from engine_core.errors import ArgumentError, EngineError, NonFiniteLossError, NonFiniteLossWarning

from .parts import Memory, at, batches, net, same, trainer

NAN = float("nan")


def spoiled(*bad: int, value: float = NAN) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return ten batches, in some of which a number is not finite."""
    data = batches(*[8] * 10)
    for place in bad:
        data[place][0][3, 2] = value
    return data


def exploding(*bad: int) -> Callable[[Any], Callback]:
    """Return a callback that gives some batches an infinite gradient, and leaves the loss as it is."""

    def explode(state: Any) -> None:
        if state.timestamp.batch in bad:
            state.model[0].weight.grad[1, 2] = float("inf")

    return at("after_backward", explode)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.05)


def fitted(data: Any, *callbacks: Any, **settings: Any) -> Any:
    with trainer(data, net(), optimizers=adam, callbacks=[*callbacks], **settings) as made:
        made.fit()
    return made


def learned(made: Any) -> Any:
    return dict(made.state.model.state_dict()), made.state.optimizers[0].state_dict()


@pytest.mark.parametrize("value", [NAN, float("inf")])
@pytest.mark.parametrize("bad", [(0,), (4,), (9,), (2, 3, 7)])
def test_a_skipped_batch_is_as_if_it_had_not_been(bad: tuple[int, ...], value: float) -> None:
    with pytest.warns(NonFiniteLossWarning):
        made = fitted(spoiled(*bad, value=value), LossGuard("skip"))
    rest = [batch for place, batch in enumerate(spoiled()) if place not in bad]
    assert same(learned(made), learned(fitted(rest)))
    assert made.state.timestamp.batch == 10


def test_a_batch_is_skipped_whose_gradients_alone_are_not_finite() -> None:
    with pytest.warns(NonFiniteLossWarning, match=r"^the gradient of 0.weight is not finite \(with a loss of 1"):
        made = fitted(spoiled(), exploding(3), LossGuard())
    assert same(learned(made), learned(fitted([*spoiled()[:3], *spoiled()[4:]])))


@pytest.mark.filterwarnings("ignore:BatchNorm .* each microbatch:UserWarning")
@pytest.mark.parametrize(
    "settings", [{"microbatch_size": 3}, {"precision": "amp_bf16"}, {"grad_clip_norm": 0.1}], ids=str
)
def test_it_skips_whatever_the_settings(settings: Any) -> None:
    with pytest.warns(NonFiniteLossWarning):
        made = fitted(spoiled(5), LossGuard("skip"), **settings)
    assert same(learned(made), learned(fitted([*spoiled()[:5], *spoiled()[6:]], **settings)))


def test_one_warning_names_batch_and_policy_and_each_skipped_batch_is_counted() -> None:
    memory = Memory()
    with pytest.warns(NonFiniteLossWarning) as caught:
        fitted(spoiled(2, 6), LossGuard("skip"), loggers=memory)
    assert [str(w.message) for w in caught] == [
        "the loss is nan at batch 2 (epoch 0); its step is skipped",
        "the loss is nan at batch 6 (epoch 0); its step is skipped",
    ]
    assert memory.values("loss_guard/skipped") == [(2, 1), (6, 2)]


def test_schedulers_step_on_with_the_clock_and_do_not_warn_about_a_first_step_that_was_skipped() -> None:
    schedulers = [(lambda o: lr_scheduler.ExponentialLR(o, 0.5), "1ba")]
    with pytest.warns(NonFiniteLossWarning) as caught:
        made = fitted(spoiled(0), LossGuard("skip"), schedulers=schedulers)
    assert len(caught) == 1
    assert made.state.optimizers[0].param_groups[0]["lr"] == 0.05 * 0.5**10


def test_beyond_the_limit_of_batches_in_a_row_it_stops() -> None:
    made = trainer(spoiled(1, 3, 4, 5, 6), net(), callbacks=LossGuard("skip", limit=3))
    with made, pytest.warns(NonFiniteLossWarning), pytest.raises(NonFiniteLossError) as error:
        made.fit()
    assert str(error.value) == (
        "the loss is nan at batch 6 (epoch 0), and loss_guard has skipped 3 batches in a row, its limit"
    )


def test_it_stops_before_the_step_with_weights_and_statistics_of_the_batch_before() -> None:
    made = trainer(spoiled(4), net(), optimizers=adam, callbacks=LossGuard("stop"))
    with (
        made,
        pytest.raises(NonFiniteLossError, match=r"^the loss is nan at batch 4 \(epoch 0\); the step was not taken"),
    ):
        made.fit()
    assert same(learned(made), learned(fitted(spoiled()[:4])))


def test_warning_is_what_the_trainer_does_and_covers_gradients_too() -> None:
    with pytest.warns(NonFiniteLossWarning) as caught:
        fitted(spoiled(7), exploding(3), LossGuard("warn"))
    assert [str(w.message).partition(";")[0] for w in caught] == [
        "the gradient of 0.weight is not finite (with a loss of 1.383) at batch 3 (epoch 0)",
        "the training loss is nan at batch 4 (epoch 0)",
    ]


def test_a_guard_changes_nothing_where_all_is_finite() -> None:
    for policy in ("warn", "skip", "stop"):
        assert same(learned(fitted(spoiled(), LossGuard(policy))), learned(fitted(spoiled())))


def test_a_gradient_of_which_only_the_sum_overflows_is_finite() -> None:
    large = at("after_backward", lambda state: state.model[0].weight.grad.fill_(3e38))
    with trainer(spoiled(), net(), max_duration="1ba", callbacks=[large, LossGuard("stop")]) as made:
        made.fit()


def test_sparse_gradients_are_checked_too() -> None:
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True))
    data = [(torch.tensor([1, 1, 2]), torch.tensor([0, 1, 2]))] * 3
    with trainer(data, model, max_duration="2ep", callbacks=LossGuard("stop")) as made:
        made.fit("1ep")
        model[0].weight.data[1, 1] = NAN
        with pytest.raises(NonFiniteLossError):
            made.fit()


def test_the_policy_is_one_of_four() -> None:
    with pytest.raises(ArgumentError, match="policy='rolback' is unknown; did you mean 'rollback'"):
        LossGuard("rolback")
    with pytest.raises(ArgumentError, match="limit=0"):
        LossGuard(limit=0)


def rolled_back(folder: Path, data: Any, *callbacks: Any, interval: str = "3ba", **settings: Any) -> Any:
    return fitted(
        data, CheckpointSaver(folder, interval, keep_last=None), LossGuard("rollback"), *callbacks, **settings
    )


def test_it_continues_from_the_latest_checkpoint_with_the_data_that_follows(tmp_path: Path) -> None:
    with pytest.warns(NonFiniteLossWarning, match=f"restored from {tmp_path / 'ep0-ba3'}$"):
        made = rolled_back(tmp_path, spoiled(5))
    rest = [*spoiled()[:3], *spoiled()[6:]]  # what came between the checkpoint and the loss is left out
    assert same(learned(made), learned(fitted(rest)))
    assert made.state.timestamp.batch == 10


def test_each_further_batch_in_a_row_goes_back_one_checkpoint_more(tmp_path: Path) -> None:
    with pytest.warns(NonFiniteLossWarning) as caught:
        made = rolled_back(tmp_path, spoiled(6, 7))
    assert [str(w.message).rpartition("-")[2] for w in caught] == ["ba6", "ba3"]
    assert same(learned(made), learned(fitted([*spoiled()[:3], *spoiled()[8:]])))


def test_schedules_are_not_rolled_back(tmp_path: Path) -> None:
    schedulers = [(lambda o: lr_scheduler.ExponentialLR(o, 0.5), "1ba")]
    with pytest.warns(NonFiniteLossWarning):
        made = rolled_back(tmp_path, spoiled(5), schedulers=schedulers)
    assert made.state.optimizers[0].param_groups[0]["lr"] == 0.05 * 0.5**10


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ((1,), "there is no regular checkpoint to go back to yet"),
        ((3, 4), "to go back to before that of batch 3, already tried"),
    ],
)
def test_without_a_checkpoint_to_go_back_to_it_stops(bad: Any, why: str, tmp_path: Path) -> None:
    made = trainer(spoiled(*bad), net(), callbacks=[CheckpointSaver(tmp_path, "3ba"), LossGuard("rollback")])
    with made, warnings.catch_warnings(), pytest.raises(NonFiniteLossError, match=why):
        warnings.simplefilter("ignore", NonFiniteLossWarning)
        made.fit()


def test_without_a_saver_it_refuses_at_the_start() -> None:
    with (
        trainer(callbacks=LossGuard("rollback")) as made,
        pytest.raises(ArgumentError, match="add \\('checkpoint_saver'"),
    ):
        made.fit()


def test_checkpoints_that_lie_ahead_are_not_restored(tmp_path: Path) -> None:
    fitted(spoiled(), CheckpointSaver(tmp_path, "3ba", keep_last=None))
    with pytest.warns(NonFiniteLossWarning, match="restored from .*ep0-ba3$"):
        rolled_back(tmp_path, spoiled(4), load_path=tmp_path / "ep0-ba3", seed=None)


@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_a_run_that_was_guarded_is_resumed_exactly(policy: str, tmp_path: Path) -> None:
    def run(folder: Path, **settings: Any) -> tuple[Any, Memory]:
        memory, saver = Memory(), CheckpointSaver(folder, "3ba", keep_last=None)
        with pytest.warns(NonFiniteLossWarning):
            made = fitted(spoiled(4, 7, 8), saver, LossGuard(policy), loggers=memory, seed=1, **settings)
        return learned(made), memory

    whole, logged = run(tmp_path)
    for place in (3, 6):
        rest, then = run(tmp_path, load_path=tmp_path / f"ep0-ba{place}")
        assert same(rest, whole)
        assert same(then.metrics, logged.metrics[len(logged.metrics) - len(then.metrics) :])


def test_a_custom_loop_that_steps_all_the_same_gets_an_error() -> None:
    model = nn.Linear(4, 3)
    engine = Engine(State(model=model, loss=torch.tensor(NAN), callbacks=[LossGuard()]), Logger())
    with engine, warnings.catch_warnings():
        warnings.simplefilter("ignore", NonFiniteLossWarning)
        engine.run_event("after_train_batch")
        engine.state.loop.skip_requested = False  # as a loop does that has left it out
        engine.run_event("after_train_batch")
        with pytest.raises(EngineError, match="and it was ignored"):
            engine.run_event("after_train_batch")


def test_a_state_that_it_never_saved_is_refused() -> None:
    with pytest.raises(ArgumentError, match="skipped=-1"):
        LossGuard().load_state_dict({"skipped": -1})


def test_by_hand_a_skipped_step_is_a_step_left_out() -> None:
    asked = iter([False, True, False])
    model = net()
    oracle = copy.deepcopy(model)
    data = batches(8, 8, 8)
    with trainer(
        data, model, callbacks=at("after_train_batch", lambda s: s.skip_step() if next(asked) else None)
    ) as made:
        made.fit()
    optimizer = torch.optim.SGD(oracle.parameters(), lr=0.1)
    for place, (inputs, targets) in enumerate(data):
        optimizer.zero_grad()
        nn.functional.cross_entropy(oracle(inputs), targets).backward()
        if place != 1:
            optimizer.step()
    assert same(dict(model.state_dict()), dict(oracle.state_dict()))
    assert made.state.loop.skip_requested is False
