"""Small honest parts for the tests of training: data, nets, callbacks of one method, a logger that remembers."""

from collections.abc import Mapping

import torch
from torch import nn

from engine_core import Algorithm, AlgorithmMetadata, Callback, Event, Trainer
from engine_core_author import RecordingDestination

EVENTS = [event.value for event in Event]


def rows(count, seed=1):
    """Return inputs (count, 4) and classes (count,)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 4, generator=generator), torch.randint(3, (count,), generator=generator)


def batches(*sizes):
    """Return a loader with batches of these sizes, each with its own numbers."""
    return [rows(size, seed) for seed, size in enumerate(sizes)]


def net(dropout=0.0):
    """Return a net of 4 inputs and 3 classes, always with the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(dropout), nn.Linear(6, 3))


def linear():
    """Return a net that computes each row by itself."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Linear(4, 3)


def trainer(data=None, model=None, **settings):
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


def steps_by_hand(*sizes, epochs=1):
    """Train `linear` on batches as `trainer` does; yield it before each step with outputs, targets and the loss."""
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in batches(*sizes) * epochs:
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = nn.functional.cross_entropy(outputs, targets)
        loss.backward()
        yield model, outputs, targets, loss
        optimizer.step()


def at(event, call):
    """Return a callback that makes this call at one event."""
    return type("At", (Callback,), {event: lambda self, state, logger: call(state)})()


def writing_down(events, wanted=EVENTS, name="Journal"):
    """Return a callback that appends the events it hears to `events`."""
    hears = {event: lambda self, state, logger, event=event: events.append(event) for event in wanted}
    return type(name, (Callback,), hears)()


class Memory(RecordingDestination):
    """Keeps what is logged, and looks a value up by its name."""

    def values(self, name):
        """Return step and value of each time this was logged."""
        return [(step, metrics[name]) for step, metrics in self.metrics if name in metrics]


def notes(error):
    """Return the notes of an exception."""
    return list(getattr(error.value, "__notes__", ()))


def same(a, b):
    """Are two trees of tensors and values equal, bit for bit? So a NaN is equal to itself, and -0.0 isn't 0.0."""
    if isinstance(a, torch.Tensor):
        alike = isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape
        return alike and torch.equal(*(each.detach().reshape(-1).contiguous().view(torch.uint8) for each in (a, b)))
    if isinstance(a, Mapping):
        return isinstance(b, Mapping) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return float.hex(a) == float.hex(b)
    return bool(a == b)


def acting(act, *events, writes=(), match=lambda event, state: True, name="Faulty", before=()):
    """Return an algorithm of the class `name` that calls `act(event, state)` at its events."""

    class Acting(Algorithm):
        metadata = AlgorithmMetadata(events=events, writes=writes, before=before)

        def match(self, event, state):
            return match(event, state)

        def apply(self, event, state, logger):
            act(event, state)

    Acting.__name__ = name
    return Acting()
