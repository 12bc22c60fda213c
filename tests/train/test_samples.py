"""A list of samples has its items for rows, and a list or tuple of parts has not: the types decide, not the numbers."""

from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader

from engine_core.batch import are_samples, count_rows, map_batch, move_batch, slice_rows, split_batch, take_rows
from engine_core.errors import ArgumentError, ArgumentTypeError, OutOfMemoryError

from .parts import at, trainer

IMAGE = torch.zeros(3, 4, 4)


class Named(NamedTuple):
    image: Any
    boxes: Any


@dataclass
class Record:
    image: Any


@dataclass
class Labelled(Record):
    boxes: Any = None


def boxes(i: int) -> torch.Tensor:
    return torch.arange(4.0 * (i % 3 + 1)).reshape(-1, 4)


SAMPLES: dict[str, Callable[[int], Any]] = {
    "detection": lambda i: (IMAGE + i, {"boxes": boxes(i), "name": f"n{i}"}),
    "mappings": lambda i: {"image": IMAGE + i, "boxes": boxes(i)},
    "mappings of two types": lambda i: UserDict(x=boxes(i)) if i % 2 else {"x": boxes(i)},
    "mappings without tensors": lambda i: {"text": f"t{i}", "length": i},
    "tuples of tensors": lambda i: (IMAGE + i, torch.tensor(i)),
    "tuples of one": lambda i: (boxes(i),),
    "tuples of values": lambda i: (f"t{i}", i),
    "named tuples": lambda i: Named(IMAGE + i, boxes(i)),
    "dataclasses": lambda i: Record(IMAGE + i),
    "a dataclass and one of its own": lambda i: Record(boxes(i)) if i % 2 else Labelled(boxes(i), boxes(i)),
}


@pytest.fixture(params=SAMPLES)
def sample(request: pytest.FixtureRequest) -> Any:
    return SAMPLES[request.param]


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_the_rows_of_a_list_of_samples_are_its_items(sample: Any, count: int) -> None:
    """Three and four are also the numbers of channels and of numbers in a box."""
    batch = [sample(i) for i in range(count)]
    assert (are_samples(batch), count_rows(batch)) == (True, count)


def test_a_list_of_samples_is_cut_between_its_items_which_are_not_copied(sample: Any) -> None:
    batch = [sample(i) for i in range(5)]
    assert [[id(item) for item in piece] for piece, _ in split_batch(batch, 2)] == [
        [id(item) for item in batch[start : start + 2]] for start in (0, 2, 4)
    ]
    assert [share for _, share in split_batch(batch, 2)] == [0.4, 0.4, 0.2]
    assert [id(item) for item in slice_rows(batch, 5, 1, 3)] == [id(batch[1]), id(batch[2])]
    taken = take_rows(batch, 5, torch.tensor([4, 0]))
    assert type(taken) is list and [id(item) for item in taken] == [id(batch[4]), id(batch[0])]
    assert take_rows(batch, 3, torch.tensor([0])) is batch  # it has not so many rows, whatever is in it


def test_the_tensors_of_samples_are_moved(sample: Any) -> None:
    leaves: list[Any] = []
    map_batch(move_batch([sample(i) for i in range(3)], torch.device("meta")), leaves.append)
    assert all(leaf.is_meta for leaf in leaves if isinstance(leaf, torch.Tensor))
    assert any(isinstance(leaf, torch.Tensor) for leaf in leaves) or "t0" in str(leaves)


