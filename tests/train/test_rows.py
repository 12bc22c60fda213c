"""What a row of an evaluation says: the loss of the training, what is the best so far, where and when."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from engine_core import Engine, Logger, State, Timestamp
from engine_core.callbacks import progress, reporter
from engine_core.callbacks.progress import ProgressBar
from engine_core.callbacks.reporter import RunReporter

from .parts import Memory, at, batches, trainer


@pytest.mark.parametrize(
    "settings", [{"reduction": "sum"}, {"weight": torch.tensor([1.0, 5.0, 0.1])}, {"ignore_index": 1}]
)
def test_the_loss_in_a_row_is_the_mean_that_is_logged_for_the_epoch(settings, capsys):
    memory, still = Memory(), {"optimizers": lambda p: torch.optim.SGD(p, lr=0.0)}
    shown = {"loggers": memory, "progress_bar": "lines", "eval_dataloader": batches(3)}
    with trainer(batches(8, 5), loss_fn=nn.CrossEntropyLoss(**settings), **shown, **still) as made:
        made.fit()
    (row,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch")]
    ((_, mean),) = memory.values("train/loss_epoch")
    assert f"  train/loss {mean:.4g}  " in row


def test_the_time_left_of_a_resumed_run_is_judged_by_this_attempt(capsys, monkeypatch):
    now = SimpleNamespace(s=0.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now.s))
    bar = ProgressBar(show="lines")
    state = State(callbacks=[bar], max_duration="10ba", timestamp=Timestamp(batch=6, elapsed_s=1.0))
    with Engine(state, Logger()) as engine:
        engine.run_event("fit_start")
        state.timestamp = Timestamp(batch=8, elapsed_s=41.0)
        now.s = 40.0
        engine.run_event("batch_end")
    assert capsys.readouterr().err.splitlines()[-1].endswith("  0:40 left")


def test_the_time_runs_from_the_first_fit_and_over_attempts(monkeypatch):
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(reporter, "time", SimpleNamespace(perf_counter=lambda: now.s))
    saved = {}
    for seconds in ([0, 0, 2, 3], [3, 3, 5, 6]):
        lines = []
        kept = RunReporter(lines.append)
        with trainer(callbacks=kept, max_duration="2ep", eval_dataloader=batches(3)) as made:
            if saved:
                kept.load_state_dict(saved)
            now.s += 10
            made.eval()
            now.s += 10
            made.state.callbacks.append(at("epoch_start", lambda state: setattr(now, "s", now.s + 2)))
            made.fit("1ep")
            now.s += 1
            made.eval()
            saved = kept.state_dict()
        assert [json.loads(line)["seconds"] for line in lines] == seconds
