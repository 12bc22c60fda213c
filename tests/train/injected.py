"""Parts of a run that make a call at one place each: a fault that raises once, or nothing."""

import torch
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset

from engine_core import Algorithm, AlgorithmMetadata, Callback, Event

from .parts import net, rows

FAILS_AT = 7
"""After how many batches of a run a fault raises."""


class InjectedError(Exception):
    """What no part of the engine raises."""


class Fault:
    """Raises once, at a call after so many batches of the run."""

    def __init__(self, batch=FAILS_AT):
        self.error = None
        self.state = None
        self._batch = batch

    def __call__(self, *_):
        state = self.state
        if state is not None and state.timestamp.batch >= self._batch and self.error is None:
            self.error = InjectedError("on purpose")
            raise self.error


class Bystander(Callback):
    """Counts how often it is closed, and hands the state to a fault."""

    def __init__(self, fault=None):
        self.closed = 0
        self._fault = fault

    def init(self, state, logger):
        if self._fault is not None:
            self._fault.state = state

    def close(self, state, logger):
        self.closed += 1


class Failing(Callback):
    """Makes a call at one event."""

    def __init__(self, event, call):
        setattr(self, event, call)


class Acting(Algorithm):
    """Makes a call at one of its events."""

    def __init__(self, event, call, *events):
        self.metadata = AlgorithmMetadata(events=tuple(map(Event, events)))
        self._event, self._call = event, call

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        if event == self._event:
            self._call()


class Paired(Algorithm):
    """Counts how often the first half of a pair has come and the second has not."""

    def __init__(self, *pair):
        self.metadata = AlgorithmMetadata(events=tuple(map(Event, pair)))
        self._depth = 0

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        self._depth += 1 if event is self.metadata.events[0] else -1


class Examples(Dataset):
    """20 examples; `call` is made when one is read."""

    def __init__(self, call):
        self._data, self._call = rows(20), call

    def __len__(self):
        return 20

    def __getitem__(self, index):
        self._call(index)
        return tuple(part[index] for part in self._data)


class Listed(list):
    """A list of batches that makes a call before it gives one."""

    def __init__(self, call):
        super().__init__(zip(*(part.split(6) for part in rows(20)), strict=True))
        self._call = call

    def __iter__(self):
        for batch in super().__iter__():
            self._call()
            yield batch


class Rows:
    """A metric that counts rows, and makes a call in one of its methods."""

    def __init__(self, where, call):
        self._where, self._call = where, call
        self.reset()

    def update(self, outputs, targets):
        self._tell("update")
        self.count += len(targets)

    def compute(self):
        self._tell("compute")
        return self.count

    def reset(self):
        self.count = 0

    def _tell(self, where):
        if where == self._where:
            self._call()


def nothing(*_):
    """Be the fault of a run that has none."""


def loss_with(call):
    def loss_fn(outputs, targets):
        if outputs.requires_grad:
            call()
        return torch.nn.functional.cross_entropy(outputs, targets)

    return loss_fn


def net_with(where, call):
    model = net(dropout=0.3)
    if where == "forward":
        model[0].register_forward_hook(lambda *_: call() if model.training else None)
    elif where == "backward":
        model[0].weight.register_hook(lambda _: call())
    return model


def optimizer_with(call):
    def make(parameters):
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        optimizer.register_step_pre_hook(lambda *_: call())
        return optimizer

    return make


def scheduler_with(call):
    class Decay(lr_scheduler.ExponentialLR):
        def step(self, *epoch):
            call()
            super().step(*epoch)

    return (lambda optimizer: Decay(optimizer, 0.9), "1ba")


def eval_rows(call):
    class Batches(list):
        def __iter__(self):
            call()
            return super().__iter__()

    return Batches([rows(9)])


PLACES = {
    "forward": lambda call: {"model": net_with("forward", call)},
    "backward": lambda call: {"model": net_with("backward", call)},
    "loss_fn": lambda call: {"loss_fn": loss_with(call), "load_changed": "adopt"},  # it is another by name
    "optimizer": lambda call: {"optimizers": optimizer_with(call)},
    "scheduler": lambda call: {"schedulers": scheduler_with(call)},
    "update of a metric": lambda call: {"metrics": {"rows": Rows("update", call)}},
    "compute of a metric": lambda call: {"metrics": {"rows": Rows("compute", call)}},
    "dataset": lambda call: {"data": DataLoader(Examples(call), 6, shuffle=True)},
    "train loader": lambda call: {"data": Listed(call)},
    "eval loader": lambda call: {"eval_dataloader": eval_rows(call)},
}
DATA = {"examples": lambda call: DataLoader(Examples(call), 6, shuffle=True), "list": Listed}
