"""What could be a row in two ways is refused, with the item, the shapes, and the line to write."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader

from engine_core import Batches
from engine_core.batch import count_rows, take_rows
from engine_core.errors import ArgumentError, ArgumentTypeError


class Pair(NamedTuple):
    inputs: Any
    targets: Any


class Graph:
    """An object of the user's own."""


GRAPH = Graph()
ITSELF: dict[str, Any] = {}
ITSELF["root"] = ITSELF
X, Y = torch.zeros(8, 3), torch.zeros(8)
TAKE = "Batches(count=..., take=...), with a function that counts the rows of a batch and one that takes some"
ANYTHING = ", or count= and take= for anything else"
REFUSED: dict[str, tuple[Any, str]] = {
    "one disagrees": (
        {"temperature": torch.ones(1), "x": X, "y": Y},
        (
            "batch['temperature'] of shape (1,) has 1 row and batch['x'] of shape (8, 3) has 8: say "
            f"Batches(shared=('temperature',)) if it belongs to no row{ANYTHING}"
        ),
    ),
    "another dimension": (
        (X, {"state": torch.zeros(2, 8, 5)}),
        (
            "batch[1]['state'] of shape (2, 8, 5) has 2 rows and batch[0] of shape (8, 3) has 8: say "
            "Batches(shared=('1.state',)) if it belongs to no row, Batches(dim={'1.state': 1}) if its rows are in "
            f"another dimension{ANYTHING}"
        ),
    ),
    "images of any size": (
        [torch.zeros(3, 4), torch.zeros(5, 4), torch.zeros(3, 4)],
        (
            "batch[1] of shape (5, 4) has 5 rows and batch[0] of shape (3, 4) has 3: say Batches(shared=(1,)) if it "
            f"belongs to no row, Batches(samples=True) if each is a sample{ANYTHING}"
        ),
    ),
    "a tuple of them": (
        ((torch.zeros(3, 4), torch.zeros(5, 4)), torch.zeros(2), torch.zeros(2)),
        (
            "batch[0][0] of shape (3, 4) has 3 rows and batch[1] of shape (2,) has 2: say Batches(shared=('0.0', "
            f"'0.1')) if it belongs to no row, Batches(per_row=(0,)) if each of these is of one row{ANYTHING}"
        ),
    ),
    "lists of tensors": (
        ([X[0]] * 8, [torch.zeros(2)] * 8, ["n"] * 8),
        (
            "batch[0] is a list of 8 items, the first of type Tensor: say Batches(per_row=(0, 1)) if it has one for "
            "each row, Batches(dim={0: 0}) if each has all rows in its first dimension"
        ),
    ),
    "a tuple of records": (
        {"images": X, "targets": ({"box": X}, {"box": X})},
        (
            "batch['targets'] is a tuple of 2 items, the first of type dict: say Batches(per_row=('targets',)) if it "
            "has one for each row, Batches(dim={'targets': 0}) if each has all rows in its first dimension"
        ),
    ),
    "samples": (
        [(X, "a"), (X, "b")],
        (
            "batch is a list of 2 items, the first of type tuple: say Batches(samples=True) if each is a sample, "
            "Batches(dim={'': 0}) if each has all rows in its first dimension"
        ),
    ),
    "an object": (GRAPH, f"the rows of a batch of type Graph can't be counted: say {TAKE}"),
    "an object in a batch": (
        Pair(GRAPH, Y),
        (
            "batch.inputs is of type Graph, whose rows can't be counted: say Batches(shared=('inputs',)) if it belongs "
            f"to no row, else {TAKE}"
        ),
    ),
    "a packed sequence": (
        (pack_sequence([torch.ones(3), torch.ones(2)]), Y),
        f"batch[0] is of type PackedSequence, whose rows can't be counted: say {TAKE}",
    ),
    "no tensor": (
        (["a", "b"], [0, 1], 3),
        (
            "a batch of type tuple holds no tensor whose rows could be counted: say Batches(per_row=(0, 1)) if these "
            "lists have an entry for each"
        ),
    ),
    "strings": (
        ["a", "b"],
        (
            "a batch of type list holds no tensor whose rows could be counted: say Batches(samples=True) if each of "
            "its items is a row"
        ),
    ),
    "itself": (ITSELF, f"a batch of type dict holds itself: say {TAKE}"),
    "nothing": ({"n": 3}, f"a batch of type dict holds no tensor whose rows could be counted: say {TAKE}"),
}


@pytest.mark.parametrize(("batch", "message"), REFUSED.values(), ids=list(REFUSED))
def test_what_could_be_one_thing_or_another_is_refused_with_the_line_to_write(batch: Any, message: str) -> None:
    for ask in (count_rows, lambda batch: Batches().part(batch, slice(1)), lambda batch: Batches().split(batch, 100)):
        with pytest.raises(ArgumentError) as error:
            ask(batch)
        assert str(error.value) == message