PARTS: dict[str, Any] = {
    "two tensors": [torch.zeros(6, 2), torch.zeros(6)],
    "a tensor without dimensions": [torch.tensor(0.5), torch.zeros(6, 2), torch.zeros(6)],
    "images of one size": [torch.zeros(6, 4, 4), torch.zeros(6, 4, 4), torch.zeros(6, 4, 4)],
    "lists": [[torch.zeros(6), torch.zeros(6)], [torch.zeros(6), torch.zeros(6)]],
    "a tensor and a mapping": [torch.zeros(6), {"x": torch.zeros(6)}],
    "a mapping and a tuple": [{"x": torch.zeros(6)}, (torch.zeros(6), torch.zeros(6))],
    "mappings without a common key": [{"x": torch.zeros(6)}, {"y": torch.zeros(6)}],
    "two dataclasses": [Record(torch.zeros(6)), Named(torch.zeros(6), None)],
    "tuple of mappings": ({"x": torch.zeros(6)}, {"y": torch.zeros(6)}),
    "tuple of tuples": ((torch.zeros(6), torch.zeros(6)), (torch.zeros(6), torch.zeros(6))),
    "tuple of dataclasses": (Record(torch.zeros(6)), Record(torch.zeros(6))),
    "tuple of different lengths": (torch.zeros(6), torch.zeros(4)),
    "arrays": [np.zeros((6, 2)), np.zeros(6)],
}


@pytest.mark.parametrize("kind", PARTS)
def test_everything_else_has_parts(kind: str) -> None:
    batch = PARTS[kind]
    assert (are_samples(batch), count_rows(batch)) == (False, 6)
    assert [count_rows(piece) for piece, _ in split_batch(batch, 4)] == [4, 2]


@pytest.mark.parametrize("kind", ["tuple of mappings", "tuple of dataclasses", "tuple of tuples"])
def test_a_tuple_of_parts_is_never_cut_between_them(kind: str) -> None:
    two_rows = slice_rows(PARTS[kind], 6, 0, 2)
    assert count_rows(two_rows) == 2
    assert [len(piece) for piece, _ in split_batch(two_rows, 1)] == [2, 2]


@pytest.mark.parametrize(
    ("sample", "samples"),
    [
        ((torch.zeros(2), 1), False),
        ((torch.zeros(2), [torch.zeros(3), torch.zeros(4)]), False),
        ([torch.zeros(2), torch.zeros(3)], False),
        (("text", "translation"), False),
        (("text", 1), False),
        (("text", torch.zeros(2)), False),
        ({"x": torch.zeros(2)}, False),
        (Named(torch.zeros(2), torch.zeros(3)), False),
        (({"x": torch.zeros(2)}, {"y": 1}), False),
        (({"x": torch.zeros(2)}, UserDict(y=1), {"x": 3}), False),
        # Documented: it takes a collate_fn that returns a tuple.
        (({"x": torch.zeros(2)}, {"x": torch.zeros(2), "y": 1}), True),
    ],
    ids=str,
)
def test_what_torchs_own_collate_makes_has_parts_and_all_its_rows(sample: Any, *, samples: bool) -> None:
    (batch,) = DataLoader([sample] * 7, batch_size=7)  # type: ignore[arg-type]
    assert are_samples(batch) is samples
    assert count_rows(batch) == (2 if samples else 7)


def test_samples_within_a_batch_are_its_rows_beside_lists_of_tensors() -> None:
    images, targets = [IMAGE + i for i in range(2)], [(boxes(i), torch.tensor(i)) for i in range(2)]
    records = tuple(Labelled(IMAGE, boxes(i)) for i in range(2))
    for batch in ((images, targets), {"images": images, "targets": targets}, (tuple(images), records)):
        assert count_rows(batch) == 2
        (first, _), (second, _) = split_batch(batch, 1)
        for piece, place in ((first, 0), (second, 1)):
            left, right = piece.values() if isinstance(piece, dict) else piece
            assert left[0] is images[place] and right[0] in (targets[place], records[place])


RAGGED = [torch.zeros(5, 2), torch.zeros(3, 2), torch.zeros(7, 2)]


def test_tensors_of_different_lengths_are_counted_but_never_cut() -> None:
    assert (count_rows(RAGGED), count_rows([torch.tensor(1.0), *RAGGED]), are_samples(RAGGED)) == (3, 4, False)
    for cut in (
        lambda: split_batch(RAGGED, 1),
        lambda: split_batch(RAGGED, 100),
        lambda: take_rows(RAGGED, 3, torch.tensor([0])),
        lambda: slice_rows(RAGGED, 3, 0, 1),
    ):
        with pytest.raises(ArgumentError) as error:
            cut()
        assert str(error.value) == (
            "a list of 3 tensors whose first dimensions differ (5, 3) can't be split by microbatch_size, nor can "
            "rows be taken from it: let the loader's collate_fn make it a tuple if they are parts of the batch, or "
            "[(tensor,), ...] if each is a sample"
        )
    assert count_rows(tuple(RAGGED)) == 5
    assert [len(piece) for piece, _ in split_batch([(tensor,) for tensor in RAGGED], 2)] == [2, 1]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=9), st.integers(1, 10))
