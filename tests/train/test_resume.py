"""A resumed run is the run that was never interrupted, bit for bit."""

import random

import pytest
import torch
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from engine_core import Algorithm, AlgorithmMetadata, Callback, Event
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.randomness import OwnGenerator

from .parts import Memory, net, rows, same, trainer

EPOCHS = 3


class Noise(Algorithm):
    """Adds noise to the inputs, from a generator of its own, and counts how often."""

    metadata = AlgorithmMetadata(events=(Event.AFTER_DATALOADER,), writes=("batch",))

    def __init__(self, std=0.1):
        self.std = std
        self._generator = OwnGenerator("noise")
        self._count = 0

    def match(self, event, state):
        return event is Event.AFTER_DATALOADER

    def apply(self, event, state, logger):
        self._count += 1
        inputs = state.batch_get_item(0)
        noise = torch.randn(inputs.shape, generator=self._generator.of(state, self))
        state.batch_set_item(0, inputs + self.std * noise)
        logger.log_metrics({"noise/count": self._count})

    def state_dict(self):
        return {"count": self._count, **self._generator.state_dict()}

    def load_state_dict(self, state):
        self._count = state["count"]
        self._generator.load_state_dict(state)


class Counts(Callback):
    def __init__(self):
        self.batches = 0

    def batch_end(self, state, logger):
        self.batches += 1

    def state_dict(self):
        return {"batches": self.batches}

    def load_state_dict(self, state):
        self.batches = state["batches"]


def loader():
    return DataLoader(TensorDataset(*rows(20)), batch_size=6, shuffle=True)


def of_two_groups(parameters):
    parameters = list(parameters)
    return torch.optim.Adam([{"params": parameters[2:4], "lr": 0.01}, {"params": parameters[4:], "name": "late"}])


def in_sequence(optimizer):
    parts = [lr_scheduler.LinearLR(optimizer, total_iters=4), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    return lr_scheduler.SequentialLR(optimizer, parts, [4])


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "two": [lambda p: torch.optim.SGD(list(p)[:2], lr=0.1), of_two_groups],
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}
SCHEDULERS = {
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=12),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.2, total_steps=20),
    "multi step": lambda o: lr_scheduler.MultiStepLR(o, [3, 7]),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "in sequence": in_sequence,
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3, cycle_momentum=False),
}


def run(callbacks=(), **settings):
    """Return a trainer and what it logs."""
    given = {"eval_dataloader": [rows(9)], "optimizers": OPTIMIZERS["sgd"], "max_duration": f"{EPOCHS}ep", "seed": 4}
    given |= {"algorithms": [Noise(), Noise(0.2)], "callbacks": [Counts(), Counts(), *callbacks], "loggers": Memory()}
    given |= settings
    return trainer(loader(), net(dropout=0.3), **given), given["loggers"]


def all_of(made):
    """Return everything that a run has produced."""
    state = made.state
    return [
        dict(state.model.state_dict()),
        [optimizer.state_dict() for optimizer in state.optimizers],
        [{k: v for k, v in s.state_dict().items() if k[0] != "_" or k == "_last_lr"} for s in state.schedulers],
        [algorithm.state_dict() for algorithm in state.algorithms],
        [callback.batches for callback in state.callbacks if isinstance(callback, Counts)],
        state.metrics,
        state.timestamp._replace(elapsed_s=0.0, elapsed_s_in_epoch=0.0)._asdict(),
        torch.get_rng_state(),
        list(random.getstate()[1]),
    ]


def saved_runs(folder, interval="1ba", **settings):
    """Run to the end and save all the way."""
    made, memory = run([CheckpointSaver(folder, interval, keep_last=None)], **settings)
    with made:
        made.fit()
    return all_of(made), memory


def resumed(path, callbacks=(), **settings):
    random.seed(77)
    torch.manual_seed(77)
    made, memory = run(callbacks, load_path=path, **{"seed": None, **settings})
    with made:
        made.fit()
    return all_of(made), memory


def checkpoints(folder):
    return sorted(path for path in folder.iterdir() if path.is_dir())


def test_saving_changes_nothing(tmp_path):
    made, memory = run()
    with made:
        made.fit()
    whole, logged = saved_runs(tmp_path)
    assert same(all_of(made), whole)
    assert memory.metrics == logged.metrics


def assert_resumes(folder, places, **settings):
    """Compare the whole run with one that is resumed from some of its checkpoints."""
    whole, logged = saved_runs(folder, **settings)
    for path in checkpoints(folder)[places]:
        rest, then = resumed(path, **settings)
        assert same(rest, whole), path.name
        assert then.metrics == logged.metrics[len(logged.metrics) - len(then.metrics) :], path.name


@pytest.mark.filterwarnings("ignore:fit.. has nothing to do")  # where it resumes a finished run
def test_it_is_the_run_that_was_never_interrupted(tmp_path):
    assert_resumes(tmp_path, slice(None))
    assert len(checkpoints(tmp_path)) == 4 * EPOCHS + 1


UNITS = ["ba", "ep"] * 3


OTHERS = {
    **{name: {"optimizers": make} for name, make in OPTIMIZERS.items() if name != "sgd"},
    **{name: {"schedulers": (make, f"1{unit}")} for (name, make), unit in zip(SCHEDULERS.items(), UNITS, strict=True)},
    "microbatches": {"microbatch_size": 4},
    "bfloat16": {"precision": "amp_bf16", "grad_clip_norm": 0.1},
    "evaluations in an epoch": {"eval_interval": "3ba"},
    "an end in batches": {"max_duration": "10ba"},
    "an end with an epoch": {"max_duration": "8ba", "eval_interval": "1ep"},
    "no algorithm": {"algorithms": ()},
}


@pytest.mark.filterwarnings("ignore:BatchNorm .* each microbatch:UserWarning")
@pytest.mark.filterwarnings("ignore:.* has (T_max|total_steps)=:engine_core.errors.DurationWarning")
@pytest.mark.parametrize("settings", OTHERS.values(), ids=OTHERS)
def test_whatever_the_settings(settings, tmp_path):
    assert_resumes(tmp_path, slice(1, 8, 2), **settings)  # in an epoch, after its last batch, and in the next


def test_a_resumed_run_can_be_resumed(tmp_path):
    whole, _ = saved_runs(tmp_path / "first")
    path, again = checkpoints(tmp_path / "first")[4], tmp_path / "again"
    resumed(path, [CheckpointSaver(again, "1ba", keep_last=None)])
    for later in checkpoints(again)[::3]:
        assert same(resumed(later)[0], whole), later.name
