"""Tables of losses by the ids of examples, against dicts of Python."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.errors import ArgumentError, ArgumentTypeError
from sb_plugin.table import LossTable, StaleScores, home

NAN, INF = math.nan, math.inf
LOSSES = st.floats(-10, 10, width=32) | st.sampled_from([NAN, INF, -INF])
ROWS = st.lists(st.tuples(st.integers(0, 9), LOSSES), max_size=8)
BATCHES = st.lists(ROWS, max_size=8)


def ids_of(*ids: int) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.long)


def near(values: list[float]) -> Any:
    return pytest.approx(values, rel=1e-5, abs=1e-5, nan_ok=True)


def means(rows: list[tuple[int, float]]) -> dict[int, float]:
    """Return the mean loss of each id, NaN where that is not finite."""
    losses = {key: [loss for other, loss in rows if other == key] for key, _ in rows}
    return {key: sum(some) / len(some) if all(map(math.isfinite, some)) else NAN for key, some in losses.items()}


def filled(*losses: float) -> LossTable:
    """Return a table of the examples 0, 1, 2 ..."""
    table = LossTable("cpu")
    table.record(torch.arange(len(losses)), torch.tensor(losses))
    return table


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    few=st.sampled_from([0, 512]),
    batches=BATCHES,
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    interrupted=st.integers(0, 8),
)
def test_a_table_is_a_dict_of_moving_averages_also_when_it_is_restored(
    few: int, batches: list[Any], momentum: float, interrupted: int
) -> None:
    """With few enough ids that Python counts them, and with more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sb_plugin.table._FEW", few)
        compare_with_a_dict(batches, momentum, interrupted)


def compare_with_a_dict(batches: list[Any], momentum: float, interrupted: int) -> None:
    table, known = LossTable("cpu"), dict[int, float]()
    for step, rows in enumerate(batches):
        if step == interrupted:
            saved, table = table.state_dict(), LossTable("cpu")
            table.load_state_dict(saved)
        ids = ids_of(*[key for key, _ in rows])
        assert table.look_up(ids).tolist() == near([known.get(key, INF) for key, _ in rows])
        table.record(ids, torch.tensor([loss for _, loss in rows]), momentum)
        for key, loss in means(rows).items():
            old = known.get(key, NAN)
            known[key] = momentum * old + (1 - momentum) * loss if math.isfinite(old) else loss
    assert table.look_up(torch.arange(12)).tolist() == near([known.get(key, INF) for key in range(12)])
    assert len(table) == len(known)


class Visited:
    """The scores of examples by their ids, with the numbers of their visits: how StaleScores is meant."""

    def __init__(self, refresh: int) -> None:
        self.refresh = refresh
        self.score: dict[int, float] = {}
        self.visits: dict[int, int] = {}
        self.scored_at: dict[int, int] = {}

    def since(self, key: int) -> int:
        """Return how many visits ago an example was scored, at the visit that comes now."""
        return self.visits[key] + 1 - self.scored_at[key]

    def due(self, ids: list[int]) -> list[int]:
        due = [row for row, key in enumerate(ids) if key not in self.score or self.since(key) >= self.refresh]
        if len(due) == 1 < len(ids):
            others = [row for row in range(len(ids)) if row not in due]
            due.append(max(others, key=lambda row: (self.since(ids[row]), -row)))
        return sorted(due)

    def scores(self, ids: list[int], rows: list[tuple[int, float]]) -> list[float]:
        for key in set(ids):
            self.visits[key] = self.visits.get(key, 0) + 1
        self.score.update(means(rows))
        self.scored_at.update({key: self.visits[key] for key, _ in rows})
        return [self.score[key] for key in ids]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(batches=BATCHES, refresh=st.integers(1, 4), interrupted=st.integers(0, 8))
