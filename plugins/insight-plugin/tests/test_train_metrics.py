"""The callback `train_metrics`: metrics of the training's own outputs and targets, logged each epoch."""

import pytest
import torch
from parts import Memory, acting, at, batches, linear, net, steps_by_hand, trainer
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State
from engine_core.batch import ItemSwap
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import ArgumentError, ArgumentTypeError, CheckpointWarning
from engine_core_author import ThreadRanks
from insight_plugin import TrainMetrics

NAME = "train/right"


class Right:
    """The share of rows that are right; keeps all that it was given, too."""

    def reset(self):
        self.right = self.seen = 0

    def update(self, outputs, targets):
        assert not outputs.requires_grad and not torch.is_grad_enabled()
        self.right += int((outputs.argmax(1) == targets).sum())
        self.seen += len(targets)

    def compute(self):
        return self.right / self.seen

    def merge_state(self, others):
        for other in others:
            self.right, self.seen = self.right + other.right, self.seen + other.seen


def by_hand(*sizes):
    """Return the share of rows that were right while training, by the step at the end of each of two epochs."""
    right = [int((o.argmax(1) == targets).sum()) for _, o, targets, _ in steps_by_hand(*sizes, epochs=2)]
    n = len(sizes)
    return [(n, sum(right[:n]) / sum(sizes)), (2 * n, sum(right[n:]) / sum(sizes))]


def logged(**settings):
    memory = Memory()
    given = {"max_duration": "2ep", "metrics": {"right": Right()}, "callbacks": "train_metrics", "loggers": memory}
    trainer(batches(8, 5, 8), **{**given, **settings}).fit()
    return memory.values(NAME)


@pytest.mark.parametrize(
    "settings",
    [{}, {"microbatch_size": 3}, {"eval_dataloader": batches(3), "eval_interval": "1ba"}],
    ids=["whole batches", "microbatches", "evaluations in between"],
)
def test_they_are_those_of_the_rows_as_they_were_trained_on(settings):
    assert logged(**settings) == by_hand(8, 5, 8)


def test_a_name_that_the_training_logs_is_refused():
    with pytest.raises(ArgumentError, match="'loss'"):
        TrainMetrics({"loss": Right()})
    with pytest.raises(ArgumentError, match="train_metrics can't log a metric called 'gradient_norm'"):
        logged(metrics={"gradient_norm": Right()})


def test_metrics_of_its_own_come_in_place_of_the_trainers():
    assert logged(metrics=None, callbacks=TrainMetrics({"right": Right()})) == by_hand(8, 5, 8)


def test_those_of_torchmetrics_and_dropout_see_the_model_in_train_mode():
    modes = []
    metrics = {"right": MulticlassAccuracy(3, average="micro")}
    watch = at("after_forward", lambda state: modes.append(state.model.training))
    assert logged(metrics=metrics, callbacks=["train_metrics", watch]) == [
        (step, pytest.approx(share)) for step, share in by_hand(8, 5, 8)
    ]
    assert set(modes) == {True}


def one_hot(swap):
    """Return what replaces the targets for the loss alone, as label smoothing does."""

    def act(event, state):
        if event is Event.BEFORE_LOSS:
            swap.put(state, nn.functional.one_hot(state.batch[1], 3).float())
        else:
            swap.back(state)

    return act


def again(event, state):
    """Compute gradients at other weights before the step."""
    model = state.model
    closure = state.loop.closure
    model.weight.data.neg_()
    closure()
    model.weight.data.neg_()
    closure()  # the gradients of the step as they were, so that it trains alike


@pytest.mark.parametrize(
    "algorithm",
    [
        acting(one_hot(ItemSwap(1)), "before_loss", "after_loss", writes=("batch",)),
        acting(again, "after_train_batch", writes=("model",)),
    ],
    ids=["other targets", "a second forward"],
)
def test_targets_are_those_of_the_forward_and_each_batch_counts_once(algorithm):
    assert logged(algorithms=algorithm) == [(step, pytest.approx(share)) for step, share in by_hand(8, 5, 8)]


