"""What `log_by` logs: the kept fraction by class or by tenth of the loss, and what it refuses."""

from typing import Any

import pytest
import torch
from parts import trainer
from torch import nn

from engine_core import Logger
from engine_core.errors import ArgumentError, ArgumentTypeError, BatchKeyError
from engine_core_author import RecordingDestination, ThreadRanks
from sb_plugin import SelectiveBackprop
from sb_plugin.breakdown import kept_by_class, kept_by_loss

ALWAYS: dict[str, Any] = {"start": 0, "end": 1, "scale_factor": 1, "interrupt": 0}
INF, NAN, UNSEEN = float("inf"), float("nan"), torch.finfo(torch.float32).max


def first_rows(scores: torch.Tensor, k: int, generator: Any) -> torch.Tensor:
    return torch.arange(k)


def logged(engine_of: Any, pruned: Any, batch: Any, **given: Any) -> dict[str, float]:
    seen = RecordingDestination()
    pruned(engine_of(SelectiveBackprop(**ALWAYS, **given), Logger([seen]), batch=batch), batch)
    ((_, metrics),) = seen.metrics
    return {name.removeprefix("selective_backprop/"): v for name, v in metrics.items() if "kept_by" in name}


def rows(*targets: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(len(targets), 3), torch.tensor(targets)


def test_without_it_nothing_is_logged(engine_of: Any, pruned: Any) -> None:
    assert logged(engine_of, pruned, rows(0, 1, 2, 3)) == {}


def test_by_class_each_class_of_the_batch_has_its_fraction(engine_of: Any, pruned: Any) -> None:
    batch = rows(2, 0, 0, 2, 2, 2, 0, 3)
    assert logged(engine_of, pruned, batch, selector=first_rows, log_by="class") == {
        "kept_by_class/0": 2 / 3,
        "kept_by_class/2": 0.5,
        "kept_by_class/3": 0.0,
    }


def test_more_than_twenty_classes_are_one_group_from_the_twentieth_on() -> None:
    found = kept_by_class(torch.arange(30), torch.tensor([0, 19, 20, 29]))
    assert [name for name, kept in found.items() if kept == 1] == ["kept_by_class/0", "kept_by_class/19"]
    assert (len(found), found["kept_by_class/other"]) == (21, 0.2)


def test_uint8_classes_count_and_those_that_the_loss_ignores_do_not() -> None:
    assert kept_by_class(torch.tensor([255, 1], dtype=torch.uint8), torch.tensor([0])) == {
        "kept_by_class/1": 0.0,
        "kept_by_class/other": 1.0,
    }
    assert kept_by_class(torch.tensor([-100, -1]), torch.tensor([0])) == {}


def test_by_loss_a_tenth_is_by_rank_within_the_batch() -> None:
    losses = torch.arange(20.0).flip(0).exp()  # the first row is the hardest
    assert kept_by_loss(losses, torch.tensor([0, 1, 2, 19])) == {
        f"kept_by_loss/{tenth}": {9: 1.0, 8: 0.5, 0: 0.5}.get(tenth, 0.0) for tenth in range(10)
    }


def test_rows_of_unknown_loss_are_in_no_tenth() -> None:
    losses = torch.tensor([NAN, 1.0, INF, UNSEEN, -INF, 2.0])
    assert kept_by_loss(losses, torch.tensor([0, 3, 5])) == {"kept_by_loss/0": 0.0, "kept_by_loss/5": 1.0}
    assert kept_by_loss(torch.full((3,), UNSEEN), torch.tensor([0])) == {}


def test_in_a_step_the_tenths_are_those_of_the_losses_that_it_ranked(engine_of: Any, pruned: Any) -> None:
    batch = rows(*[0, 1, 2, 3] * 5)
    found = logged(engine_of, pruned, batch, selector="topk", log_by="loss")
    assert found == {f"kept_by_loss/{tenth}": float(tenth >= 5) for tenth in range(10)}


@pytest.mark.parametrize(
    ("given", "error", "problem"),
    [
        ({"log_by": "classes"}, ArgumentError, "log_by='classes' has to be one of 'class', 'loss', or None.*'class'"),
        ({"log_by": True}, ArgumentTypeError, r"log_by=True \(bool\) has to be one of"),
        ({"log_by": "loss", "selector": "uniform"}, ArgumentError, "selector='uniform' draws without scores"),
        ({"log_by": "loss", "scorer": lambda batch, state: None}, ArgumentError, "your own scorer gives others"),
    ],
)
def test_what_can_not_be_logged_is_refused_when_it_is_made(given: Any, error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        SelectiveBackprop(**ALWAYS, **given)


@pytest.mark.parametrize(
    ("batch", "given", "error", "found"),
    [
        ((torch.randn(4, 3), torch.rand(4, 4)), {}, ArgumentError, r"torch.float32 of shape \(4, 4\)"),
        ((torch.randn(4, 3), torch.ones(4, dtype=torch.bool)), {"selector": "uniform"}, ArgumentError, "torch.bool"),
        ((torch.randn(4, 3), torch.ones(4, 1).long()), {"selector": "uniform"}, ArgumentError, r"of shape \(4, 1\)"),
        ((torch.randn(4, 3), list("abcd")), {"selector": "uniform"}, ArgumentError, "a list"),
        ({"x": torch.randn(4, 3)}, {"selector": "uniform", "loss_fn": None}, BatchKeyError, "target_key=1"),
    ],
)
def test_targets_that_are_not_classes_are_refused_at_the_first_batch(
    engine_of: Any, batch: Any, given: dict[str, Any], error: type[Exception], found: str
) -> None:
    fields = {"loss_fn": given.pop("loss_fn")} if "loss_fn" in given else {}
    engine = engine_of(
        SelectiveBackprop(start=0.5, log_by="class", **{"scale_factor": 1, **given}), batch=batch, **fields
    )
    with pytest.raises(error, match=found):
        engine.run_event("after_dataloader")


def test_on_two_ranks_it_is_that_of_the_global_batch() -> None:
    def logs(ranks: Any, scope: str = "global") -> list[Any]:
        found = []
        for log_by in ("class", "loss"):
            torch.manual_seed(0)
            seen, model = RecordingDestination(), nn.Linear(3, 4)
            data = [(torch.randn(n, 3), torch.arange(n) % 4) for n in (20, 20, 1, 7)]
            algorithm = SelectiveBackprop(**ALWAYS, log_by=log_by, scope=scope)
            with trainer(data, model, algorithms=algorithm, loggers=seen, parallel=ranks, seed=1) as made:
                made.fit()
            metrics = [(step, {n: v for n, v in m.items() if "kept_by" in n}) for step, m in seen.metrics]
            found += [(step, values) for step, values in metrics if values]
        return found

    one = logs(None)
    assert len(one) == 6 and len(one[0][1]) == 4 and len(one[3][1]) == 10
    assert ThreadRanks.run(logs) == [one, []]
    first, others = ThreadRanks.run(lambda ranks: logs(ranks, "rank"))
    assert others == [] and first[0] != one[0]


def test_the_weights_are_those_of_a_run_without_it(engine_of: Any, pruned: Any) -> None:
    batch = rows(*[0, 1, 2, 3] * 5)
    kept = [
        pruned(engine_of(SelectiveBackprop(**ALWAYS, log_by=by), batch=batch), batch) for by in (None, "class", "loss")
    ]
    assert all(torch.equal(kept[0][0], other[0]) for other in kept[1:])