def test_stale_scores_are_those_of_counted_visits_also_when_they_are_restored(
    batches: list[Any], refresh: int, interrupted: int
) -> None:
    stale, expected = StaleScores(refresh, "cpu"), Visited(refresh)
    for step, rows in enumerate(batches):
        if step == interrupted:
            saved, stale = stale.state_dict(), StaleScores(refresh, "cpu")
            stale.load_state_dict(saved)
        keys = [key for key, _ in rows]
        due = stale.due(ids_of(*keys))
        assert due.tolist() == expected.due(keys)
        scored = [rows[row] for row in due.tolist()]
        scores = stale.scores(ids_of(*keys), due, torch.tensor([loss for _, loss in scored]))
        assert scores.tolist() == near(expected.scores(keys, scored))


def test_a_loss_that_is_not_finite_is_nan_and_the_next_finite_one_takes_its_place() -> None:
    table = filled(NAN, INF, -INF, 1.0)
    assert table.look_up(torch.arange(5)).tolist() == near([NAN, NAN, NAN, 1, INF])
    table.record(torch.arange(4), torch.tensor([4.0, 4.0, 4.0, NAN]), momentum=0.5)
    assert table.look_up(torch.arange(4)).tolist() == near([4, 4, 4, NAN])


def test_where_asked_a_finite_loss_is_kept_until_a_finite_one_comes() -> None:
    table = filled(NAN, 2.0)
    table.record(torch.arange(3), torch.tensor([INF, -INF, NAN]), momentum=0.5, keep_finite=True)
    assert table.look_up(torch.arange(3)).tolist() == near([NAN, 2, NAN])
    table.record(torch.arange(3), torch.tensor([4.0, 4.0, 4.0]), momentum=0.5, keep_finite=True)
    assert table.look_up(torch.arange(3)).tolist() == near([4, 3, 4])


def test_an_id_that_occurs_several_times_counts_once_with_its_mean() -> None:
    table = filled(8.0)
    table.record(ids_of(0, 1, 0), torch.tensor([1.0, 7.0, 3.0]), momentum=0.5)
    assert table.look_up(ids_of(1, 0)).tolist() == [7, 5]


def test_where_asked_the_mean_of_an_id_is_that_of_its_finite_losses() -> None:
    table = filled(8.0, 8.0, NAN)
    ids, losses = ids_of(0, 1, 0, 2, 2, 3, 3), torch.tensor([2.0, 3.0, NAN, INF, NAN, 1.0, -INF])
    table.record(ids, losses, momentum=0.5, keep_finite=True)
    assert table.look_up(torch.arange(5)).tolist() == near([5, 5.5, NAN, 1, INF])


def test_no_graph_is_kept_of_a_loss() -> None:
    table = LossTable("cpu")
    table.record(ids_of(0), torch.ones(1, requires_grad=True) * 2)
    assert not table.look_up(ids_of(0)).requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_losses_of_any_precision_are_kept_in_single_precision(dtype: torch.dtype) -> None:
    table = LossTable("cpu")
    table.record(ids_of(1), torch.tensor([1.5], dtype=dtype))
    found = table.look_up(ids_of(1))
    assert (found.dtype, found.tolist()) == (torch.float32, [1.5])


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_ids_may_be_whole_numbers_of_any_size(dtype: torch.dtype) -> None:
    table = LossTable("cpu")
    table.record(torch.tensor([100, 3], dtype=dtype), torch.tensor([1.0, 2.0]))
    assert table.look_up(torch.tensor([3, 100, 4], dtype=dtype)).tolist() == [2, 1, INF]


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([1, 2], ArgumentTypeError, "not list: sb_plugin.WithIndex"),
        (torch.tensor([True]), ArgumentTypeError, "not a tensor of torch.bool"),
        (torch.tensor([1.0]), ArgumentTypeError, "not a tensor of torch.float32"),
        (torch.tensor([[1]]), ArgumentError, r"have shape \(1, 1\), not \(n,\)"),
        (torch.tensor(1), ArgumentError, r"have shape \(\), not \(n,\)"),
        (torch.tensor([3, -1]), ArgumentError, "these go from -1 to 3: number the examples from 0, as sb_plugin.With"),
        (torch.tensor([0, 2**28]), ArgumentError, "from 0 to 268435455, but these go from 0 to 268435456"),
    ],
)
def test_what_cannot_be_ids_is_refused_and_nothing_grows(ids: Any, error: type[Exception], message: str) -> None:
    table, stale = filled(1.0), StaleScores(3, "cpu")
    for use in (table.look_up, stale.due, lambda some: table.record(some, torch.zeros(2))):
        with pytest.raises(error, match=message):
            use(ids)
    assert table.losses.tolist() == [1]


