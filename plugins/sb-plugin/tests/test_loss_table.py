"""Tables of losses by the ids of examples, against dicts of Python."""

import math
import warnings

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


def ids_of(*ids):
    return torch.tensor(ids, dtype=torch.long)


def near(values):
    return pytest.approx(values, rel=1e-5, abs=1e-5, nan_ok=True)


def means(rows):
    """Return the mean loss of each id, NaN where that is not finite."""
    losses = {key: [loss for other, loss in rows if other == key] for key, _ in rows}
    return {key: sum(some) / len(some) if all(map(math.isfinite, some)) else NAN for key, some in losses.items()}


def filled(*losses):
    """Return a table of the examples 0, 1, 2 ..."""
    table = LossTable("cpu")
    table.record(torch.arange(len(losses)), torch.tensor(losses))
    return table


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    few=st.sampled_from([0, 512]),
    batches=BATCHES,
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    keep_finite=st.booleans(),
    interrupted=st.integers(0, 8),
)
def test_a_table_is_a_dict_of_moving_averages_also_when_it_is_restored(
    few, batches, momentum, keep_finite, interrupted
):
    """With few enough ids that Python counts them, and with more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sb_plugin.table._FEW", few)
        compare_with_a_dict(batches, momentum, keep_finite, interrupted)


def compare_with_a_dict(batches, momentum, keep_finite, interrupted):
    table, known = LossTable("cpu"), {}
    for step, rows in enumerate(batches):
        if step == interrupted:
            saved, table = table.state_dict(), LossTable("cpu")
            table.load_state_dict(saved)
        ids = ids_of(*[key for key, _ in rows])
        assert table.look_up(ids).tolist() == near([known.get(key, INF) for key, _ in rows])
        table.record(ids, torch.tensor([loss for _, loss in rows]), momentum, keep_finite=keep_finite)
        finite = {key for key, loss in rows if math.isfinite(loss)} if keep_finite else set()
        counted = [(key, loss) for key, loss in rows if math.isfinite(loss) or key not in finite]
        for key, loss in means(counted).items():
            old = known.get(key, NAN)
            if keep_finite and math.isnan(loss):
                known[key] = old
            else:
                known[key] = momentum * old + (1 - momentum) * loss if math.isfinite(old) else loss
    assert table.look_up(torch.arange(12)).tolist() == near([known.get(key, INF) for key in range(12)])
    assert len(table) == len(known)


class Visited:
    """The scores of examples by their ids, with the numbers of their visits: how StaleScores is meant."""

    def __init__(self, refresh):
        self.refresh = refresh
        self.score = {}
        self.visits = {}
        self.scored_at = {}

    def since(self, key):
        """Return how many visits ago an example was scored, at the visit that comes now."""
        return self.visits[key] + 1 - self.scored_at[key]

    def due(self, ids):
        due = [row for row, key in enumerate(ids) if key not in self.score or self.since(key) >= self.refresh]
        if len(due) == 1 < len(ids):
            others = [row for row in range(len(ids)) if row not in due]
            due.append(max(others, key=lambda row: (self.since(ids[row]), -row)))
        return sorted(due)

    def scores(self, ids, rows):
        for key in set(ids):
            self.visits[key] = self.visits.get(key, 0) + 1
        self.score.update(means(rows))
        self.scored_at.update({key: self.visits[key] for key, _ in rows})
        return [self.score[key] for key in ids]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(batches=BATCHES, refresh=st.integers(1, 4), interrupted=st.integers(0, 8))
def test_stale_scores_are_those_of_counted_visits_also_when_they_are_restored(batches, refresh, interrupted):
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


@pytest.mark.parametrize(
    ("of_losses", "of_ids"), [(torch.bfloat16, torch.int8), (torch.float64, torch.uint8), (torch.float16, torch.int64)]
)
def test_losses_of_any_precision_are_kept_in_single_precision_without_a_graph(of_losses, of_ids):
    table, losses = LossTable("cpu"), torch.tensor([1.5, 2.0], dtype=of_losses, requires_grad=True)
    table.record(torch.tensor([100, 3], dtype=of_ids), losses * 2)
    found = table.look_up(torch.tensor([3, 100, 4], dtype=of_ids))
    assert (found.dtype, found.requires_grad, found.tolist()) == (torch.float32, False, [4, 3, INF])


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([1, 2], ArgumentTypeError, "not list: sb_plugin.WithIndex"),
        (torch.tensor([True]), ArgumentTypeError, "not a tensor of torch.bool"),
        (torch.tensor([[1]]), ArgumentError, r"have shape \(1, 1\), not \(n,\)"),
        (torch.tensor([3, -1]), ArgumentError, "these go from -1 to 3: number the examples from 0, as sb_plugin.With"),
        (torch.tensor([0, 2**28]), ArgumentError, "from 0 to 268435455, but these go from 0 to 268435456"),
    ],
)
def test_what_cannot_be_ids_is_refused_and_nothing_grows(ids, error, message):
    table, stale = filled(1.0), StaleScores(3, "cpu")
    for use in (table.look_up, stale.due, lambda some: table.record(some, torch.zeros(2))):
        with pytest.raises(error, match=message):
            use(ids)
    assert table.losses.tolist() == [1]
    with pytest.raises(ArgumentError, match=r"losses of shape \(1,\) for ids of shape \(2,\)"):
        table.record(ids_of(0, 1), torch.ones(1))


@pytest.mark.parametrize(("length", "device"), [(0, "meta"), (2**24, "meta"), (2**24 + 1, "cpu")])
def test_a_table_lives_on_the_device_up_to_64_mebibytes(length, device):
    assert home(torch.device("meta"), length) == torch.device(device)


def test_a_table_goes_to_the_cpu_when_its_ids_and_not_its_reserve_exceed_the_limit(monkeypatch):
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


def test_a_refresh_beyond_all_visits_scores_once():
    stale = StaleScores(2**40, "cpu")
    stale.scores(ids_of(0), ids_of(0), torch.ones(1))
    assert stale.due(ids_of(0)).tolist() == []


def test_what_is_saved_is_a_copy_up_to_the_highest_id_seen():
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


def test_what_was_loaded_is_not_written_to():
    state = {"table": torch.ones(2), "visits": torch.zeros(2, dtype=torch.int32)}
    table, stale = LossTable("cpu"), StaleScores(3, "cpu")
    table.load_state_dict(state)
    stale.load_state_dict(state)
    table.record(ids_of(0), torch.zeros(1))
    stale.scores(ids_of(0, 1), ids_of(0), torch.zeros(1))
    assert {name: values.tolist() for name, values in state.items()} == {"table": [1, 1], "visits": [0, 0]}


def nested():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are a prototype
        return torch.nested.nested_tensor([torch.tensor(1.0), torch.tensor(2.0)])


TABLE, VISITS = torch.ones(2), torch.zeros(2, dtype=torch.int32)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"visits": VISITS}, "has no 'table', only 'visits': give what state_dict"),
        (None, "has no 'visits', it is None"),
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
def test_a_state_that_was_never_saved_is_refused_and_nothing_of_it_taken(state, message):
    stale = StaleScores(3, "cpu")
    stale.scores(ids_of(0), ids_of(0), torch.tensor([5.0]))
    with pytest.raises(ArgumentError, match=message):
        stale.load_state_dict(state)
    assert [values.tolist() for values in stale.state_dict().values()] == [[5], [0]]