def test_lists_that_could_be_rows_or_parts_are_refused_where_they_have_to_be_cut() -> None:
    batch = {"x": X, "words": [list("ab") * 4] * 8, "names": ["a"] * 8, "pair": (["a"] * 8, ["b"] * 8)}
    with pytest.raises(ArgumentError, match=r"batch\['words'\] is a list of 8 items, and so are the lists in it: say "):
        Batches().part(batch, slice(2))
    assert [*map(len, Batches(per_row=("words",)).part(batch, slice(2)).values())] == [2, 2, 2, 2]
    part = Batches(dim={"words": 0}).part(batch, slice(2))
    assert [len(part["words"]), *map(len, (*part["words"], *part["pair"]))] == [8, *[2] * 10]


@pytest.mark.parametrize("kind", ["sparse coo", "sparse csr", "nested"])
def test_what_can_be_counted_but_not_cut_is_refused_where_it_has_to_be_cut(kind: str) -> None:
    of_kind: dict[str, Callable[[], torch.Tensor]] = {
        "sparse coo": X.to_sparse,
        "sparse csr": X.to_sparse_csr,
        "nested": lambda: torch.nested.nested_tensor([torch.ones(2)] * 8),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        item = of_kind[kind]()
    assert (count_rows((item, Y)), count_rows({"x": item, "y": Y, "n": 1})) == (8, 8)
    for cut in (lambda: Batches().part((item, Y), slice(2)), lambda: take_rows((item, Y), 8, torch.tensor([1]))):
        with pytest.raises(ArgumentError) as error:
            cut()
        assert str(error.value) == f"batch[0] is a {kind} tensor, whose rows can't be cut: say {TAKE}"


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        ([X, Y], 8),
        ([X, Y, Y], 8),
        ((torch.tensor(1.0), Y), 8),
        ({"meta": {"lengths": Y}, "x": X}, 8),
        ((torch.zeros(0, 3), torch.zeros(0)), 0),
        ([Y, ("a",) * 8], 8),
    ],
    ids=str,
)
def test_all_tensors_agree_on_the_rows(batch: Any, rows: int) -> None:
    assert count_rows(batch) == rows


@pytest.mark.parametrize("sample", [(X[0], 1), [X[0], X[1]], ("text", X[0]), {"x": X[0]}, Pair(X[0], Y[0])], ids=str)
def test_what_torchs_own_collate_makes_has_all_its_rows(sample: Any) -> None:
    (batch,) = DataLoader([sample] * 7, batch_size=7)  # type: ignore[arg-type]
    assert count_rows(batch) == 7


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"shared": "x"}, ArgumentTypeError, "shared='x' has to be such as shared=('x',)"),
        ({"dim": ("x",)}, ArgumentTypeError, "dim=('x',) has to be such as dim={'x': 1}"),
        ({"dim": {"x": "1"}}, ArgumentTypeError, "dim={'x': '1'} has to be such as dim={'x': 1}; a path is"),
        (
            {"per_row": (-1,)},
            ArgumentTypeError,
            "per_row=(-1,) has to be such as per_row=('x',); a path is an index from 0 on",
        ),
        ({"samples": 1}, ArgumentTypeError, "samples=1 has to be True or False"),
        ({"count": 3}, ArgumentTypeError, "count=3 has to be a function of a batch"),
        ({"shared": (0,), "dim": {"0": 1}}, ArgumentError, "'0' is in dim too; it can be in one of shared"),
        ({"samples": True, "shared": (0,)}, ArgumentError, "samples says what all rows are, so leave out shared"),
        ({"count": len, "samples": True}, ArgumentError, "samples says what all rows are, so leave out count"),
    ],
    ids=str,
)
def test_arguments_that_can_not_work_are_refused(given: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as error:
        Batches(**given)
    assert str(error.value).startswith(f"Batches: {message}")


@pytest.mark.parametrize(
    ("batches", "batch", "message"),
    [
        (Batches(samples=True), {"x": X}, "Batches(samples=True) is for batches that are lists, not a dict"),
        (Batches(per_row=(0,)), ("text", Y), "batch[0] is 'text' (str), and Batches(per_row=...) is for lists with"),
        (
            Batches(dim={"input": 1}),
            {"inputs": X},
            "Batches(dim=...) names 'input', which is not in the batch; did you",
        ),
        (Batches(dim={1: 1}), (X, Y), "batch[1] of shape (8,) has no dimension 1, where Batches(dim=...) looks for"),
    ],
    ids=str,
)
def test_a_batch_that_is_not_as_the_user_says_is_refused(batches: Batches, batch: Any, message: str) -> None:
    with pytest.raises(ArgumentError) as error:
        batches.rows(batch)
    assert str(error.value).startswith(message)