def test_losses_that_are_not_one_for_each_id_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"losses of shape \(1,\) for ids of shape \(2,\)"):
        filled(1.0, 2.0).record(ids_of(0, 1), torch.ones(1))


def test_an_empty_batch_changes_nothing() -> None:
    table, stale, none = filled(1.0), StaleScores(3, "cpu"), ids_of()
    table.record(none, torch.empty(0), momentum=0.5)
    assert table.look_up(none).shape == stale.due(none).shape == stale.scores(none, none, torch.empty(0)).shape == (0,)
    assert len(table) == 1


def test_a_table_at_least_doubles_when_it_grows() -> None:
    table, lengths = LossTable("cpu"), set()
    for key in range(1000):
        table.record(ids_of(key), torch.tensor([key / 2]))
        lengths.add(table.losses.shape[0])
    assert sorted(lengths) == [2**power for power in range(11)]
    assert table.look_up(torch.arange(1000)).tolist() == [key / 2 for key in range(1000)]


@pytest.mark.parametrize(("length", "device"), [(0, "meta"), (2**24, "meta"), (2**24 + 1, "cpu")])
def test_a_table_lives_on_the_device_up_to_64_mebibytes(length: int, device: str) -> None:
    assert home(torch.device("meta"), length) == torch.device(device)


def test_a_table_goes_to_the_cpu_when_its_ids_and_not_its_reserve_exceed_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A device that can't be read from stands for the CPU: what goes there is seen by where it is."""
    monkeypatch.setattr("sb_plugin.table._ON_DEVICE", 10)
    monkeypatch.setattr("sb_plugin.table.home", lambda device, n: device if n <= 10 else torch.device("meta"))
    table, stale = LossTable("cpu"), StaleScores(3, "cpu")
    table.record(ids_of(7), torch.tensor([1.0]))
    table.record(ids_of(8), torch.tensor([2.0]))
    assert (table.losses.device.type, len(table.losses)) == ("cpu", 10)
    assert table.places(ids_of(10)).device.type == table.losses.device.type == "meta"
    with pytest.raises((RuntimeError, NotImplementedError), match=r"(?i)meta"):
        stale.due(ids_of(11)).tolist()


def test_an_example_is_scored_at_its_visits_1_4_and_7() -> None:
    stale, scored = StaleScores(3, "cpu"), []
    for visit in range(1, 8):
        due = stale.due(ids_of(5))
        scored.append((len(due), stale.scores(ids_of(5), due, torch.full((len(due),), float(visit))).item()))
    assert scored == [(1, 1), (0, 1), (0, 1), (1, 4), (0, 4), (0, 4), (1, 7)]


def test_one_row_that_is_due_takes_the_one_with_it_that_has_waited_longest() -> None:
    stale = StaleScores(3, "cpu")
    stale.scores(ids_of(0, 1), ids_of(0, 1), torch.ones(2))
    stale.scores(ids_of(1), ids_of(), torch.ones(0))
    assert stale.due(ids_of(0, 1, 2)).tolist() == [1, 2]
    assert stale.due(ids_of(0, 2, 0)).tolist() == [0, 1]
    assert stale.due(ids_of(2)).tolist() == [0]
    assert stale.due(ids_of(0, 1)).tolist() == []


def test_a_refresh_beyond_all_visits_scores_once() -> None:
    stale = StaleScores(2**40, "cpu")
    stale.scores(ids_of(0), ids_of(0), torch.ones(1))
    assert stale.due(ids_of(0)).tolist() == []


def test_a_refresh_of_0_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"refresh=0 has to be within \[1, inf\)"):
        StaleScores(0, "cpu")
