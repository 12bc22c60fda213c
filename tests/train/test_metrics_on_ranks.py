"""What metrics see of several ranks, in threads; on processes this is tested by tests/ranks/test_evaluation.py."""

import pytest
import torch

from engine_core import State
from engine_core.errors import ArgumentError
from engine_core.testing import ThreadRanks
from engine_core.trainer import Measurement


class Seen:
    """Keeps what it is given."""

    def reset(self):
        self.given = []

    def update(self, outputs, targets):
        self.given.append((outputs, targets))

    def compute(self):
        return 0.0


def seen_by(batches, size=2):
    """Return what each rank's metric is given; `batches(rank)` are pairs, None for a placeholder."""

    def program(ranks):
        metric = Seen()
        metric.reset()
        measurement = Measurement({"seen": metric}, ranks)
        for pieces in batches(ranks.rank):
            for outputs, targets, is_placeholder in pieces:
                state = State(batch=(torch.zeros(len(targets)),), is_placeholder=is_placeholder)
                measurement.take(outputs, targets, state)
            measurement.meet()
        return metric.given

    return ThreadRanks.run(program, size)


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def test_a_metric_sees_the_rows_of_all_ranks_once_a_batch_whatever_the_microbatches():
    pieces = {
        0: [[(column(1, 2), column(10, 20), False), (column(3), column(30), False)]],
        1: [[(column(4), column(40), False)]],
        2: [[(column(1), column(10), True)]],  # it has no row of its own
    }
    for given in seen_by(pieces.get, 3):
        ((outputs, targets),) = given
        assert (outputs.tolist(), targets.tolist()) == ([1, 2, 3, 4], [10, 20, 30, 40])


def test_mappings_tuples_and_what_is_missing_keep_their_form():
    def batches(rank):
        rows = column(*[rank] * (rank + 1))
        return [[({"logits": rows, "loss": None, "states": [rows * 2, (rows * 3,)]}, rows, False)]]

    for ((outputs, targets),) in seen_by(batches):
        assert outputs["loss"] is None
        assert outputs["states"][1][0].tolist() == [0, 3, 3]
        assert (outputs["logits"].tolist(), targets.tolist()) == ([0, 1, 1], [0, 1, 1])


@pytest.mark.parametrize(
    ("outputs", "problem"),
    [
        (["a", "b", "c"], "a list"),
        ({"word": "x"}, "a str"),
        (torch.tensor(0.5), r"a tensor of shape \(\) for 2 rows"),
        (torch.zeros(7, 2, 3), r"a tensor of shape \(7, 2, 3\) for 2 rows"),
        (torch.zeros(4, 2, 3), r"a tensor of shape \(4, 2, 3\) for 2 rows"),
        ([{"boxes": torch.zeros(2, 4)}] * 3, "a list"),
        ([torch.zeros(6, 6)] * 2, r"a tensor of shape \(6, 6\) for 2 rows"),
        ((torch.zeros(6, 4), torch.zeros(2, 4)), r"a tensor of shape \(6, 4\) for 2 rows"),
        ({"maps": [torch.zeros(6, 6)] * 2}, r"a tensor of shape \(6, 6\) for 2 rows"),
    ],
)
def test_what_has_no_rows_to_gather_is_refused(outputs, problem):
    with pytest.raises(ArgumentError, match=f"metric 'seen' needs the outputs and targets of all ranks, and {problem}"):
        seen_by(lambda _: [[(outputs, column(1, 2), False)]])


def test_a_tuple_of_the_boxes_of_one_image_is_refused():
    boxes = (torch.zeros(3, 4),)
    pieces = [({"labels": column(1)}, boxes, False)]
    with pytest.raises(ArgumentError, match=r"a tensor of shape \(3, 4\) for 1 row"):
        seen_by(lambda _: [pieces])


def test_lists_with_an_item_for_each_row_come_from_all_ranks_whatever_their_shapes():
    def boxes(*numbers):
        return [{"boxes": torch.ones(number, 4)} for number in numbers]

    pieces = {
        0: [[(boxes(2, 0), (["a"], ["b", "c"]), False), (boxes(3), (["d"],), False)]],
        1: [[((boxes(2)), (["e"],), False)]],
        2: [[(boxes(5), (["f"],), True)]],
    }
    for given in seen_by(pieces.get, 3):
        ((outputs, targets),) = given
        assert [row["boxes"].shape for row in outputs] == [(2, 4), (0, 4), (3, 4), (2, 4)]
        assert targets == (["a"], ["b", "c"], ["d"], ["e"])


def test_a_tuple_of_as_many_tensors_as_there_are_rows_is_several_outputs():
    def batches(rank):
        rows = column(rank, rank + 10)
        return [[((rows, rows * 2), [{"boxes": torch.ones(rank, 4)}] * 2, False)]]

    for (((first, second), targets),) in seen_by(batches):
        assert (first.tolist(), second.tolist()) == ([0, 10, 1, 11], [0, 20, 2, 22])
        assert [len(row["boxes"]) for row in targets] == [0, 0, 1, 1]


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_tuple_of_as_many_mappings_of_tensors_as_there_are_rows_is_several_outputs(heads, rows):
    def batches(rank):
        own = torch.full((rows, 3), float(rank))
        outputs = tuple({"logits": own * (head + 1), "loss": None} for head in range(heads))
        boxes = tuple({"boxes": torch.ones(rows, 4)} for _ in range(rows))  # as `zip` makes them of the dataset's rows
        return [[(outputs, boxes, False)]]

    for ((outputs, boxes),) in seen_by(batches):
        assert [head["logits"][:, 0].tolist() for head in outputs] == [
            [0.0] * rows + [head + 1.0] * rows for head in range(heads)
        ]
        assert [len(row["boxes"]) for row in boxes] == [rows] * rows * 2


def test_shapes_that_differ_between_ranks_are_refused():
    with pytest.raises(ArgumentError, match=r"rank 0: torch.float32 \(rows, 1\).*rank 1: torch.float32 \(rows, 2\)"):
        seen_by(lambda rank: [[(torch.zeros(2, rank + 1), column(1, 2), False)]])


def test_flattened_rows_are_gathered_too():
    for ((outputs, _),) in seen_by(lambda rank: [[(torch.full((6, 3), float(rank)), column(1, 2), False)]]):
        assert outputs[:, 0].tolist() == [0.0] * 6 + [1.0] * 6
