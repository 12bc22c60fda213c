"""Metrics of several ranks, in threads; on processes this is tested by tests/ranks/test_evaluation.py."""

import itertools
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from engine_core import State
from engine_core.errors import ArgumentError
from engine_core.ranks import Ranks
from engine_core.trainer import Measurement
from engine_core_author import ThreadRanks

from .parts import trainer

torchmetrics = pytest.importorskip("torchmetrics", reason="needs the extra 'metrics'")

INPUTS = torch.randint(-8, 8, (64, 2), generator=torch.Generator().manual_seed(0)).double()


class AllKinds(torchmetrics.Metric):
    """States of each kind."""

    def __init__(self):
        super().__init__()
        self.add_state("total", torch.tensor(0.0).double(), "sum")
        self.add_state("least", torch.tensor(100.0).double(), "min")
        self.add_state("most", torch.tensor(-100.0).double(), "max")
        self.add_state("rows", [], "cat")
        self.add_state("numbers", [], "cat")
        self.add_state("first", torch.tensor([]).double(), "cat")
        self.add_state("batches", [], None)
        self.add_state("of_each", torch.zeros(2).double(), None)
        self.add_state("same", torch.tensor(0.0), "mean")  # of the ranks that saw a batch

    def update(self, outputs, targets):
        self.total += outputs.sum()
        self.least, self.most = torch.minimum(self.least, outputs.min()), torch.maximum(self.most, outputs.max())
        self.rows.append(outputs)
        self.numbers += [*targets]
        self.first = torch.cat([self.first, outputs[:, 0]])
        self.batches.append(outputs * 2)
        self.of_each, self.same = self.of_each + outputs.sum(0), torch.tensor(5.0)

    def compute(self):
        rows, numbers = torch.cat([*self.rows]), torch.stack([*self.numbers])
        return {
            "plain": torch.stack([self.total, self.least, self.most, self.same, self.first.sum(), self.of_each.sum()]),
            "together": (rows[:, 0] * numbers).sum() + (rows * torch.cat(self.batches)).sum(),
        }


class Share:
    """A metric as torcheval has them: with lists of tensors, what it has seen as a `state_dict`, and `merge_state`."""

    def reset(self):
        self.seen = []
        self.device = torch.device("cpu")

    def update(self, outputs, targets):
        self.seen.append((outputs.argmax(1) == targets).double())

    def compute(self):
        return torch.cat(self.seen).mean()

    def state_dict(self):
        return {"seen": [*self.seen]}

    def load_state_dict(self, state):
        self.seen = state["seen"]

    def merge_state(self, others):
        for other in others:
            self.seen += other.seen
        return self


class ByAttributes:
    """A metric that only has attributes, a list that it appends to among them."""

    def reset(self):
        self.rows, self.numbers = 0, []

    def update(self, outputs, targets):
        self.rows += len(targets)
        self.numbers += targets.tolist()

    def compute(self):
        return {"rows": self.rows, "numbers": sum(self.numbers)}

    def merge_state(self, others):
        for other in others:
            self.rows += other.rows
            self.numbers.extend(other.numbers)


METRICS = {
    "states of each kind": AllKinds,
    "collection, which updates one of two": lambda: torchmetrics.MetricCollection({"a": AllKinds(), "b": AllKinds()}),
    "by state_dict": Share,
    "by attributes": ByAttributes,
}


def numbers_of(value):
    parts = [*value.values()] if isinstance(value, dict) else [value]
    return [float(number) for part in parts for number in torch.as_tensor(part).reshape(-1)]


SIZES = st.lists(st.integers(1, 4), max_size=2)
OF_RANKS = st.lists(st.tuples(SIZES, SIZES), min_size=2, max_size=4).filter(lambda of: any(first for first, _ in of))


@pytest.mark.parametrize("kind", METRICS)
@settings(max_examples=6)
@given(dealt=OF_RANKS)
def test_a_metric_is_that_of_one_process_however_rows_and_batches_are_dealt(kind, dealt):
    rows = iter(INPUTS)
    batches = [[[torch.stack([*itertools.islice(rows, n)]) for n in part] for part in of_rank] for of_rank in dealt]

    def values(of_rank, ranks):
        """Return what the metric computes after the first and after the second part."""
        measurement, found = Measurement({"x": (metric := METRICS[kind]())}, ranks), []
        metric.reset()
        for part in of_rank:
            for batch in part:
                measurement.take(batch, (batch[:, 1] > 0).long(), State())
            measurement.take(INPUTS[:1] * 100, torch.tensor([1]), State(is_placeholder=True))
            found.append(numbers_of(measurement.compute("x")))
        return found

    alone = values([[*itertools.chain(*part)] for part in zip(*batches, strict=True)], Ranks())
    of_ranks = ThreadRanks.run(lambda ranks: values(batches[ranks.rank], ranks), len(dealt))
    assert of_ranks == [[pytest.approx(value) for value in alone]] * len(dealt)


class Own(nn.Module):
    """It says nothing of what it has seen."""

    def reset(self): ...
    def update(self, outputs, targets): ...
    def compute(self):
        return 0.0


class Silent(Own):
    def merge_state(self, others): ...


class Strange(ByAttributes):
    def reset(self):
        super().reset()
        self.rule = lambda: None


@pytest.mark.parametrize(
    ("metric", "problem"), [(Silent, "its state_dict() or its attributes are empty"), (Strange, "Can't ")]
)
def test_what_can_not_be_sent_is_refused_by_name(metric, problem):
    def program(ranks):
        made = metric()
        made.reset()
        Measurement({"mine": made}, ranks).compute("mine")

    with pytest.raises(ArgumentError, match=f"metric 'mine' .*can't be sent to other ranks \\({re.escape(problem)}"):
        ThreadRanks.run(program)


def test_any_other_metric_is_refused_when_the_trainer_is_made():
    says = (
        r"^metric 'mine' \(Own\) sees the rows of one rank, and nothing says how to bring 2 ranks together: make it a "
        r"torchmetrics.Metric, whose states say that, or give it merge_state\(others\)"
    )
    with pytest.raises(ArgumentError, match=says):
        ThreadRanks.run(lambda ranks: trainer(parallel=ranks, metrics={"mine": Own()}))
    trainer(metrics={"mine": Own()}).close()
