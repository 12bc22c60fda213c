"""SelectiveBackprop in an engine, driven by hand: when it acts, whose loss it takes, what it logs, draws and saves."""

import math

import pytest
import torch
from parts import trainer
from torch import nn
from torch.nn import functional as F

from engine_core import Engine, Event, Logger, State, Timestamp
from engine_core.errors import ArgumentError, BatchKeyError
from engine_core_author import RecordingDestination, ThreadRanks
from sb_plugin import SelectiveBackprop, should_selective_backprop
from sb_plugin.breakdown import kept_by_class, kept_by_loss

X, Y = torch.randn(8, 3, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 4
ALWAYS = {"start": 0, "end": 1, "scale_factor": 1, "interrupt": 0}


class OwnLoss(nn.Module):
    """A model with its own loss, fed with whole batches in a dict."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, batch):
        return self.linear(batch["x"])

    def loss(self, outputs, batch, reduction="mean"):
        return F.cross_entropy(outputs, batch["y"], reduction=reduction)


@pytest.mark.parametrize(("done", "expected"), [(0.499, False), (0.5, True), (0.899, True), (0.9, False)])
def test_start_is_included_and_end_is_not(done, expected):
    assert should_selective_backprop(done, 0) is expected


@pytest.mark.parametrize(
    ("interrupt", "expected"),
    [(0, [1, 1, 1, 1, 1, 1]), (1, [0, 0, 0, 0, 0, 0]), (2, [1, 0, 1, 0, 1, 0]), (3, [1, 1, 0, 1, 1, 0])],
)
def test_every_interrupt_th_batch_is_an_ordinary_one(interrupt, expected):
    assert [should_selective_backprop(0.0, batch, 0.0, 1.0, interrupt) for batch in range(6)] == expected


class Untouchable(nn.Module):
    def forward(self, x):
        raise AssertionError("no scoring forward here")


@pytest.mark.parametrize(
    ("arguments", "now"),
    [
        ({**ALWAYS, "keep": 1}, Timestamp(batch=5)),
        ({"start": 0.5, "end": 0.9, "scale_factor": 1}, Timestamp(batch=4)),
        ({"start": 0.5, "end": 0.9, "scale_factor": 1}, Timestamp(batch=9)),
        ({"start": 0.0, "end": 1.0, "scale_factor": 1, "interrupt": 2}, Timestamp(batch=5, batch_in_epoch=1)),
        ({**ALWAYS, "keep": 0.99}, Timestamp(batch=5)),
    ],
    ids=["keep 1", "before start", "at end", "interrupted", "nothing to drop"],
)
def test_a_batch_that_is_not_pruned_is_the_same_object(engine_of, pruned, arguments, now):
    batch = (X[:1], Y[:1]) if arguments.get("keep") == 0.99 else (X, Y)
    algorithm = SelectiveBackprop(**arguments)
    engine = engine_of(algorithm, model=Untouchable(), max_duration="10ba", timestamp=now)
    state = algorithm.state_dict()["generator"]
    assert pruned(engine, batch) is batch
    assert torch.equal(algorithm.state_dict()["generator"], state)


def test_a_run_that_continues_after_another_still_uses_its_own_loss(engine_of, pruned):
    algorithm = SelectiveBackprop(**ALWAYS)
    first = engine_of(algorithm, model=OwnLoss(), loss_fn=None)
    pruned(engine_of(algorithm))
    assert len(pruned(first, {"x": X, "y": Y})["x"]) == 4


def test_the_loss_is_taken_before_the_model_is_wrapped(engine_of, pruned):
    engine = engine_of(SelectiveBackprop(**ALWAYS), model=OwnLoss(), loss_fn=None)
    engine.state.model = nn.Sequential(engine.state.model)
    assert len(pruned(engine, {"x": X, "y": Y})["x"]) == 4


def test_it_works_in_a_loop_that_never_fires_init():
    state = State(
        model=nn.Linear(3, 4), algorithms=[SelectiveBackprop(**ALWAYS)], loss_fn=nn.CrossEntropyLoss(), batch=(X, Y)
    )
    Engine(state, Logger()).run_event(Event.AFTER_DATALOADER)
    assert len(state.batch[0]) == 4


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([1.0, math.nan, 3.0, math.inf], {"loss_mean": 2.0, "kept_loss_mean": 2.0, "nonfinite": 2}),
        ([1.0, 2.0, 3.0, 10.0], {"loss_mean": 4.0, "kept_loss_mean": 6.5, "nonfinite": 0}),
        ([math.nan] * 4, {"loss_mean": math.nan, "kept_loss_mean": math.nan, "nonfinite": 4}),
    ],
)
def test_each_active_step_logs_what_was_kept(engine_of, pruned, losses, expected):
    recorder, algorithm = RecordingDestination(), SelectiveBackprop(**ALWAYS, selector="topk")
    engine = engine_of(algorithm, Logger([recorder]), model=nn.Identity(), loss_fn=lambda x, y, reduction: x)
    engine.state.timestamp = Timestamp(batch=11)
    pruned(engine, (torch.tensor(losses), torch.tensor(losses)))
    ((step, metrics),) = recorder.metrics
    named = {f"selective_backprop/{name}": value for name, value in {"kept": 2, **expected}.items()}
    assert (step, metrics) == (11, pytest.approx(named, nan_ok=True))


def test_without_destinations_nothing_is_computed_for_the_log(engine_of, pruned, monkeypatch):
    monkeypatch.setattr("sb_plugin.algorithm.summary_of", None)
    pruned(engine_of(SelectiveBackprop(**ALWAYS)))


def no_reduction(outputs, targets):
    return F.cross_entropy(outputs, targets)


IMAGES = torch.randn(8, 1, 4, 4, generator=torch.Generator().manual_seed(2))  # the ids of tests name them
REFUSED = [
    ({}, {"batch": (X, Y)}, ValueError, r"dimensions, but these have 2 \(shape \(8, 3\)\): set scale_factor=1"),
    ({}, {"batch": ({"a": X}, Y)}, ValueError, "scale_factor scales one tensor, but the input is a dict: set it to 1"),
    ({}, {"batch": {"x": IMAGES, "y": Y}}, LookupError, "input_key=0: .*dict has no item 0.*known: x, y; set"),
    ({"target_key": 2}, {"batch": (IMAGES, Y)}, LookupError, "target_key=2: .*2 items has no item 2; set target_key"),
    ({}, {"batch": (IMAGES, Y[:7])}, ValueError, "has 7 rows and .* has 8"),
    ({"selector": "uniform", "scale_factor": 1}, {"batch": (X, Y[:7])}, ValueError, "has 7 rows and .* has 8"),
    ({}, {"batch": (IMAGES[:0], Y[:0])}, ValueError, "the first batch has no rows to choose from: leave empty batches"),
    ({}, {"batch": (IMAGES, Y), "loss_fn": no_reduction}, TypeError, "no_reduction takes no `reduction`"),
    ({}, {"batch": (IMAGES, Y), "loss_fn": None}, ValueError, "Linear has no loss: give"),
    ({}, {"batch": (IMAGES, Y), "max_duration": None}, ValueError, r"max_duration is not known.*start=0\.5.*start=0"),
]


@pytest.mark.parametrize(("arguments", "fields", "error", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_the_first_batch_is_refused_long_before_start(engine_of, arguments, fields, error, message):
    engine = engine_of(SelectiveBackprop(**arguments), **{"max_duration": "100ba", **fields})
    with pytest.raises(error, match=message) as caught:
        engine.run_event(Event.AFTER_DATALOADER)
    assert "validate of algorithm SelectiveBackprop" in "".join(caught.value.__notes__)


def test_with_keep_1_nothing_is_asked_of_loss_and_batch(engine_of, pruned):
    assert pruned(engine_of(SelectiveBackprop(keep=1), loss_fn=None, model=Untouchable()), batch := ["a"]) is batch


def test_a_net_of_fixed_input_size_warns_once_and_continues_at_full_size(engine_of, pruned):
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4))
    engine = engine_of(SelectiveBackprop(0, 1, interrupt=0), model=model)
    with pytest.warns(UserWarning, match=r"scale_factor=0\.5") as caught:
        sizes = [len(pruned(engine, (IMAGES, Y))[0]) for _ in range(3)]
    assert (len(caught), sizes) == (1, [4, 4, 4])


def test_buffers_without_values_yet_can_not_be_held_and_the_message_says_what_to_do(engine_of):
    model = nn.Sequential(nn.Linear(3, 4), nn.LazyBatchNorm1d())
    engine = engine_of(SelectiveBackprop(**ALWAYS), model=model, batch=(X, Y), loss_fn=F.cross_entropy)
    with pytest.raises(
        ValueError, match=r"buffers of a LazyBatchNorm1d have no values before its first forward.*run the"
    ):
        engine.run_event(Event.AFTER_DATALOADER)
    model(X)
    engine.run_event(Event.AFTER_DATALOADER)
    assert len(engine.state.batch[0]) == 4


def ids(batch):
    return [batch[0][:, 0].tolist(), batch[1].tolist()]


@pytest.fixture
def choices(engine_of, pruned):
    """Return a function that gives the rows of six prunings."""

    def choose(algorithm, **fields):
        engine = engine_of(algorithm, **fields)
        return [ids(pruned(engine)) for _ in range(6)]

    return choose


def test_rows_follow_from_the_seed_alone_and_with_scope_rank_from_the_rank_too(choices):
    instance = SelectiveBackprop(**ALWAYS)
    first = choices(instance)
    torch.rand(3)
    assert choices(instance) == choices(SelectiveBackprop(**ALWAYS)) == first
    assert choices(SelectiveBackprop(**ALWAYS), seed=8) != first
    assert choices(SelectiveBackprop(**ALWAYS), rank=1, world_size=2) == first
    assert choices(SelectiveBackprop(**ALWAYS, scope="rank"), rank=1, world_size=2) != first


def test_a_state_without_a_generator_is_refused_at_once_and_forgotten():
    algorithm = SelectiveBackprop(**ALWAYS)
    with pytest.raises(ArgumentError, match="no 'generator', only 'x'"):
        algorithm.load_state_dict({"x": 1})
    assert algorithm.state_dict() == {}


def test_two_in_one_run_draw_other_rows(engine_of):
    first, second = SelectiveBackprop(**ALWAYS), SelectiveBackprop(**ALWAYS)
    engine_of(first, algorithms=[first, second])
    one, other = (algorithm.state_dict()["generator"] for algorithm in (first, second))
    assert not torch.equal(one, other)


INF, NAN, UNSEEN = float("inf"), float("nan"), torch.finfo(torch.float32).max


def first_rows(scores, k, generator):
    return torch.arange(k)


def logged(engine_of, pruned, batch, **given):
    seen = RecordingDestination()
    pruned(engine_of(SelectiveBackprop(**ALWAYS, **given), Logger([seen]), batch=batch), batch)
    ((_, metrics),) = seen.metrics
    return {name.removeprefix("selective_backprop/"): v for name, v in metrics.items() if "kept_by" in name}


def rows(*targets):
    return torch.randn(len(targets), 3), torch.tensor(targets)


def test_by_class_each_class_of_the_batch_has_its_fraction(engine_of, pruned):
    batch = rows(2, 0, 0, 2, 2, 2, 0, 3)
    assert logged(engine_of, pruned, batch) == {}
    assert logged(engine_of, pruned, batch, selector=first_rows, log_by="class") == {
        "kept_by_class/0": 2 / 3,
        "kept_by_class/2": 0.5,
        "kept_by_class/3": 0.0,
    }


def test_more_than_twenty_classes_are_one_group_from_the_twentieth_on():
    found = kept_by_class(torch.arange(30), torch.tensor([0, 19, 20, 29]))
    assert [name for name, kept in found.items() if kept == 1] == ["kept_by_class/0", "kept_by_class/19"]
    assert (len(found), found["kept_by_class/other"]) == (21, 0.2)


def test_uint8_classes_count_and_those_that_the_loss_ignores_do_not():
    assert kept_by_class(torch.tensor([255, 1], dtype=torch.uint8), torch.tensor([0])) == {
        "kept_by_class/1": 0.0,
        "kept_by_class/other": 1.0,
    }
    assert kept_by_class(torch.tensor([-100, -1]), torch.tensor([0])) == {}


def test_by_loss_a_tenth_is_by_rank_within_the_batch():
    losses = torch.arange(20.0).flip(0).exp()  # the first row is the hardest
    assert kept_by_loss(losses, torch.tensor([0, 1, 2, 19])) == {
        f"kept_by_loss/{tenth}": {9: 1.0, 8: 0.5, 0: 0.5}.get(tenth, 0.0) for tenth in range(10)
    }


def test_rows_of_unknown_loss_are_in_no_tenth():
    losses = torch.tensor([NAN, 1.0, INF, UNSEEN, -INF, 2.0])
    assert kept_by_loss(losses, torch.tensor([0, 3, 5])) == {"kept_by_loss/0": 0.0, "kept_by_loss/5": 1.0}
    assert kept_by_loss(torch.full((3,), UNSEEN), torch.tensor([0])) == {}


def test_in_a_step_the_tenths_are_those_of_the_losses_that_it_ranked(engine_of, pruned):
    batch = rows(*[0, 1, 2, 3] * 5)
    found = logged(engine_of, pruned, batch, selector="topk", log_by="loss")
    assert found == {f"kept_by_loss/{tenth}": float(tenth >= 5) for tenth in range(10)}


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
def test_targets_that_are_not_classes_are_refused_at_the_first_batch(engine_of, batch, given, error, found):
    fields = {"loss_fn": given.pop("loss_fn")} if "loss_fn" in given else {}
    engine = engine_of(
        SelectiveBackprop(start=0.5, log_by="class", **{"scale_factor": 1, **given}), batch=batch, **fields
    )
    with pytest.raises(error, match=found):
        engine.run_event("after_dataloader")


def test_on_two_ranks_it_is_that_of_the_global_batch():
    def logs(ranks, scope="global"):
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


def test_the_weights_are_those_of_a_run_without_it(engine_of, pruned):
    batch = rows(*[0, 1, 2, 3] * 5)
    kept = [
        pruned(engine_of(SelectiveBackprop(**ALWAYS, log_by=by), batch=batch), batch) for by in (None, "class", "loss")
    ]
    assert all(torch.equal(kept[0][0], other[0]) for other in kept[1:])
