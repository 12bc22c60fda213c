"""What is logged, under which step, to which destinations and in which order."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, LoggerDestination, State, Traces

from .parts import Memory, batches, net, steps_by_hand, trainer


def test_the_loss_of_batch_i_has_step_i() -> None:
    memory = Memory()
    trainer(batches(8, 5, 8), loggers=memory).fit()
    assert memory.values("train/loss") == [(i, loss.item()) for i, (*_, loss) in enumerate(steps_by_hand(8, 5, 8))]


def test_the_rate_is_the_one_that_the_step_used() -> None:
    memory = Memory()

    def halve(optimizer: torch.optim.Optimizer) -> StepLR:
        return StepLR(optimizer, 1, gamma=0.5)

    trainer(batches(8, 8, 8), schedulers=(halve, "1ba"), loggers=memory).fit()
    assert memory.values("train/lr/0") == [(0, 0.1), (1, 0.05), (2, 0.025)]


@pytest.mark.filterwarnings("ignore::engine_core.errors.UntrainedParametersWarning")
def test_groups_of_parameters_are_named_or_numbered() -> None:
    model, memory = net(), Memory()
    groups: list[dict[str, Any]] = [
        {"params": [*model[0].parameters(), *model[1].parameters()], "name": "body"},
        {"params": model[4].parameters(), "lr": 0.3},
    ]
    trainer(batches(8), model, optimizers=torch.optim.SGD(groups, lr=0.1), loggers=memory).fit()
    (_, metrics), _ = memory.metrics
    assert {k: v for k, v in metrics.items() if k != "train/loss"} == {"train/lr/body": 0.1, "train/lr/1": 0.3}


def test_destinations_are_called_in_order() -> None:
    heard: list[str] = []

    class Ordered(LoggerDestination):
        def __init__(self, name: str) -> None:
            self.name = name

        def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
            heard.append(f"{self.name} {step} {min(metrics)}")

    trainer(batches(8), eval_dataloader=batches(3), loggers=[Ordered("a"), Ordered("b")]).fit()
    said = ["0 train/loss", "1 train/loss_epoch", "1 eval/loss"]
    assert heard == [f"{name} {line}" for line in said for name in "ab"]


def test_settings_are_logged_once_after_init() -> None:
    heard: list[str] = []

    class Settings(Memory):
        def init(self, state: State, logger: Logger) -> None:
            heard.append("init")

        def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
            super().log_hyperparameters(hyperparameters)
            heard.append("hyperparameters")

    memory = Settings()
    trainer(seed=3, run_name="mine", microbatch_size=4, loggers=memory)
    assert heard == ["init", "hyperparameters"]
    assert memory.hyperparameters == [
        {
            "run_name": "mine",
            "seed": 3,
            "max_duration": "1ep",
            "precision": "fp32",
            "device": "cpu",
            "microbatch_size": 4,
            "grad_clip_norm": None,
            "algorithms": [],
        }
    ]


def test_traces_of_algorithms_that_ran_are_logged() -> None:
    class Count(Algorithm):
        metadata = AlgorithmMetadata(events=(Event.BATCH_END,))

        def match(self, event: Event, state: State) -> bool:
            return state.timestamp.batch == 2

        def apply(self, event: Event, state: State, logger: Logger) -> int:
            logger.log_metrics({"count": 7})
            return 3

    heard: list[Any] = []

    class Tracing(Memory):
        def log_traces(self, traces: Traces) -> None:
            heard.extend((name, trace.exit_code) for name, trace in traces.items())

    memory = Tracing()
    trainer(batches(8, 8), algorithms=Count(), loggers=memory).fit()
    assert heard == [("Count/BATCH_END", 3)]
    assert memory.values("count") == [(2, 7)]


def test_without_destinations_no_part_of_the_loss_is_read() -> None:
    reads: list[str] = []

    class Watched(torch.Tensor):
        def item(self) -> Any:
            reads.append("read")
            return super().item()

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"total": F.cross_entropy(outputs, targets), "part": outputs.mean().as_subclass(Watched)}

    trainer(batches(8, 8), loss_fn=loss).fit()
    assert reads == []
    trainer(batches(8, 8), loss_fn=loss, loggers=Memory()).fit()
    assert reads == ["read"] * 2


def test_a_destination_that_joins_later_hears_from_then_on() -> None:
    memory = Memory()
    made = trainer(batches(8, 8), max_duration="2ep")
    made.fit("1ep")
    made.logger.destinations.append(memory)
    made.fit()
    assert [step for step, _ in memory.values("train/loss")] == [2, 3]


def test_a_destination_hears_events_after_the_callbacks() -> None:
    heard: list[str] = []

    class Hears(Memory):
        def batch_end(self, state: State, logger: Logger) -> None:
            heard.append(type(self).__name__)

    class Watches(Hears):
        pass

    trainer(batches(8), loggers=Hears(), callbacks=Watches()).fit()
    assert heard == ["Watches", "Hears"]


@pytest.mark.parametrize("name", [None, "mine"])
def test_a_run_has_a_name(name: str | None) -> None:
    names = {trainer(run_name=name).state.run_name for _ in range(2)}
    assert names == {"mine"} if name else len(names) == 2