class Mixes(Algorithm):
    """Mixes nothing, but says so, in the batches that are listed."""

    def __init__(self, event, *which):
        self.metadata = AlgorithmMetadata(  # this instance's own
            events=(event,), tags=("target_mixing",), writes=()
        )
        self.which = which

    def match(self, event, state):
        return state.timestamp.batch in self.which

    def apply(self, event, state, logger):
        pass


@pytest.mark.parametrize("event", ["after_dataloader", "before_loss"])
def test_a_batch_in_which_targets_are_mixed_is_left_out_and_told_of_once(event):
    with pytest.warns(UserWarning, match="leaves out the batches in which Mixes mixes targets") as caught:
        values = logged(algorithms=Mixes(event, 0, 1, 3, 4, 5), optimizers=lambda p: torch.optim.SGD(p, lr=0.0))
    inputs, targets = batches(8, 5, 8)[2]
    assert values == [(3, (linear()(inputs).argmax(1) == targets).sum() / 8)]
    assert len(caught) == 1


def test_an_epoch_in_two_fits_has_one_value():
    memory = Memory()
    made = trainer(batches(8, 5, 8), max_duration="2ep", callbacks=TrainMetrics({"right": Right()}), loggers=memory)
    made.fit("2ba")
    made.fit()
    assert memory.values(NAME) == by_hand(8, 5, 8)


METRICS = {"plain": Right, "torchmetrics": lambda: MulticlassAccuracy(3, average="micro")}


@pytest.mark.parametrize("kind", METRICS)
@pytest.mark.parametrize("batch", [2, 3])
def test_a_resumed_run_logs_the_values_of_the_run_that_was_not_interrupted(kind, batch, tmp_path):
    def run(memory, duration, *savers, **settings):
        given = {"metrics": {"right": METRICS[kind]()}, "callbacks": [TrainMetrics(), *savers], "seed": 1}
        with trainer(batches(8, 5, 8), net(), max_duration="2ep", loggers=memory, **given, **settings) as made:
            made.fit(duration)

    whole, first, second = Memory(), Memory(), Memory()
    run(whole, "2ep")
    run(first, f"{batch}ba", CheckpointSaver(tmp_path, "1ba"))
    run(second, f"{6 - batch}ba", CheckpointSaver(tmp_path, "1ba"), autoresume=True)
    assert first.metrics + second.metrics == whole.metrics


def test_what_is_saved_after_the_last_batch_of_an_epoch_is_enough_for_its_value():
    saved = []
    first, second = (TrainMetrics({"right": METRICS["torchmetrics"]()}) for _ in range(2))
    memory, again = Memory(), Memory()
    save = at("batch_checkpoint", lambda state: saved.append(first.state_dict()))
    trainer(batches(8, 5), callbacks=[first, save], loggers=memory).fit()
    second.load_state_dict(saved[-1])
    assert second.state_dict() == saved[-1]
    state, logger = State(linear(), loss_fn=nn.CrossEntropyLoss(), device="cpu"), Logger([again])
    second.fit_start(state, logger)
    second.epoch_end(state, logger)
    assert [value for _, value in again.values(NAME)] == [value for _, value in memory.values(NAME)]


def logged_by_ranks(kind, folder, *parts):
    """Return what rank 0 logs of parts of a run, with so many ranks, each of which resumes the one before."""

    def program(ranks, duration):
        callbacks = [TrainMetrics({"right": METRICS[kind]()}), CheckpointSaver(folder, "1ba")]
        given = {"max_duration": "2ep", "loggers": (memory := Memory()), "callbacks": callbacks, "seed": 1}
        with trainer(batches(8, 1, 8), linear(), parallel=ranks, autoresume=True, **given) as made:
            made.fit(duration)
        return memory.values(NAME)

    return [
        value
        for duration, size in parts
        for value in ThreadRanks.run(lambda ranks, duration=duration: program(ranks, duration), size)[0]
    ]


