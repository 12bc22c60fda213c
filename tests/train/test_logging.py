"""What is logged, under which step, to which destinations in which order, and a run whose logger fails."""

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, LoggerDestination
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint.store import has_checkpoint
from engine_core.errors import DestinationWarning

from .parts import Memory, batches, linear, net, same, steps_by_hand, trainer


def test_the_loss_of_batch_i_has_step_i():
    memory = Memory()
    trainer(batches(8, 5, 8), loggers=memory).fit()
    assert memory.values("train/loss") == [(i, loss.item()) for i, (*_, loss) in enumerate(steps_by_hand(8, 5, 8))]


@pytest.mark.filterwarnings("ignore::engine_core.errors.UntrainedParametersWarning")
def test_groups_of_parameters_are_named_or_numbered():
    model, memory = net(), Memory()
    groups = [
        {"params": [*model[0].parameters(), *model[1].parameters()], "name": "body"},
        {"params": model[4].parameters(), "lr": 0.3},
    ]
    trainer(batches(8), model, optimizers=torch.optim.SGD(groups, lr=0.1), loggers=memory).fit()
    (_, metrics), _ = memory.metrics
    assert {k: v for k, v in metrics.items() if k != "train/loss"} == {"train/lr/body": 0.1, "train/lr/1": 0.3}


def test_settings_are_logged_once_after_init():
    heard = []

    class Settings(Memory):
        def init(self, state, logger):
            heard.append("init")

        def log_hyperparameters(self, hyperparameters):
            heard.append(hyperparameters)

    trainer(seed=3, run_name="mine", microbatch_size=4, loggers=Settings())
    given = {"run_name": "mine", "seed": 3, "max_duration": "1ep", "precision": "fp32", "device": "cpu"}
    assert heard == ["init", {**given, "microbatch_size": 4, "grad_clip_norm": None, "algorithms": []}]


def test_traces_of_algorithms_that_ran_are_logged():
    class Count(Algorithm):
        metadata = AlgorithmMetadata(events=(Event.BATCH_END,))

        def match(self, event, state):
            return state.timestamp.batch == 2

        def apply(self, event, state, logger):
            logger.log_metrics({"count": 7})
            return 3

    class Tracing(Memory):
        def log_traces(self, traces):
            heard.extend((name, trace.exit_code) for name, trace in traces.items())

    heard, memory = [], Tracing()
    trainer(batches(8, 8), algorithms=Count(), loggers=memory).fit()
    assert heard == [("Count/BATCH_END", 3)]
    assert memory.values("count") == [(2, 7)]


def test_without_destinations_no_part_of_the_loss_is_read():
    reads = []

    class Watched(torch.Tensor):
        def item(self):
            reads.append("read")
            return super().item()

    def loss(outputs, targets):
        return {"total": F.cross_entropy(outputs, targets), "part": outputs.mean().as_subclass(Watched)}

    trainer(batches(8, 8), loss_fn=loss).fit()
    assert reads == []
    trainer(batches(8, 8), loss_fn=loss, loggers=Memory()).fit()
    assert reads == ["read"] * 2


def test_a_destination_hears_events_after_the_callbacks():
    heard = []

    class Hears(Memory):
        def batch_end(self, state, logger):
            heard.append(type(self).__name__)

    class Watches(Hears):
        pass

    trainer(batches(8), loggers=Hears(), callbacks=Watches()).fit()
    assert heard == ["Watches", "Hears"]


class Fails(LoggerDestination):
    """Raises in everything from batch 2 on."""

    closed = 0

    def log_metrics(self, metrics, step):
        if step >= 2:
            raise ConnectionError(f"no route at {step}")

    def batch_end(self, state, logger):
        self.log_metrics({}, state.timestamp.batch)

    def close(self, state, logger):
        self.closed += 1


def trained(*loggers, **settings):
    data = batches(8, 5, 8, 8, 8, 8)
    with trainer(data, linear(), eval_dataloader=batches(4), loggers=loggers, **settings) as made:
        made.fit()
    return made


def test_the_rank_whose_destination_fails_is_named(monkeypatch):
    for name, value in {"is_initialized": True, "get_rank": 1, "get_world_size": 2}.items():
        monkeypatch.setattr(dist, name, lambda value=value: value)
    with pytest.warns(DestinationWarning, match=r"^logger destination Fails failed in log_metrics.*\(rank 1\)$"):
        Logger([Fails()]).log_metrics({"loss": 0.0}, 2)


def test_training_is_that_of_a_run_without_it(recwarn):
    alone, beside, fails = Memory(), Memory(), Fails()
    expected, made = trained(alone), trained(fails, beside)
    assert same(made.state.model.state_dict(), expected.state.model.state_dict())
    assert (beside.metrics, fails.closed) == (alone.metrics, 1)
    messages = [str(warning.message) for warning in recwarn]
    assert [m.partition(" (at ")[0].partition("destination ")[2] for m in messages] == [
        f"Fails failed in {event} at batch {batch} (epoch 0): ConnectionError: no route at {batch}"
        for batch, event in [
            *((batch, event) for batch in (2, 3) for event in ("batch_end", "log_metrics")),
            (4, "batch_end"),
        ]
    ]
    assert ["continues without it: disabled after" in message for message in messages] == [False] * 4 + [True]
    assert {warning.filename for warning in recwarn} == {__file__}


@pytest.mark.filterwarnings("error::engine_core.errors.DestinationWarning")
def test_a_strict_run_ends_there_and_everything_is_closed():
    fails = Fails()
    run = trainer(batches(8, 8, 8, 8), linear(), loggers=fails)
    with pytest.raises(DestinationWarning, match="Fails failed in batch_end at batch 2"), run:
        run.fit()
    assert (run.state.timestamp.batch, fails.closed) == (2, 1)


class Stateless(LoggerDestination):
    def state_dict(self):
        raise ConnectionError("no route")


def test_a_state_that_cannot_be_had_is_left_out_of_the_checkpoint(tmp_path, recwarn):
    trained(Stateless(), Memory(), callbacks=CheckpointSaver(tmp_path, "1ba"))
    assert has_checkpoint(tmp_path)
    messages = [str(warning.message).partition(": ")[0] for warning in recwarn]
    assert messages[0] == "logger destination Stateless failed in state_dict at batch 1 (epoch 0)"


@pytest.mark.filterwarnings("ignore::engine_core.errors.CheckpointWarning")
def test_without_the_state_of_a_callback_there_is_no_checkpoint_though_it_is_a_destination_too(tmp_path):
    both = Stateless()
    trained(both, callbacks=[CheckpointSaver(tmp_path, "1ba"), both])
    assert not has_checkpoint(tmp_path)


def test_one_that_cannot_start_over_is_named(tmp_path):
    class Stuck(LoggerDestination):
        def start_over(self):
            raise ConnectionError("no route")

    saver = CheckpointSaver(tmp_path, "1ba")
    with pytest.raises(ConnectionError) as failure:
        trainer(batches(8), linear(), loggers=Stuck(), callbacks=saver, autoresume=True)
    assert failure.value.__notes__ == ["raised by start_over of callback Stuck"]
