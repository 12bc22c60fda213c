"""A train loader that raises in mid-epoch: the place is reported, the run saved, and the same batch asked for again."""

import os
import shutil
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import CheckpointWarning

from .parts import Memory, at, batches, net, notes, rows, same, trainer

ROWS = 22
SIGNAL = "may die"  # the file that a dying worker waits for: a test chooses where the training is by then


class Faulty(Dataset[Any]):
    """Rows, of which one raises while a file is there, or ends the process when a second file is there too."""

    def __init__(self, marker: Path, row: int, *, dies: bool = False) -> None:
        self.inputs, self.targets = rows(ROWS)
        self.marker, self.row, self.dies = marker, row, dies

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        if index == self.row and self.marker.exists():
            if self.dies:
                wait_for(self.marker.with_name(SIGNAL))
                os._exit(3)
            raise OSError(f"row {index} can't be read")
        return self.inputs[index], self.targets[index]


def wait_for(path: Path) -> None:
    """Wait for a file, and a moment longer."""
    until = time.monotonic() + 60
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.3)


def run(folder: Path, row: int = 7, workers: int = 0, loggers: Any = (), **settings: Any) -> Any:
    data = Faulty(folder / "faulty", row, dies=settings.pop("dies", False))
    return trainer(
        DataLoader(data, batch_size=4, shuffle=True, num_workers=workers),
        net(dropout=0.2),
        max_duration="2ep",
        seed=3,
        callbacks=[CheckpointSaver(folder / "saved", "100ba"), *settings.pop("callbacks", ())],
        loggers=loggers,
        **settings,
    )


def learned(made: Any) -> Any:
    return dict(made.state.model.state_dict()), torch.get_rng_state()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    memory = Memory()
    with run(tmp_path_factory.mktemp("whole"), loggers=memory) as made:
        made.fit()
    return learned(made), memory.metrics


@pytest.mark.parametrize(("row", "workers"), [(7, 0), (1, 0), (7, 2)])
def test_no_batch_is_lost_and_the_run_continues_when_the_row_can_be_read(
    row: int, workers: int, whole: Any, tmp_path: Path
) -> None:
    (tmp_path / "faulty").touch()
    first, second = Memory(), Memory()
    with run(tmp_path, row, workers, first) as made, pytest.raises(OSError, match=f"row {row} can't be read") as error:
        made.fit()
    at_fault = made.state.timestamp
    assert notes(error) == [f"the train_dataloader failed at batch {at_fault.batch} of epoch 0"]
    assert [path.name for path in (tmp_path / "saved").glob("ep*")] == [f"ep0-ba{at_fault.batch}"]
    (tmp_path / "faulty").unlink()
    with run(tmp_path, row, workers, second, autoresume=True) as made:
        made.fit()
    assert same(learned(made), whole[0])
    assert first.metrics + second.metrics == whole[1]


@pytest.mark.parametrize(
    ("event", "batch", "noted", "saved"),
    [
        ("before_dataloader", 3, "the train_dataloader failed at batch 3 of epoch 0", ["ep0-ba3"]),
        # torch raises where the main thread is: this batch is cut, and trained on again after the resume.
        ("batch_start", 2, "raised by callback At at BATCH_START", []),
    ],
    ids=["while its batch is awaited", "in the middle of another batch"],
)
def test_a_worker_that_dies_loses_no_batch(
    event: str, batch: int, noted: str, saved: list[str], whole: Any, tmp_path: Path
) -> None:
    def let_it_die(state: Any) -> None:
        if state.timestamp.batch == batch:
            (tmp_path / SIGNAL).touch()
            if event == "batch_start":
                time.sleep(60)  # the worker's death ends it

    (tmp_path / "faulty").touch()
    made = run(tmp_path, workers=2, dies=True, callbacks=[at(event, let_it_die)])
    with made, pytest.raises(RuntimeError, match="exited unexpectedly") as error:
        made.fit()
    assert notes(error)[-1] == noted
    assert [path.name for path in (tmp_path / "saved").glob("ep*")] == saved
    (tmp_path / "faulty").unlink()
    with run(tmp_path, workers=2, autoresume=True) as made:
        made.fit()
    assert same(learned(made)[0], whole[0][0])


