"""Whose rows compete on several processes; tests/ranks has those that start some."""

from contextlib import nullcontext

import pytest
import torch
from parts import trainer

from engine_core.errors import UnsupportedError
from engine_core.needs import FSDP_OFFERS
from engine_core.ranks import Ranks
from engine_core_author import ThreadRanks
from sb_plugin import SelectiveBackprop

ALWAYS = {"start": 0, "end": 1, "scale_factor": 1, "interrupt": 0}


class Beside(Ranks):
    """Two ranks with the same rows, of which this is the second; notes what it is asked for."""

    rank, size = 1, 2

    def __init__(self):
        self.asked = []
        self.dealt = []

    def gather(self, rows):
        self.asked.append("gather")
        return torch.cat([rows, rows]), slice(rows.shape[0], 2 * rows.shape[0])

    def table(self, numbers):
        self.asked.append("table")
        return [[float(number) for number in numbers]] * 2

    def parts(self, batch, rows, *, moves=True):
        self.asked.append("parts")
        _, deal = super().parts(batch, rows)

        def counted(index):
            self.dealt.append(index.shape[0])
            return deal(index[index >= rows] - rows)

        return [rows, rows], counted


@pytest.mark.parametrize(("scope", "asked"), [("global", ["parts", "gather"]), ("rank", [])])
def test_only_with_the_global_scope_the_ranks_tell_each_other_anything(engine_of, pruned, scope, asked):
    ranks = Beside()
    engine = engine_of(SelectiveBackprop(**ALWAYS, scope=scope), ranks=ranks, rank=1, world_size=2)
    kept = pruned(engine)[0].shape[0]
    assert ranks.asked == asked
    assert kept == 4 or scope == "global"


def test_the_number_of_kept_rows_is_that_of_the_whole_batch(engine_of, pruned):
    ranks = Beside()
    pruned(engine_of(SelectiveBackprop(**ALWAYS, keep=0.45), ranks=ranks, rank=1, world_size=2))
    assert ranks.dealt == [7]  # floor(0.45 * 16), where two ranks would keep 3 each


@pytest.mark.parametrize("reuse", ["off", "on"])
def test_a_dropped_row_that_is_not_finite_changes_no_weight_on_a_rank_that_keeps_none(reuse):
    def trained(ranks):
        torch.manual_seed(0)
        model, inputs = torch.nn.Linear(2, 2), torch.linspace(-1, 1, 16).view(8, 2)
        inputs[4] = float("nan")  # row 0 of rank 1
        batch = (inputs, torch.tensor([1, 0, 0, 0, 0, 0, 0, 0]))
        algorithm = SelectiveBackprop(**ALWAYS, keep=0.125, selector="topk", reuse=reuse)
        with trainer([batch], model, algorithms=algorithm, parallel=ranks, seed=1) as made:
            made.fit()
        return model.weight.flatten().tolist()

    one = pytest.approx(trained(None))
    assert ThreadRanks.run(trained) == [one, one]


@pytest.mark.parametrize(
    ("settings", "is_refused"),
    [
        ({}, True),
        ({"scorer": "stale", "index_key": 2}, True),
        ({"keep": 1.0}, False),
        ({"selector": "uniform"}, False),
        ({"scorer": "carried", "index_key": 2}, False),
    ],
)
def test_where_a_forward_pass_waits_for_all_no_rank_decides_alone_to_make_one(engine_of, settings, is_refused):
    engine_of(SelectiveBackprop(**ALWAYS, **settings), offers=FSDP_OFFERS)
    raises = pytest.raises(UnsupportedError, match="no own_forward: each forward pass gathers")
    with raises if is_refused else nullcontext():
        engine_of(SelectiveBackprop(**ALWAYS, **settings, scope="rank"), offers=FSDP_OFFERS)
