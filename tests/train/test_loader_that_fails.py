"""A train loader that raises, maybe after it drew: the run is saved, and the same batch is asked for again."""

import os
import random
import time
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import CheckpointWarning

from .parts import Memory, at, batches, net, notes, rows, same, trainer

ROWS = 22
SIGNAL = "may die"  # the file that a dying worker waits for: a test chooses where the training is by then


class Faulty(Dataset):
    """Rows, of which one raises while a file is there, or ends the process when a second file is there too."""

    def __init__(self, marker, *, dies=False):
        self.inputs, self.targets = rows(ROWS)
        self.marker, self.dies = marker, dies

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        if index == 7 and self.marker.exists():
            if self.dies:
                wait_for(self.marker.with_name(SIGNAL))
                os._exit(3)
            raise OSError(f"row {index} can't be read")
        return self.inputs[index], self.targets[index]


def wait_for(path):
    """Wait for a file, and a moment longer."""
    until = time.monotonic() + 60
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.3)


def run(folder, workers=0, *, dies=False, callbacks=(), **settings):
    loader = DataLoader(Faulty(folder / "faulty", dies=dies), batch_size=4, shuffle=True, num_workers=workers)
    return trained_on(loader, folder, callbacks, **settings)


def trained_on(loader, folder, callbacks=(), **settings):
    callbacks = [*callbacks, CheckpointSaver(folder / "saved", "100ba")]
    return trainer(loader, net(dropout=0.2), max_duration="2ep", seed=3, callbacks=callbacks, **settings)


def learned(made):
    return dict(made.state.model.state_dict()), torch.get_rng_state()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    memory = Memory()
    with run(tmp_path_factory.mktemp("whole"), loggers=memory) as made:
        made.fit()
    return learned(made), memory.metrics


def test_no_batch_of_workers_is_lost_and_the_run_continues_when_the_row_can_be_read(whole, tmp_path):
    (tmp_path / "faulty").touch()
    first, second = Memory(), Memory()
    with run(tmp_path, 2, loggers=first) as made, pytest.raises(OSError, match="row 7 can't be read") as error:
        made.fit()
    at_fault = made.state.timestamp
    assert notes(error) == [f"the train_dataloader failed at batch {at_fault.batch} of epoch 0"]
    assert [path.name for path in (tmp_path / "saved").glob("ep*")] == [f"ep0-ba{at_fault.batch}"]
    (tmp_path / "faulty").unlink()
    with run(tmp_path, 2, loggers=second, autoresume=True) as made:
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
def test_a_worker_that_dies_loses_no_batch(event, batch, noted, saved, whole, tmp_path):
    def let_it_die(state):
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


def test_a_save_that_fails_then_is_a_note_on_the_loader_s_error():
    def fail(state):
        if next(once):
            raise LookupError("a saver's")

    class Two:
        def __iter__(self):
            yield from batches(8)
            raise ValueError("the loader's")

    once = iter([False, True])
    with (
        trainer(Two(), callbacks=at("batch_checkpoint", fail)) as made,
        pytest.raises(ValueError, match="loader's") as error,
    ):
        made.fit()
    assert "the run could not be saved: a saver's" in notes(error)


class Positioned(list):
    """A loader with its own state, which skips what it could not give."""

    at = 0

    def __iter__(self):
        while self.at < len(self):
            self.at += 1
            if self[self.at - 1] is None:
                raise OSError("not this one")
            yield self[self.at - 1]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def test_a_loader_with_its_own_state_knows_where_to_continue(tmp_path):
    first, _, last = batches(8, 7, 6)
    made = trainer(Positioned([first, None, last]), callbacks=CheckpointSaver(tmp_path))
    with made, pytest.raises(OSError, match="not this one") as error:
        made.fit()
    where = "a resumed run continues where its state_dict says"
    assert notes(error) == [f"the train_dataloader failed at batch 1 of epoch 0; {where}"]


def test_a_loader_that_cannot_start_loses_no_epoch(tmp_path):
    class Late(DataLoader):
        begins = True

        def __iter__(self):
            iterator = super().__iter__()
            torch.rand(3)  # as one that draws before it fails
            if not self.begins:
                raise OSError("no disk today")
            return iterator

    def made(folder, *, begins):
        loader = Late(Faulty(tmp_path / "faulty"), batch_size=4, shuffle=True)
        breaks = at("epoch_end", lambda state: setattr(loader, "begins", begins))
        return trained_on(loader, tmp_path / folder, [breaks], autoresume=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)  # of an __iter__ of its own
        with made("whole", begins=True) as uninterrupted:
            uninterrupted.fit()
        with made("broken", begins=False) as failing, pytest.raises(OSError, match="no disk") as error:
            failing.fit()
        assert "the train_dataloader failed at batch 0 of epoch 1" in notes(error)
        with made("broken", begins=True) as resumed:
            resumed.fit()
    assert same(learned(resumed)[0], learned(uninterrupted)[0])


