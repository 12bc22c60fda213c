"""A config with its plugins, and what its training left: for the tests of what a run leaves."""

import json
import time

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file

from engine_core.checkpoint import tensor_file
from engine_core.cli import main

MODULE = """
    import logging
    import os
    import shutil
    import signal
    import time
    import warnings

    import torch
    from engine_core import Algorithm, AlgorithmMetadata, Callback, Event, LoggerDestination
    from engine_core.checkpoint import tensor_file

    IMPORTED = []

    def net():
        return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.5))

    def loader(batches=4):
        return [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(batches)]

    def largest(outputs, targets):
        return outputs.max()

    class Widen(Algorithm):
        metadata = AlgorithmMetadata(events=("init",), writes=("model",), tags=("surgery",))

        def __init__(self, width=5):
            self.width = width

        def match(self, event, state):
            return True

        def apply(self, event, state, logger):
            state.model[0] = torch.nn.Sequential(torch.nn.Linear(4, self.width), torch.nn.Linear(self.width, 3))

    class Average(Algorithm):
        metadata = AlgorithmMetadata(events=("batch_end", "eval_start", "eval_end"), writes=("model",))

        def __init__(self, start=0):
            self.start, self.average, self.kept = start, None, None

        def match(self, event, state):
            return state.timestamp.batch > self.start if event is Event.BATCH_END else self.average is not None

        def apply(self, event, state, logger):
            own = {name: value.clone() for name, value in state.model.state_dict().items()}
            if event is Event.BATCH_END:
                before = self.average or own
                self.average = {name: (value + before[name]) / 2 for name, value in own.items()}
            elif event is Event.EVAL_START:
                self.kept = own
                state.model.load_state_dict(self.average)
            else:
                state.model.load_state_dict(self.kept)

        def may_rest(self, state):
            return True

        def averaged_state_dict(self):
            return self.average

        def state_dict(self):
            return {} if self.average is None else {"inner": {"average": dict(self.average)}}

        def load_state_dict(self, state):
            self.average = dict(state["inner"]["average"]) if state else None

    class Second(Average):
        pass

    class Doze(Algorithm):
        metadata = AlgorithmMetadata(events=("init", "batch_end"))

        def match(self, event, state):
            return event == "init" or state.timestamp.batch % 2 == 0

        def apply(self, event, state, logger):
            pass

    class Wake(Doze):
        match = lambda self, event, state: False
        may_rest = lambda self, state: True

    def with_workers(batches=4):
        rows = torch.utils.data.TensorDataset(torch.randn(8 * batches, 4), torch.randint(3, (8 * batches,)))
        return torch.utils.data.DataLoader(rows, 8, num_workers=1)

    class Counted(list):
        def __init__(self, batches=4):
            super().__init__(loader(batches))

        def __iter__(self):
            for batch in super().__iter__():
                with open("counted", "a") as file:
                    file.write("1")
                yield batch

    class Loud(LoggerDestination):
        def __init__(self):
            with open("loud", "w") as file:
                file.write("made")

        def log_metrics(self, metrics, step):
            raise AssertionError("a trial logs nothing")

        init = log_hyperparameters = log_traces = log_metrics

    class BadMetric:
        reset = compute = lambda self: None

        def update(self, outputs, targets):
            raise ZeroDivisionError("no such metric")

    class Nan:
        reset = lambda self: None
        update = lambda self, outputs, targets: None
        compute = lambda self: float("nan")

    class Talk(Callback):
        def fit_start(self, state, logger):
            print("printed")
            warnings.warn("warned")
            for level in ("debug", "info", "error"):
                getattr(logging.getLogger("own"), level)(f"said at {level}")

    class Warns(Callback):
        def __init__(self, different):
            self.different = different

        def batch_end(self, state, logger):
            for number in range(self.different):
                warnings.warn(f"warned {number}")

    class Stuck(Callback):
        def batch_end(self, state, logger):
            if state.timestamp.batch == 4:
                for _ in range(2):
                    os.kill(os.getpid(), signal.SIGINT)
                raise AssertionError("the second signal acts at once")

        def close(self, state, logger):
            print("closed after", state.timestamp.batch)

    class Gap:
        evaluations = 0.0

        def reset(self):
            self.evaluations += 1

        def update(self, outputs, targets):
            pass

        def compute(self):
            return self.evaluations

    class Signals(Callback):
        def __init__(self, number, event="batch_end", batch=6):
            self.number, self.batch = number, batch
            setattr(self, event, self.send)

        def send(self, state, logger):
            if state.timestamp.batch == self.batch:
                os.kill(os.getpid(), self.number)

    class Naps(Callback):
        def batch_end(self, state, logger):
            if state.timestamp.batch == 5:
                clock = time.monotonic
                time.monotonic = lambda: clock() + 600

    class FullFrom(Callback):
        def __init__(self, batch=1, to=None):
            self.batch, self.to, self.save = batch, to, tensor_file._blocks

        def fail(self, *arguments):
            raise OSError(28, "No space left on device")

        def batch_end(self, state, logger):
            now = state.timestamp.batch
            for saver in (each for each in state.callbacks if hasattr(each, "written")):
                saver.written()  # in the background
            tensor_file._blocks = self.fail if self.batch <= now and (self.to is None or now < self.to) else self.save

    class Goes(Callback):
        def __init__(self, moves):
            self.moves = moves

        def batch_end(self, state, logger):
            if state.timestamp.batch == 2:
                os.rename("out", "moved") if self.moves else shutil.rmtree("out")

    class Bad(Callback):
        def __init__(self, at=6):
            self.at = at

        def batch_end(self, state, logger):
            if state.timestamp.batch == self.at:
                raise ZeroDivisionError("crashed on purpose")
"""
CONFIG = """
model: {target: "left:net"}
data: {target: "left:loader"}
eval_data: {dev: {target: "left:loader", args: {batches: 1}}, test: {target: "left:loader", args: {batches: 2}}}
loss: {target: "torch.nn:CrossEntropyLoss"}
optimizer: {target: "torch.optim:SGD", args: {lr: 0.1}}
trainer: {max_duration: 2ep, seed: 7}
"""
DOZES = """
model: {target: "torch.nn:Linear", args: {in_features: 4, out_features: 3}}
data: {target: "left:loader", args: {batches: 6}}
eval_data: {target: "left:loader", args: {batches: 1}}
loss: {target: "torch.nn:CrossEntropyLoss"}
optimizer: {target: "torch.optim:SGD", args: {lr: 0.1}}
schedulers: [{target: "torch.optim.lr_scheduler:StepLR", args: {step_size: 1, gamma: 0.5}, interval: 6ba}]
trainer: {max_duration: 2ep, seed: 7}
algorithms: [doze]
"""
ALGORITHMS = {name.lower(): f"left:{name}" for name in ("Widen", "Average", "Second", "Doze", "Wake")}


@pytest.fixture
def cli(install, tmp_path, monkeypatch):
    """Return `cli(*arguments, config=...)`, which runs the command in an empty folder with `run.yaml`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tensor_file, "_blocks", tensor_file._blocks)  # FullFrom replaces it
    monkeypatch.setattr(time, "monotonic", time.monotonic)  # Naps replaces it
    monkeypatch.syspath_prepend(tmp_path)
    install("left-plugin", {"algorithms": ALGORITHMS}, {"left": MODULE}, version="1.2")

    def cli(*arguments, config=CONFIG):
        (tmp_path / "run.yaml").write_text(config)
        return CliRunner().invoke(main, arguments, prog_name="engine-core")

    return cli


@pytest.fixture
def train(cli):
    return lambda *arguments, config=CONFIG: cli("train", "run.yaml", "--out", "out", *arguments, config=config)


def read(path):
    return json.loads(path.read_text())


def checkpoints(tmp_path):
    return sorted(path.name for path in (tmp_path / "out" / "checkpoints").iterdir() if path.name[0] != ".")


def weights(model):
    return {name: value.tolist() for name, value in model.state_dict().items()}


def of_file(file):
    return {name: value.tolist() for name, value in load_file(file).items()}