def test_the_same_trainer_continues_after_the_row(tmp_path: Path) -> None:
    (tmp_path / "faulty").touch()
    with run(tmp_path) as made:
        with pytest.raises(OSError, match="row 7"):
            made.fit()
        (tmp_path / "faulty").unlink()
        made.fit()
    assert made.state.timestamp.batch == 11
    assert not made.state.loop.pause_requested


def test_before_the_first_batch_there_is_nothing_to_save(tmp_path: Path) -> None:
    def broken() -> Iterator[Any]:
        raise ValueError("no such file")
        yield

    class Broken(list[Any]):
        __iter__ = staticmethod(broken)

    with (
        trainer(Broken(batches(8)), callbacks=CheckpointSaver(tmp_path)) as made,
        pytest.raises(ValueError, match="no such") as error,
    ):
        made.fit()
    assert "the train_dataloader failed at batch 0 of epoch 0" in notes(error)
    assert not list(tmp_path.glob("ep*"))


def test_a_save_that_fails_then_is_a_note_on_the_loader_s_error() -> None:
    def fail(state: Any) -> None:
        raise LookupError("a saver's")

    def two() -> Iterator[Any]:
        yield from batches(8)
        raise ValueError("the loader's")

    class Two:
        __iter__ = staticmethod(two)

    once = iter([False, True])
    callback = at("batch_checkpoint", lambda state: fail(state) if next(once) else None)
    with trainer(Two(), callbacks=callback) as made, pytest.raises(ValueError, match="the loader's") as error:
        made.fit()
    assert "the run could not be saved: a saver's" in notes(error)


def test_a_loader_that_cannot_start_loses_no_epoch(whole: Any, tmp_path: Path) -> None:
    class Late(DataLoader[Any]):
        begins = True

        def __iter__(self) -> Any:
            iterator = super().__iter__()
            torch.rand(3)  # as one that draws before it fails
            if not self.begins:
                raise OSError("no disk today")
            return iterator

    def made(*, begins: bool) -> Any:
        loader = Late(Faulty(tmp_path / "faulty", 7), batch_size=4, shuffle=True)
        breaks = at("epoch_end", lambda state: setattr(loader, "begins", begins))
        callbacks = [CheckpointSaver(tmp_path / f"saved {begins}", "100ba"), breaks]
        return trainer(loader, net(dropout=0.2), max_duration="2ep", seed=3, callbacks=callbacks, autoresume=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)  # of an __iter__ of its own
        with made(begins=True) as uninterrupted:
            uninterrupted.fit()
        with made(begins=False) as failing, pytest.raises(OSError, match="no disk") as error:
            failing.fit()
        assert "the train_dataloader failed at batch 0 of epoch 1" in notes(error)
        shutil.copytree(tmp_path / "saved False", tmp_path / "again")
        shutil.rmtree(tmp_path / "saved True")
        (tmp_path / "again").rename(tmp_path / "saved True")
        with made(begins=True) as resumed:
            resumed.fit()
    assert same(learned(resumed)[0], learned(uninterrupted)[0])


class Positioned(list[Any]):
    """A loader with its own state, which skips what it could not give."""

    at = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < len(self):
            self.at += 1
            if self[self.at - 1] is None:
                raise OSError("not this one")
            yield self[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def test_a_loader_with_its_own_state_knows_where_to_continue(tmp_path: Path) -> None:
    data = batches(8, 7, 6)
    made = trainer(Positioned([data[0], None, data[2]]), callbacks=CheckpointSaver(tmp_path))
    with made, pytest.raises(OSError, match="not this one") as error:
        made.fit()
    assert notes(error) == [
        "the train_dataloader failed at batch 1 of epoch 0; a resumed run continues where its state_dict says"
    ]
