"""What Hugging Face's Trainer does around a step is kept: clipping, schedulers, precision, counting, logging."""

import math

import pytest
import torch
from torch import nn

from engine_core import Algorithm, AlgorithmMetadata, Event, Objective
from engine_core_author import RecordingDestination
from engine_core_author.probes import at_events
from engine_core_transformers.offers import offers_of
from insight_plugin import GradientNorm

from . import cases
from .cases import LEARNING_RATE, differences, make_algorithms, train_ours, weights_of_words
from .transformers_runs import KEYS, Digits, Losses, Net, left_by, make_trainer, train_words

QUIET = {"eval_strategy": "no"}


def run(folder, algorithms=(), *, args=None, callbacks=(), **given):
    """Train, and return the trainer and what it left."""
    losses = Losses()
    trainer = make_trainer(folder, algorithms, args=args, engine_callbacks=[losses, *callbacks], **given)
    trainer.train()
    return trainer, left_by(trainer, losses)


@pytest.mark.filterwarnings("ignore:nothing reads item 2 of the batch")
def test_the_norm_of_the_gradients_is_that_of_our_trainer(tmp_path):
    memory, own = RecordingDestination(), RecordingDestination()
    run(tmp_path, args={"max_grad_norm": 0.5, **QUIET}, callbacks=[GradientNorm()], engine_loggers=[memory])
    train_ours("none", callbacks=[GradientNorm()], loggers=[own], grad_clip_norm=0.5)

    def norms(destination):
        return [(step, logged) for step, logged in destination.metrics if "train/gradient_norm" in logged]

    assert norms(memory) == norms(own)
    assert "train/gradient_norm_clipped" in norms(memory)[0][1]


@pytest.mark.parametrize("event", [Event.AFTER_DATALOADER, Event.BATCH_CHECKPOINT])
def test_stop_training_ends_after_that_batch(event, tmp_path):
    def stop(_, state):
        if state.timestamp.batch == (1 if event is Event.AFTER_DATALOADER else 2):
            state.stop_training()

    trainer, _ = run(tmp_path, args=QUIET, callbacks=[at_events([event], stop)])
    assert trainer.state.global_step == trainer.engine_state.timestamp.batch == 2
    assert trainer.engine_state.timestamp.epoch == 0

    trainer.train()  # asked anew
    assert trainer.state.global_step == 2


@pytest.mark.parametrize("event", [Event.EVAL_END, Event.EPOCH_CHECKPOINT])
def test_what_asks_to_stop_at_the_end_of_an_epoch_ends_there(event, tmp_path):
    stop = at_events([event], lambda _, state: state.stop_training())
    trainer, left = run(tmp_path, args={"num_train_epochs": 5}, callbacks=[stop])
    assert (trainer.engine_state.timestamp.epoch, trainer.state.global_step, len(left.losses)) == (1, 7, 1)


def test_learning_rates_that_an_algorithm_sets_stay_although_the_trainer_steps_a_scheduler(tmp_path, monkeypatch):
    rates = []
    watch = at_events([Event.BATCH_END], lambda _, state: rates.append(state.optimizers[0].param_groups[0]["lr"]))
    monkeypatch.setitem(cases.CASES, "swa", {"swa": {"start": 0.5, "swa_lr": 0.2, "anneal": "4ba"}})
    run(tmp_path, make_algorithms("swa"), args={"lr_scheduler_type": "linear", **QUIET}, callbacks=[watch])

    falling = [LEARNING_RATE * (1 - step / 14) for step in range(1, 7)]
    assert rates[:6] == pytest.approx(falling)
    assert rates[7:] == pytest.approx([*(0.025 + (0.2 - 0.025) * n / 4 for n in (1, 2, 3, 4)), 0.2, 0.2, 0.2], rel=1e-6)


def test_the_loss_of_the_first_pass_is_logged(tmp_path):
    args = {"logging_steps": 1, "max_steps": 2, **QUIET}
    logged = []
    for case in ("none", "sam"):
        trainer, _ = run(tmp_path, make_algorithms(case, keys=KEYS), args=args)
        logged.append([log["loss"] for log in trainer.state.log_history if "loss" in log])
    assert logged[0][0] == logged[1][0] and logged[0][1] != logged[1][1]