@pytest.mark.parametrize("kind", METRICS)
def test_on_several_ranks_a_resumed_epoch_is_that_of_one_process(kind, tmp_path):
    alone = logged_by_ranks(kind, tmp_path / "alone", ("2ep", 1))
    assert logged_by_ranks(kind, tmp_path / "resumed", ("2ba", 3), ("4ba", 3)) == alone


def test_on_another_number_of_ranks_a_resumed_epoch_has_the_rows_of_its_rest(tmp_path):
    with pytest.warns(CheckpointWarning) as caught:
        values = logged_by_ranks("plain", tmp_path, ("1ba", 2), ("2ba", 3))
    assert "train_metrics was saved on 2 ranks and resumes on 3" in " ".join(str(each.message) for each in caught)
    assert [round(share * 9, 6).is_integer() for _, share in values] == [True]


def test_a_metric_that_cannot_be_saved_is_told_of_once_and_the_checkpoint_is_written(tmp_path):
    unsavable = Right()
    unsavable.rule = torch.argmax
    with pytest.warns(CheckpointWarning, match="train_metrics can't save metric 'right' .*of the rest") as caught:
        logged(metrics={"right": unsavable}, callbacks=["train_metrics", CheckpointSaver(tmp_path, "1ba")])
    assert len(caught) == 1


def test_a_metric_that_computes_no_number_is_refused_after_the_first_batch():
    pair = Right()
    pair.compute = lambda: torch.zeros(2)
    made = trainer(batches(8, 8), callbacks=TrainMetrics({"pair": pair}), loggers=Memory())
    with pytest.raises(ArgumentError, match=r"metric 'train/pair' computed a Tensor of shape \(2,\)"):
        made.fit()
    assert made.state.timestamp.batch == 0


class OwnLoss(nn.Linear):
    def loss(self, outputs, batch): ...


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metrics": None}, r"train_metrics has no metrics: give some to the Trainer, as metrics=\{'accuracy'"),
        ({"model": OwnLoss(4, 3), "loss_fn": None, "metrics": None}, "OwnLoss has its own loss, so nothing says which"),
    ],
)
def test_what_can_not_work_is_refused_when_the_fit_starts(settings, message):
    made = trainer(**{"metrics": {"right": Right()}, "callbacks": "train_metrics", **settings})
    with pytest.raises(ArgumentError, match=message):
        made.fit()


def test_metrics_are_checked_when_it_is_made_and_a_foreign_state_is_refused():
    with pytest.raises(ArgumentTypeError, match="metric 'right' is the class Right; write Right"):
        TrainMetrics({"right": Right})
    with pytest.raises(ArgumentError, match="which it never saved"):
        TrainMetrics().load_state_dict({"metrics": {"right": 3}})


def test_without_loggers_nothing_is_computed():
    trainer(metrics={"right": object.__new__(Right)}, callbacks=[callback := TrainMetrics()]).fit()
    assert callback.state_dict() == {} and not callback._seen


def test_in_mixed_precision_they_get_float32():
    metric, dtypes = Right(), []
    metric.update = lambda outputs, targets: dtypes.append(outputs.dtype)
    metric.compute = lambda: 0.0
    logged(metrics={"right": metric}, precision="amp_bf16")
    assert set(dtypes) == {torch.float32}


class Alone:
    """Has nothing that says how to bring ranks together."""

    def reset(self): ...
    def update(self, outputs, targets): ...
    def compute(self):
        return 1.0


def test_on_several_ranks_a_metric_that_cannot_be_joined_is_refused_when_the_trainer_is_made():
    with pytest.raises(ArgumentError, match=r"'mine' .* sees the rows of one rank"):
        ThreadRanks.run(lambda ranks: trainer(parallel=ranks, callbacks=TrainMetrics({"mine": Alone()})).close())


def test_in_a_second_trainer_it_begins_anew():
    used, logged = TrainMetrics({"right": Right()}), []
    trainer(batches(8, 8, 8), callbacks=used, loggers=Memory(), max_duration="2ba").fit()
    for callback in (used, TrainMetrics({"right": Right()})):
        memory = Memory()
        trainer(callbacks=callback, loggers=memory).fit()
        logged.append(memory.values(NAME))
    assert logged[0] == logged[1] != []