def test_however_large_its_tensors_are_a_list_of_samples_is_cut_alike(lengths: list[int], size: int) -> None:
    batch = [(torch.zeros(length, 2), {"boxes": torch.zeros(length, 4)}) for length in lengths]
    pieces = [piece for piece, _ in split_batch(batch, size)]
    assert [item for piece in pieces for item in map(id, piece)] == list(map(id, batch))
    assert {len(piece) for piece in pieces[:-1]} <= {size}


class Detector(nn.Module):
    """Takes images and targets as torchvision's detectors do, and has its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.got: list[int] = []

    def forward(self, batch: Any) -> list[torch.Tensor]:
        self.got.append(len(batch))
        return [self.scale * image.mean() for image, _ in batch]

    def loss(self, outputs: list[torch.Tensor], batch: Any) -> torch.Tensor:
        losses = [(o - target["boxes"].mean()) ** 2 for o, (_, target) in zip(outputs, batch, strict=True)]
        return torch.stack(losses).mean()


def detected(count: int) -> Any:
    return [(IMAGE + i, {"boxes": boxes(i)}) for i in range(count)]


def test_a_detector_trains_in_microbatches_as_on_whole_batches_and_its_samples_are_counted() -> None:
    data, results = [detected(8), detected(5)], []
    for size in (None, 3):
        made = trainer(data, Detector(), loss_fn=None, microbatch_size=size, eval_dataloader=data)
        made.fit()
        results.append((made.state.model.scale.item(), made.state.metrics["eval/loss"]))
        assert made.state.timestamp.sample == 13
    assert made.state.model.got == [3, 3, 2, 3, 2, 8, 5]
    assert results[1] == pytest.approx(results[0])
    assert made.eval([[*data[0], *data[1]]]) == pytest.approx(made.state.metrics)


@pytest.mark.parametrize("size", [2, 100])
def test_a_list_that_can_not_be_cut_is_refused_at_the_first_batch(size: int) -> None:
    steps: list[int] = []
    made = trainer(
        [RAGGED], Detector(), loss_fn=None, microbatch_size=size, callbacks=at("batch_end", lambda _: steps.append(1))
    )
    with pytest.raises(ArgumentError, match=r"first dimensions differ .* \[\(tensor,\), \.\.\.\] if each is a sample"):
        made.fit()
    assert steps == []


@pytest.mark.parametrize("batch", [detected(2), [{"x": IMAGE}, {"x": IMAGE}]], ids=["tuples", "mappings"])
def test_samples_beside_a_loss_function_are_not_taken_for_inputs_and_targets(batch: Any) -> None:
    with pytest.raises(ArgumentTypeError) as error:
        trainer([batch]).fit()
    assert str(error.value) == (
        f"with loss_fn a batch has to be (inputs, targets), but a list of {type(batch[0]).__name__} is a list of 2 "
        "samples: let the loader's collate_fn return a tuple if they are inputs and targets; samples need a model "
        "with its own loss(outputs, batch)"
    )


def test_what_did_not_fit_into_memory_is_counted_in_samples() -> None:
    class Hungry(Detector):
        def forward(self, batch: Any) -> Any:
            raise MemoryError

    with pytest.raises(OutOfMemoryError, match=r"with 8 rows, all of them at once: set microbatch_size=4 or less"):
        trainer([detected(8)], Hungry(), loss_fn=None).fit()
    with pytest.raises(OutOfMemoryError, match="with batches of 8 rows"):
        trainer(model=Hungry(), loss_fn=None).eval([detected(8)])