class FirstRows(Algorithm):
    """Keeps three rows of each batch."""

    metadata = AlgorithmMetadata(events=("after_dataloader",), writes=("batch",))

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        state.batch = {key: value[:3] for key, value in state.batch.items()}


class Counted(nn.Module):
    """A model that is told how many items there are, as those of transformers are."""

    def __init__(self):
        super().__init__()
        self.net, self.told = Net(), []

    def forward(self, pixel_values, labels=None, num_items_in_batch=None, **kwargs):
        found = self.net(pixel_values)
        if labels is not None:
            self.told.append(None if num_items_in_batch is None else int(num_items_in_batch))
            reduction = "mean" if num_items_in_batch is None else "sum"
            loss = nn.functional.cross_entropy(found["logits"], labels, reduction=reduction)
            found = {"loss": loss / (num_items_in_batch or 1), **found}
        return found


def test_items_are_counted_on_the_batches_as_algorithms_leave_them(tmp_path):
    model, args = Counted(), {"gradient_accumulation_steps": 2, "num_train_epochs": 1, **QUIET}
    trainer, _ = run(tmp_path, [FirstRows()], model=model, loss_fn=None, args=args)
    assert model.told == [6, 6, 6, 6, 6, 6, 3]
    assert trainer.engine_state.timestamp[:3] == (1, 4, 53)


@pytest.mark.parametrize("model", [Net, Counted])
def test_a_loss_of_ones_own_is_divided_by_what_it_counts_whatever_the_model_takes(model, tmp_path):
    args = {"gradient_accumulation_steps": 2, **QUIET}
    made = model()
    trainer, _ = run(tmp_path, model=made, args=args)
    net = made if model is Net else made.net
    ours = train_ours("none", batch=16, microbatch_size=8)
    assert all(torch.equal(net.net.state_dict()[name], weight) for name, weight in ours.weights.items())
    assert trainer.engine_state.timestamp[:3] == (2, 8, 106)


@pytest.mark.parametrize("steps", [1, 2, 4])  # 6 batches: the last of two steps of 4 has half
def test_places_count_alike_in_batches_of_which_few_count(steps, tmp_path):
    weights, clock, losses = weights_of_words(4 * steps)
    theirs, their_clock, logged = train_words(tmp_path, steps)
    assert theirs == pytest.approx(weights, rel=1e-5, abs=1e-7)
    assert their_clock == clock
    assert logged == pytest.approx(sum(losses) / len(losses), rel=1e-3)


def test_half_an_epoch_is_a_horizon_in_steps(tmp_path):
    trainer, _ = run(tmp_path, make_algorithms("swa"), args={"num_train_epochs": 2.5, **QUIET})
    assert str(trainer.engine_state.max_duration) == f"{math.ceil(2.5 * 7)}ba"
    assert trainer.engine_state.get_elapsed_duration().value == 1
    assert trainer.engine_state.timestamp[:2] == (2, 18)


def test_a_loss_in_parts_is_summed(tmp_path):
    def parts(logits, labels, reduction="mean"):
        loss = nn.functional.cross_entropy(logits, labels, reduction=reduction)
        return {"half": loss / 2, "rest": loss / 2} if logits.requires_grad else loss

    _, left = run(tmp_path, loss_fn=parts, train_dataset=Digits(), args=QUIET)
    assert differences(left._replace(losses=[]), train_ours("none")._replace(losses=[])) == []


def test_a_graph_is_not_offered_to_who_scales_the_loss(tmp_path):
    args = make_trainer(tmp_path).args
    args.fp16 = True
    offers = offers_of("5", args, Objective(nn.CrossEntropyLoss()))
    assert {"closure", "create_graph"}.isdisjoint(offers.gives)
    assert offers.why["create_graph"] == offers.why["closure"] == "the scaler of fp16 scales once a step; set bf16=True"
