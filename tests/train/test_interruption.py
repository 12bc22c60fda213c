"""Ctrl-C, threads, and the end of a trainer's life."""

import gc
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_core import Callback, Logger, State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint import resolve
from engine_core.errors import ClosedEngineError

from .parts import Memory, at, batches, notes, trainer

PROGRAM = """
    import os, signal, sys, torch
    from engine_core import Callback, LoggerDestination, Trainer

    class Writes(LoggerDestination):
        def __init__(self, path):
            self.file = open(path, "w")
        def log_metrics(self, metrics, step):
            self.file.write(f"{step}\\n")
        def close(self, state, logger):
            self.file.write("closed\\n")
            self.file.close()

    class Interrupts(Callback):
        def before_backward(self, state, logger):
            if state.timestamp.batch == 2:
                print("ready", flush=True)
                while True:
                    pass
        def close(self, state, logger):
            print("closed", flush=True)

    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 3)
    data = [(torch.randn(8, 4), torch.randint(3, (8,)))] * 9
    trainer = Trainer(model, data, max_duration="1ep", loss_fn=torch.nn.CrossEntropyLoss(), progress_bar=False,
                      optimizers=torch.optim.SGD(model.parameters(), lr=0.1), callbacks=Interrupts(),
                      loggers=Writes(sys.argv[1]))
    try:
        {use}
    except KeyboardInterrupt as error:
        print("interrupted", *error.__notes__, sep="|", flush=True)
        raise
"""
USES = {
    "in a with statement": "with trainer: trainer.fit()",
    "left to the interpreter's exit": "trainer.fit()",
}


@pytest.mark.parametrize(
    "use", ["in a with statement", pytest.param("left to the interpreter's exit", marks=pytest.mark.full)]
)
def test_a_second_ctrl_c_acts_at_once_and_callbacks_are_closed_once_and_logs_are_flushed(
    use: str, tmp_path: Path
) -> None:
    log, script = tmp_path / "log", tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM).replace("{use}", USES[use]))
    process = subprocess.Popen(
        [sys.executable, str(script), str(log)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert process.stderr is not None
    process.send_signal(signal.SIGINT)
    waits = [process.stderr.readline() for _ in range(2)]
    assert waits == ["\n", "engine-core: ending after this batch; signal again to end at once\n"]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)  # the program's batch never ends by itself
    interrupted = "interrupted|raised by callback Interrupts at BEFORE_BACKWARD"
    assert sorted(out.splitlines()) == ["closed", interrupted]
    assert "\nKeyboardInterrupt" in err
    assert process.returncode == -signal.SIGINT
    assert log.read_text().splitlines() == ["0", "1", "closed"]


class Closes(Callback):
    def __init__(self) -> None:
        self.closed = 0

    def close(self, state: State, logger: Logger) -> None:
        self.closed += 1


def interrupt(state: State) -> None:
    if state.timestamp.batch == 1:
        raise KeyboardInterrupt


def test_an_interrupted_trainer_is_closed_by_its_with_statement_once() -> None:
    closes = Closes()
    with pytest.raises(KeyboardInterrupt), trainer(callbacks=[closes, at("after_forward", interrupt)]) as made:
        made.fit()
    assert closes.closed == 1
    made.close()
    assert closes.closed == 1
    with pytest.raises(ClosedEngineError):
        made.fit()


def test_an_interrupted_trainer_that_is_still_open_continues_with_the_next_batch() -> None:
    memory, sizes = Memory(), list[int]()
    once = iter([True])

    def interrupt_once(state: State) -> None:
        sizes.append(len(state.batch[0]))
        if state.timestamp.batch == 1 and next(once, False):
            raise KeyboardInterrupt

    made = trainer(batches(8, 7, 6), loggers=memory, callbacks=at("after_forward", interrupt_once))
    with pytest.raises(KeyboardInterrupt):
        made.fit()
    assert made.state.timestamp.batch == 1
    made.fit()
    assert sizes == [8, 7, 6]
    assert [step for step, _ in memory.values("train/loss")] == [0, 1]


def test_what_a_plugin_raises_arrives_with_its_name_and_the_event() -> None:
    def fail(state: State) -> None:
        raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError, match="on purpose") as error:
        trainer(callbacks=at("batch_end", fail)).fit()
    assert notes(error) == ["raised by callback At at BATCH_END"]


def test_a_fit_in_a_thread_does_what_it_does_in_the_main_thread() -> None:
    memory, errors = Memory(), list[BaseException]()

    def work() -> None:
        try:
            with trainer(batches(8, 8), loggers=memory, eval_dataloader=batches(3)) as made:
                made.fit()
        except BaseException as error:  # noqa: BLE001  a thread's would get lost
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert errors == []
    assert [step for step, _ in memory.metrics] == [0, 1, 2, 2]


def test_a_fit_in_a_thread_saves_and_leaves_signals_to_the_main_thread(tmp_path: Path) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before, during, errors = [signal.getsignal(n) for n in numbers], list[Any](), list[BaseException]()

    def work() -> None:
        look = at("batch_start", lambda state: during.append([signal.getsignal(n) for n in numbers]))
        try:
            with trainer(batches(8, 8), callbacks=[CheckpointSaver(tmp_path, "1ba"), look]) as made:
                made.fit()
        except BaseException as error:  # noqa: BLE001  a thread's would get lost
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert errors == []
    assert during == [before, before]
    assert resolve(tmp_path).name == "ep1-ba2"


@pytest.mark.full
def test_importing_and_training_set_no_signal_handler() -> None:
    code = """
        import signal
        names = [s for s in signal.Signals if s not in (signal.SIGKILL, signal.SIGSTOP)]
        before = {s: signal.getsignal(s) for s in names}
        import torch
        from engine_core import Trainer
        model = torch.nn.Linear(2, 1)
        data = [(torch.ones(2, 2), torch.ones(2, 1))]
        Trainer(model, data, max_duration="1ep", loss_fn=torch.nn.MSELoss(), optimizers=torch.optim.SGD,
                progress_bar=True).fit()
        print([s for s in names if signal.getsignal(s) != before[s]])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_trainer_without_references_is_closed_at_once() -> None:
    """Without waiting for the garbage collector: no part of a trainer refers back to it."""
    closes = Closes()
    gc.collect()
    gc.disable()
    try:
        made = trainer(callbacks=closes, eval_dataloader=batches(3))
        made.fit()
        del made
        assert closes.closed == 1
    finally:
        gc.enable()


def test_closing_in_mid_epoch_releases_the_loader() -> None:
    """A DataLoader's worker processes live as long as its iterator."""
    alive: list[bool] = []

    class Loader:
        def __iter__(self) -> Iterator[Any]:
            alive.append(True)
            try:
                yield from batches(8, 8, 8)
            finally:
                alive.pop()

    made = trainer(Loader())
    made.fit("1ba")
    assert alive == [True]
    made.close()
    assert alive == []


def test_nothing_keeps_the_model_of_a_closed_trainer_alive() -> None:
    closes = Closes()
    with trainer(callbacks=closes, eval_dataloader=batches(3)) as made:
        made.fit()
    weight = weakref.ref(made.state.model.weight)
    assert isinstance(weight(), torch.Tensor)
    del made
    gc.collect()
    assert weight() is None
