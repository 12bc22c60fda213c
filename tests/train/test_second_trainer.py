"""A callback given to a second Trainer begins anew: it is as one that was made for that Trainer."""

import json

import pytest

from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.callbacks.loss_guard import LossGuard
from engine_core.callbacks.reporter import RunReporter
from engine_core.callbacks.stoppers import EarlyStopper, ThresholdStopper
from engine_core.callbacks.time_limit import TimeLimit
from engine_core_author.audit_callback import Audit

from .parts import Memory, batches, rows, trainer

LINES = []


def saver(folder):
    return CheckpointSaver(str(folder / "saved"), "1ba", keep_last=2, keep_best=1, metric="eval/loss")


MAKES = {
    "audit": lambda _: Audit(),
    "checkpoint_saver": saver,
    "early_stopper": lambda _: EarlyStopper("eval/loss", patience=2),
    "json_lines": lambda _: RunReporter(LINES.append),
    "loss_guard": lambda _: LossGuard(limit=3),
    "threshold_stopper": lambda _: ThresholdStopper("eval/loss", 0.0),
    "time_limit": lambda _: TimeLimit("1h", then="stop"),
}


def bad(sizes):
    """Return batches of which the last two have no finite loss."""
    data = batches(*sizes)
    return [*data[:-2], *((inputs * float("nan"), targets) for inputs, targets in data[-2:])]


def run(callback, folder, data):
    """Train, and return what it did and what the callback keeps."""
    LINES.clear()
    memory = Memory()
    settings = {"callbacks": [callback], "loggers": [memory], "eval_dataloader": [rows(4)]}
    with trainer(data, max_duration="2ep", seed=1, **settings) as made:
        made.fit()
    return {
        "values": repr(without_times(memory.metrics)),  # NaN is equal to nothing
        "kept": without_times(callback.state_dict()),
        "kinds": [json.loads(line)["kind"] for line in LINES],
        "saved": sorted(path.name for path in folder.rglob("ep*-ba*")),
    }


def without_times(values):
    if isinstance(values, dict):
        return {k: without_times(v) for k, v in values.items() if k not in ("seconds", "folder")}
    return [*map(without_times, values)] if isinstance(values, (list, tuple)) else values


@pytest.mark.filterwarnings("ignore::engine_core.errors.NonFiniteLossWarning")
@pytest.mark.filterwarnings("ignore:EarlyStopper:UserWarning")
@pytest.mark.parametrize("name", MAKES)
def test_it_is_as_a_new_one(name, tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "again").mkdir()
    again, new = MAKES[name](tmp_path / "again"), MAKES[name](tmp_path / "new")
    first = bad([8, 5, 7]) if name in ("loss_guard", "audit") else batches(8, 5, 7)
    run(again, tmp_path / "again", first)
    if (tmp_path / "again" / "saved").exists():
        (tmp_path / "again" / "saved").rename(tmp_path / "earlier")  # of another run, which it may not go on with
    second = bad([4, 6, 5]) if name == "loss_guard" else batches(4, 6)
    assert run(again, tmp_path / "again", second) == run(new, tmp_path / "new", second)
