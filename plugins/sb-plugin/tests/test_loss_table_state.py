"""What tables of losses save, and what they refuse to take back."""

import math
import warnings
from typing import Any

import pytest
import torch

from engine_core.errors import ArgumentError
from sb_plugin.table import LossTable, StaleScores

NAN, INF = math.nan, math.inf


def ids_of(*ids: int) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.long)


def near(values: list[float]) -> Any:
    return pytest.approx(values, nan_ok=True)


def test_what_is_saved_is_a_copy_up_to_the_highest_id_seen() -> None:
    table, stale, ids = LossTable("cpu"), StaleScores(3, "cpu"), ids_of(3, 1)
    table.look_up(ids_of(50))
    table.record(ids, torch.tensor([1.0, NAN]))
    stale.scores(ids_of(3, 1, 50), ids_of(0, 1), torch.tensor([1.0, NAN]))
    stale.scores(ids, ids_of(), torch.ones(0))
    saved, both = table.state_dict(), stale.state_dict()
    table.record(ids, torch.zeros(2))
    stale.scores(ids, ids_of(0, 1), torch.zeros(2))
    assert {name: values.tolist() for name, values in saved.items()} == {"table": near([INF, NAN, INF, 1])}
    assert both["table"].tolist() == near([INF, NAN, INF, 1])
    assert (both["visits"].dtype, both["visits"].tolist()) == (torch.int32, [0, 1, 0, 1])


def test_what_was_loaded_is_not_written_to() -> None:
    state = {"table": torch.ones(2), "visits": torch.zeros(2, dtype=torch.int32)}
    table, stale = LossTable("cpu"), StaleScores(3, "cpu")
    table.load_state_dict(state)
    stale.load_state_dict(state)
    table.record(ids_of(0), torch.zeros(1))
    stale.scores(ids_of(0, 1), ids_of(0), torch.zeros(1))
    assert {name: values.tolist() for name, values in state.items()} == {"table": [1, 1], "visits": [0, 0]}


def test_a_table_that_knows_nothing_is_saved_and_taken() -> None:
    table = LossTable("cpu")
    table.record(ids_of(0), torch.ones(1))
    table.load_state_dict(LossTable("cpu").state_dict())
    assert (len(table), table.state_dict()["table"].shape) == (0, (0,))


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are a prototype
        return torch.nested.nested_tensor([torch.tensor(1.0), torch.tensor(2.0)])


TABLE, VISITS = torch.ones(2), torch.zeros(2, dtype=torch.int32)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"visits": VISITS}, "has no 'table', only 'visits': give what state_dict"),
        ({"table": TABLE}, "has no 'visits', only 'table'"),
        (None, "has no 'visits', it is None"),
        ([TABLE], "has no 'visits', it is "),
        ({"table": [1.0], "visits": VISITS}, "'table' in the state is a list"),
        ({"table": TABLE.double(), "visits": VISITS}, "'table' in the state is a tensor of torch.float64"),
        ({"table": TABLE[None], "visits": VISITS}, r"shape \(1, 2\), .* of torch.float32 and shape \(ids,\)"),
        ({"table": TABLE.to_sparse(), "visits": VISITS}, "torch.sparse_coo on cpu: it has to be dense"),
        ({"table": TABLE.to("meta"), "visits": VISITS}, "on meta: it has to be dense"),
        ({"table": nested(), "visits": VISITS}, "shape nested"),
        ({"table": TABLE[:1].expand(2**28 + 1), "visits": VISITS}, "with at most 268435456 ids"),
        ({"table": -TABLE / 0, "visits": VISITS}, "'table' in the state has -inf"),
        ({"table": TABLE, "visits": VISITS.long()}, "'visits' in the state is a tensor of torch.int64"),
        ({"table": TABLE, "visits": VISITS - 1}, "'visits' in the state has negative numbers"),
        ({"table": TABLE, "visits": VISITS[:1]}, "has 1 'visits' for a 'table' of 2"),
    ],
)
def test_a_state_that_was_never_saved_is_refused_and_nothing_of_it_taken(state: Any, message: str) -> None:
    stale = StaleScores(3, "cpu")
    stale.scores(ids_of(0), ids_of(0), torch.tensor([5.0]))
    with pytest.raises(ArgumentError, match=message):
        stale.load_state_dict(state)
    assert [values.tolist() for values in stale.state_dict().values()] == [[5], [0]]
