"""A callback that hears all 26 events, a logger destination, and a callback without a base class."""

import contextlib

from engine_core import Callback, LoggerDestination

from .journal import journal


def _hear(event):
    def method(self, state, logger):
        self.heard.append(event)
        journal.append(f"Witness hears {event}")

    return method


class Witness(Callback):
    """Hears every event of hook API 1."""

    def __init__(self):
        self.heard = []

    init = _hear("init")
    after_load = _hear("after_load")
    fit_start = _hear("fit_start")
    epoch_start = _hear("epoch_start")
    before_dataloader = _hear("before_dataloader")
    after_dataloader = _hear("after_dataloader")
    batch_start = _hear("batch_start")
    before_train_batch = _hear("before_train_batch")
    before_forward = _hear("before_forward")
    after_forward = _hear("after_forward")
    before_loss = _hear("before_loss")
    after_loss = _hear("after_loss")
    before_backward = _hear("before_backward")
    after_backward = _hear("after_backward")
    after_train_batch = _hear("after_train_batch")
    batch_end = _hear("batch_end")
    batch_checkpoint = _hear("batch_checkpoint")
    epoch_end = _hear("epoch_end")
    epoch_checkpoint = _hear("epoch_checkpoint")
    fit_end = _hear("fit_end")
    eval_start = _hear("eval_start")
    eval_batch_start = _hear("eval_batch_start")
    eval_before_forward = _hear("eval_before_forward")
    eval_after_forward = _hear("eval_after_forward")
    eval_batch_end = _hear("eval_batch_end")
    eval_end = _hear("eval_end")

    def state_dict(self):
        return {"heard": list(self.heard)}

    def load_state_dict(self, state):
        self.heard = list(state["heard"])

    def close(self, state, logger):
        journal.append("Witness closes")

    def post_close(self):
        journal.append("Witness is closed")


class Ledger(LoggerDestination):
    """Writes down what plugins of hook API 1 log."""

    def batch_end(self, state, logger):
        journal.append(f"Ledger after batch {state.timestamp.batch}")

    def log_metrics(self, metrics, step):
        for name, value in metrics.items():
            if name.startswith("api1/"):
                journal.append(f"Ledger: {name} is {value} at step {step}")

    def log_hyperparameters(self, hyperparameters):
        for name, value in hyperparameters.items():
            if name.startswith("api1/"):
                journal.append(f"Ledger: {name} is {value}")

    def log_traces(self, traces):
        journal.append(f"Ledger: {' '.join(traces)}")


class Bystander:
    """No base class: one method named after an event, and one around each apply."""

    def fit_start(self, state, logger):
        journal.append("Bystander at fit_start")

    @contextlib.contextmanager
    def around_apply(self, algorithm, name, event, state):
        journal.append(f"Bystander before {name} at {event}")
        yield
        journal.append(f"Bystander after {name} at {event}")
