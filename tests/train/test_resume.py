"""A resumed run is the run that was never interrupted, bit for bit."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from engine_core import Algorithm, AlgorithmMetadata, Callback, Event, Logger, State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.randomness import OwnGenerator

from .parts import Memory, net, rows, same, trainer

EPOCHS = 3


class Noise(Algorithm):
    """Adds noise to the inputs, from a generator of its own, and counts how often."""

    metadata = AlgorithmMetadata(events=(Event.AFTER_DATALOADER,), writes=("batch",))

    def __init__(self, std: float = 0.1) -> None:
        self.std = std
        self._generator = OwnGenerator("noise")
        self._count = 0

    def match(self, event: Event, state: State) -> bool:
        return event is Event.AFTER_DATALOADER

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        self._count += 1
        inputs = state.batch_get_item(0)
        noise = torch.randn(inputs.shape, generator=self._generator.of(state, self))
        state.batch_set_item(0, inputs + self.std * noise)
        logger.log_metrics({"noise/count": self._count})

    def state_dict(self) -> dict[str, Any]:
        return {"count": self._count, **self._generator.state_dict()}

    def load_state_dict(self, state: Any) -> None:
        self._count = state["count"]
        self._generator.load_state_dict(state)


class Counts(Callback):
    def __init__(self) -> None:
        self.batches = 0

    def batch_end(self, state: State, logger: Logger) -> None:
        self.batches += 1

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches}

    def load_state_dict(self, state: Any) -> None:
        self.batches = state["batches"]


def loader() -> Any:
    return DataLoader(TensorDataset(*rows(20)), batch_size=6, shuffle=True)


def of_two_groups(parameters: Any) -> torch.optim.Adam:
    parameters = list(parameters)
    return torch.optim.Adam([{"params": parameters[2:4], "lr": 0.01}, {"params": parameters[4:], "name": "late"}])


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "two": [lambda p: torch.optim.SGD(list(p)[:2], lr=0.1), of_two_groups],
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}
SCHEDULERS: dict[str, Any] = {
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=12),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.2, total_steps=20),
    "multi step": lambda o: lr_scheduler.MultiStepLR(o, [3, 7]),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "in sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, total_iters=4), lr_scheduler.ExponentialLR(o, 0.9)], [4]
    ),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3, cycle_momentum=False),
}


def run(callbacks: Any = (), **settings: Any) -> Any:
    """Return a trainer and what it logs."""
    memory = Memory()
    given = {
        "max_duration": f"{EPOCHS}ep",
        "optimizers": OPTIMIZERS["sgd"],
        "eval_dataloader": [rows(9)],
        "algorithms": [Noise(), Noise(0.2)],
        "callbacks": [Counts(), Counts(), *callbacks],
        "loggers": memory,
        "seed": 4,
        **settings,
    }
    return trainer(loader(), net(dropout=0.3), **given), memory


def all_of(made: Any) -> Any:
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


def saved_runs(folder: Path, interval: str = "1ba", **settings: Any) -> tuple[Any, Memory]:
    """Run to the end and save all the way."""
    made, memory = run([CheckpointSaver(folder, interval, keep_last=None)], **settings)
    with made:
        made.fit()
    return all_of(made), memory


def resumed(path: Path, callbacks: Any = (), **settings: Any) -> tuple[Any, Memory]:
    random.seed(77)
    torch.manual_seed(77)
    made, memory = run(callbacks, load_path=path, **{"seed": None, **settings})
    with made:
        made.fit()
    return all_of(made), memory


def checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def assert_resumes_everywhere(folder: Path, **settings: Any) -> None:
    whole, logged = saved_runs(folder, **settings)
    assert len(checkpoints(folder)) == 4 * EPOCHS + 1
    for path in checkpoints(folder):
        rest, then = resumed(path, **settings)
        assert same(rest, whole), path.name
        assert then.metrics == logged.metrics[len(logged.metrics) - len(then.metrics) :], path.name


def test_saving_changes_nothing(tmp_path: Path) -> None:
    made, memory = run()
    with made:
        made.fit()
    whole, logged = saved_runs(tmp_path)
    assert same(all_of(made), whole)
    assert memory.metrics == logged.metrics


@pytest.mark.filterwarnings("ignore:fit.. has nothing to do")  # where it resumes a finished run
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_is_the_run_that_was_never_interrupted(optimizer: str, tmp_path: Path) -> None:
    assert_resumes_everywhere(tmp_path, optimizers=OPTIMIZERS[optimizer])


@pytest.mark.filterwarnings("ignore:fit.. has nothing to do")  # where it resumes a finished run
@pytest.mark.filterwarnings("ignore:.* has (T_max|total_steps)=:engine_core.errors.DurationWarning")
@pytest.mark.parametrize("interval", ["1ba", "1ep"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_schedulers_continue(scheduler: str, interval: str, tmp_path: Path) -> None:
    assert_resumes_everywhere(tmp_path, schedulers=(SCHEDULERS[scheduler], interval))


@pytest.mark.filterwarnings("ignore:fit.. has nothing to do")  # where it resumes a finished run
@pytest.mark.filterwarnings("ignore:BatchNorm .* each microbatch:UserWarning")
@pytest.mark.parametrize(
    "settings",
    [
        {"microbatch_size": 4},
        {"precision": "amp_bf16"},
        {"grad_clip_norm": 0.1},
        {"eval_interval": "3ba"},
        {"max_duration": "10ba"},
        {"max_duration": "8ba", "eval_interval": "1ep"},
        {"algorithms": ()},
    ],
    ids=str,
)
def test_whatever_the_settings(settings: Any, tmp_path: Path) -> None:
    whole, logged = saved_runs(tmp_path, **settings)
    for path in checkpoints(tmp_path):
        rest, then = resumed(path, **settings)
        assert same(rest, whole), path.name
        assert then.metrics == logged.metrics[len(logged.metrics) - len(then.metrics) :], path.name


def test_a_resumed_run_can_be_resumed(tmp_path: Path) -> None:
    whole, _ = saved_runs(tmp_path / "first")
    for path in checkpoints(tmp_path / "first")[1:8:3]:
        again = tmp_path / f"after {path.name}"
        resumed(path, [CheckpointSaver(again, "1ba", keep_last=None)])
        for later in checkpoints(again)[::3]:
            assert same(resumed(later)[0], whole), (path.name, later.name)


def test_a_run_is_resumed_from_the_latest_in_the_folder_of_its_saver(tmp_path: Path) -> None:
    whole, _ = saved_runs(tmp_path / "whole")
    made, _ = run([CheckpointSaver(tmp_path / "run", "1ba")], autoresume=True)
    with made:
        made.fit("5ba")
    made, _ = run([CheckpointSaver(tmp_path / "run", "1ba")], autoresume=True)
    assert made.state.timestamp.batch == 5
    with made:
        made.fit()
    assert same(all_of(made), whole)


def test_weights_alone_start_at_the_beginning(tmp_path: Path) -> None:
    whole, _ = saved_runs(tmp_path, "1ep")
    made, _ = run(load_path=tmp_path, load_weights_only=True)
    assert same(dict(made.state.model.state_dict()), whole[0])
    assert made.state.timestamp.batch == 0
    made.close()
