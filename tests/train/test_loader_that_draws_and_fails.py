"""A dataset that draws and fails: the batch is drawn again as it would have been, and its error is its own."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from engine_core.callbacks.checkpoint_saver import CheckpointSaver

from .parts import Memory, at, net, notes, rows, same, trainer


class Drawing(Dataset[Any]):
    """Rows with noise from some generator, of which one fails once it has drawn, while a file is there."""

    def __init__(self, marker: Path, draw: Callable[[Any], float], row: int = 7) -> None:
        self.inputs, self.targets = rows(22)
        self.marker, self.draw, self.row = marker, draw, row
        self.own = np.random.default_rng(3)

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> Any:
        noise = self.draw(self)
        if index == self.row and self.marker.exists():
            raise OSError(f"row {index} can't be read")
        return self.inputs[index] + noise, self.targets[index]


class InTurn(Sampler[int]):
    """A sampler of one's own, so that the batches of a resumed run are read again."""

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(22).tolist()

    def __len__(self) -> int:
        return 22


class Stream(IterableDataset[Any]):
    def __init__(self, data: Drawing) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        return (self.data[index] for index in range(22))


DRAWS: dict[str, Callable[[Any], float]] = {
    "torch": lambda data: torch.rand(1).item(),
    "python": lambda data: random.random(),
    "numpy": lambda data: float(np.random.rand()),
    "its own": lambda data: float(data.own.random()),
}
LOADERS: dict[str, Callable[[Any], Any]] = {
    "shuffled": lambda data: DataLoader(data, batch_size=4, shuffle=True),
    "with a generator": lambda data: DataLoader(
        data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1)
    ),
    "with a sampler": lambda data: DataLoader(data, batch_size=4, sampler=InTurn()),
    "a stream": lambda data: DataLoader(Stream(data), batch_size=4),
}


def run(folder: Path, data: Any, loader: str, loggers: Any = (), callbacks: Any = (), **settings: Any) -> Any:
    return trainer(
        LOADERS[loader](data),
        net(dropout=0.2),
        max_duration="2ep",
        seed=3,
        callbacks=[*callbacks, CheckpointSaver(folder / "saved", "100ba")],
        loggers=loggers,
        **settings,
    )


def left(made: Any) -> Any:
    return dict(made.state.model.state_dict()), torch.get_rng_state(), list(random.getstate()[1])


@pytest.mark.filterwarnings("ignore:.*can't be resumed exactly")
@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("row", [1, 7])
def test_the_batch_that_failed_is_drawn_again_as_it_would_have_been(
    row: int, draw: str, loader: str, tmp_path: Path
) -> None:
    marker, whole, first, second = tmp_path / "faulty", Memory(), Memory(), Memory()
    # What callbacks draw before a batch is drawn again too. A sampler that draws its order late would draw after it.
    draws = [at("before_dataloader", lambda state: torch.rand(3))] if loader != "with a sampler" else []
    with run(tmp_path / "whole", Drawing(marker, DRAWS[draw], row), loader, whole, draws) as uninterrupted:
        uninterrupted.fit()
    expected = left(uninterrupted)
    marker.touch()
    made = run(tmp_path, Drawing(marker, DRAWS[draw], row), loader, first, draws)
    with made, pytest.raises(OSError, match=f"row {row}"):
        made.fit()
    marker.unlink()
    made = run(tmp_path, Drawing(marker, DRAWS[draw], row), loader, second, draws, autoresume=True)
    with made:
        made.fit()
    assert same(left(made), expected)
    assert first.metrics + second.metrics == whole.metrics


@pytest.mark.filterwarnings("ignore:.*can't be resumed exactly")
@pytest.mark.parametrize("loader", ["with a sampler", "a stream"])
def test_an_error_while_batches_are_read_again_is_the_datasets(loader: str, tmp_path: Path) -> None:
    marker = tmp_path / "faulty"
    data = Drawing(marker, DRAWS["torch"])
    with run(tmp_path, data, loader) as made:
        made.fit("5ba")
    marker.touch()
    with pytest.raises(OSError, match="row 7 can't be read") as error:
        run(tmp_path, data, loader, autoresume=True)
    assert notes(error) == ["raised when the resumed run read the epoch again, up to batch 5 of epoch 0"]


@pytest.mark.filterwarnings("ignore:.*can't be resumed exactly")
def test_so_is_one_of_a_worker(tmp_path: Path) -> None:
    def make(**settings: Any) -> Any:
        loader = DataLoader(Drawing(tmp_path / "faulty", DRAWS["torch"]), batch_size=4, sampler=InTurn(), num_workers=1)
        return trainer(loader, net(), seed=3, callbacks=CheckpointSaver(tmp_path / "saved", "100ba"), **settings)

    with make() as made:
        made.fit("5ba")
    (tmp_path / "faulty").touch()
    with pytest.raises(OSError, match="Caught OSError in DataLoader worker process 0"):
        make(autoresume=True)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it, with torch 2.13
def test_so_is_one_of_a_stateful_loader(tmp_path: Path) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def make(**settings: Any) -> Any:
        loader = stateful(Stream(Drawing(tmp_path / "faulty", DRAWS["torch"])), batch_size=4)
        return trainer(loader, net(), seed=3, callbacks=CheckpointSaver(tmp_path / "saved", "100ba"), **settings)

    with make() as made:
        made.fit("5ba")
    (tmp_path / "faulty").touch()
    with pytest.raises(OSError, match="row 7 can't be read"):
        make(autoresume=True)