class Drawing(Faulty):
    """Rows with noise from some generator, of which one fails once it has drawn, while a file is there."""

    def __init__(self, marker, draw, row=7):
        super().__init__(marker)
        self.draw, self.row, self.own = draw, row, np.random.default_rng(3)

    def __getitem__(self, index):
        noise = self.draw(self)
        if index == self.row and self.marker.exists():
            raise OSError(f"row {index} can't be read")
        return self.inputs[index] + noise, self.targets[index]


class InTurn(Sampler):
    """A sampler of one's own, so that the batches of a resumed run are read again."""

    def __iter__(self):
        yield from torch.randperm(ROWS).tolist()

    def __len__(self):
        return ROWS


class Stream(IterableDataset):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return map(self.data.__getitem__, range(ROWS))


DRAWS = {
    "torch": lambda data: torch.rand(1).item(),
    "python": lambda data: random.random(),
    "numpy": lambda data: float(np.random.rand()),
    "its own": lambda data: float(data.own.random()),
}
LOADERS = {
    "shuffled": lambda data: DataLoader(data, 4, shuffle=True),
    "with a generator": lambda data: DataLoader(data, 4, shuffle=True, generator=torch.Generator().manual_seed(1)),
    "with a sampler": lambda data: DataLoader(data, 4, sampler=InTurn()),
    "a stream": lambda data: DataLoader(Stream(data), 4),
}


def left(made):
    return *learned(made), list(random.getstate()[1])


@pytest.mark.filterwarnings("ignore:.*can't be resumed exactly")
@pytest.mark.parametrize(
    ("row", "draw", "loader"),
    [*((7, draw, "shuffled") for draw in DRAWS), *((1, "numpy", loader) for loader in LOADERS)],
)
def test_the_batch_that_failed_is_drawn_again_as_it_would_have_been(row, draw, loader, tmp_path):
    marker, whole, first, second = tmp_path / "faulty", Memory(), Memory(), Memory()
    # What callbacks draw before a batch is drawn again too. A sampler that draws its order late would draw after it.
    draws = [at("before_dataloader", lambda state: torch.rand(3))] if loader != "with a sampler" else []

    def run(folder, memory, **settings):
        data = LOADERS[loader](Drawing(marker, DRAWS[draw], row))
        return trained_on(data, tmp_path / folder, draws, loggers=memory, **settings)

    with run("whole", whole) as uninterrupted:
        uninterrupted.fit()
    expected = left(uninterrupted)
    marker.touch()
    with run("broken", first) as made, pytest.raises(OSError, match=f"row {row}"):
        made.fit()
    marker.unlink()
    with run("broken", second, autoresume=True) as made:
        made.fit()
    assert same(left(made), expected)
    assert first.metrics + second.metrics == whole.metrics


KINDS = {
    "with a sampler": ("row 7 can't be read", LOADERS["with a sampler"]),
    "a stream": ("row 7 can't be read", LOADERS["a stream"]),
    "with a worker": (
        "Caught OSError in DataLoader w",
        lambda data: DataLoader(data, 4, sampler=InTurn(), num_workers=1),
    ),
    "with a state": ("row 7 can't be read", lambda data: stateful(Stream(data), batch_size=4)),
}


def stateful(*given, **more):
    return pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader(*given, **more)


@pytest.mark.filterwarnings("ignore:.*can't be resumed exactly")
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it, with torch 2.13
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_while_batches_are_read_again_is_the_datasets(kind, tmp_path):
    message, make = KINDS[kind]
    loader = make(Drawing(tmp_path / "faulty", DRAWS["torch"]))
    with trained_on(loader, tmp_path) as made:
        made.fit("5ba")
    (tmp_path / "faulty").touch()
    with pytest.raises(OSError, match=message) as error:
        trained_on(loader, tmp_path, autoresume=True)
    if "state" not in kind:
        assert notes(error) == ["raised when the resumed run read the epoch again, up to batch 5 of epoch 0"]
