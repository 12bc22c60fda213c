"""What the tests of gradient_norm and train_metrics share: nets, batches, a Trainer, and the same steps by hand."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from engine_core import Callback, Logger, State, Trainer
from engine_core.testing import RecordingDestination


def rows(count: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs (count, 4) and classes (count,)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 4, generator=generator), torch.randint(3, (count,), generator=generator)


def batches(*sizes: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return a loader with batches of these sizes, each with its own numbers."""
    return [rows(size, seed) for seed, size in enumerate(sizes)]


def net(dropout: float = 0.0) -> Any:
    """Return a net of 4 inputs and 3 classes, always with the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(dropout), nn.Linear(6, 3))


def linear() -> Any:
    """Return a net that computes each row by itself."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Linear(4, 3)


def trainer(data: Any = None, model: Any = None, **settings: Any) -> Any:
    """Return a trainer with a model, data, a loss and SGD, unless the settings say otherwise."""
    model = linear() if model is None else model
    given = {
        "max_duration": "1ep",
        "loss_fn": nn.CrossEntropyLoss(),
        "optimizers": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "device": "cpu",
        "progress_bar": False,
        **settings,
    }
    return Trainer(model, batches(8, 8) if data is None else data, **given)


def steps_by_hand(*sizes: int, epochs: int = 1) -> Iterator[tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Train `linear` on batches as `trainer` does; yield it before each step with outputs, targets and the loss."""
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in batches(*sizes) * epochs:
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = nn.functional.cross_entropy(outputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        yield model, outputs, targets, loss
        optimizer.step()


def at(event: str, call: Callable[[Any], object]) -> Callback:
    """Return a callback that makes this call at one event."""

    def method(self: Callback, state: State, logger: Logger) -> None:
        call(state)

    return type("At", (Callback,), {event: method})()


class Memory(RecordingDestination):
    """Keeps what is logged, and looks a value up by its name."""

    def values(self, name: str) -> list[tuple[int, Any]]:
        """Return step and value of each time this was logged."""
        return [(step, metrics[name]) for step, metrics in self.metrics if name in metrics]
