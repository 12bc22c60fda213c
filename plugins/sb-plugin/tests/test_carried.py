"""Losses carried from step to step: they are those that train, leave no trace, and survive what goes wrong."""

import math
import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Algorithm, AlgorithmMetadata, Callback, Event, State, Trainer
from engine_core.errors import ArgumentError
from engine_core_author import RecordingDestination
from sb_plugin import SelectiveBackprop

ROWS = 24
CARRIED: dict[str, Any] = {"scale_factor": 1, "interrupt": 0, "scorer": "carried", "index_key": 2}
X = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(0))
BATCHES = list(zip(X.split(8), (X.sum(1) > 0).long().split(8), torch.arange(ROWS).split(8), strict=True))


def train(algorithms: Any, *callbacks: Any, **settings: Any) -> Trainer:
    torch.manual_seed(5)
    model = settings.pop("model", None) or nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    given: dict[str, Any] = {"max_duration": "4ep", "loss_fn": F.cross_entropy, "optimizers": optimizer, "seed": 1}
    with Trainer(
        model, BATCHES, algorithms=algorithms, callbacks=list(callbacks), device="cpu", **{**given, **settings}
    ) as trainer:
        trainer.fit()
    return trainer


def table_of(algorithm: SelectiveBackprop) -> torch.Tensor:
    table: torch.Tensor = algorithm.state_dict()["table"]
    return table


def noisy(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    return F.cross_entropy(outputs + 0.5 * torch.randn_like(outputs), targets, reduction=reduction)


class Weights(Callback):
    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def batch_end(self, state: State, logger: Any) -> None:
        self.seen.append(next(state.model.parameters()).detach().clone())


def test_up_to_start_a_run_is_bit_identical_with_a_loss_that_draws_too() -> None:
    plain, carried = Weights(), Weights()
    train([], plain, loss_fn=noisy)
    train(SelectiveBackprop(0.5, 1, **CARRIED), carried, loss_fn=noisy)
    same = [torch.equal(a, b) for a, b in zip(plain.seen, carried.seen, strict=True)]
    assert same == [True] * 6 + [False] * 6


class Counting(nn.CrossEntropyLoss):
    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(outputs, targets)


@pytest.mark.filterwarnings("ignore::engine_core.errors.UnreadItemWarning")  # the ids, where losses are not kept
@pytest.mark.parametrize("given", [CARRIED, {**CARRIED, "scorer": "stale"}, {"scale_factor": 1, "interrupt": 0}])
def test_buffers_of_a_loss_module_are_left_as_they_were(given: dict[str, Any]) -> None:
    loss = Counting()
    train(SelectiveBackprop(0, 1, **given), loss_fn=loss)
    assert loss.calls == 12


class Blur(Algorithm):
    """Changes the targets for the loss, as MixUp and label smoothing do."""

    metadata = AlgorithmMetadata(events=("before_loss", "after_loss"), writes=("batch",))

    def match(self, event: Event, state: State) -> bool:
        return True

    def apply(self, event: Event, state: State, logger: Any) -> None:
        if event is Event.BEFORE_LOSS:
            self.found = state.batch
            state.batch_set_item(1, F.one_hot(state.batch[1], 2) * 0.5 + 0.25)
        else:
            state.batch = self.found


def test_it_is_the_loss_that_trains_that_is_carried() -> None:
    trained = []

    class Loss(Callback):
        def before_backward(self, state: State, logger: Any) -> None:
            trained.append(state.loss.item())

    algorithm = SelectiveBackprop(0, 1, **CARRIED)
    train([algorithm, Blur()], Loss(), max_duration="1ba")
    table = table_of(algorithm)
    assert table[table != math.inf].mean().item() == pytest.approx(trained[0], rel=1e-6)


def test_losses_of_half_precision_are_taken_in_single_precision() -> None:
    algorithm = SelectiveBackprop(0, 1, **CARRIED)
    expected = []

    class Oracle(Callback):
        def after_loss(self, state: State, logger: Any) -> None:
            assert state.outputs.dtype is torch.bfloat16
            expected.append(F.cross_entropy(state.outputs.detach().float(), state.batch[1], reduction="none"))
            expected.append(state.batch[2])

    train(algorithm, Oracle(), max_duration="1ba", precision="amp_bf16")
    assert torch.equal(table_of(algorithm)[expected[1]], expected[0])


@pytest.mark.filterwarnings("ignore::engine_core.errors.NonFiniteLossWarning")
def test_one_bad_forward_excludes_no_example_for_good() -> None:
    """As it would if NaN took the place of what was known: rows of NaN are not drawn while there are others."""
    visits = torch.zeros(ROWS)

    class Spoil(Callback):
        def before_forward(self, state: State, logger: Any) -> None:
            if state.timestamp.batch == 30:
                state.batch = (state.batch[0] * math.nan, *state.batch[1:])
            elif state.timestamp.batch > 30:
                visits[state.batch[2]] += 1

    algorithm = SelectiveBackprop(0, 1, **CARRIED)
    train(algorithm, Spoil(), "loss_guard", max_duration="40ep")
    assert table_of(algorithm).isfinite().all()
    assert visits.min() > 0


@pytest.mark.filterwarnings("ignore::engine_core.errors.NonFiniteLossWarning")
def test_a_row_that_was_never_finite_is_not_chosen_while_others_are_left() -> None:
    batches = [(x.clone(), y, ids) for x, y, ids in BATCHES]
    batches[0][0][3] = math.nan
    seen = []

    class Picks(Callback):
        def before_forward(self, state: State, logger: Any) -> None:
            seen.append(state.batch[2].tolist())

    model = nn.Linear(6, 2)
    given: dict[str, Any] = {"loss_fn": F.cross_entropy, "optimizers": torch.optim.SGD(model.parameters(), lr=0.1)}
    callbacks = [Picks(), "loss_guard"]
    algorithm = SelectiveBackprop(0, 1, **CARRIED)
    with Trainer(
        model, batches, algorithms=algorithm, callbacks=callbacks, max_duration="9ep", device="cpu", seed=1, **given
    ) as trainer:
        trainer.fit()
    assert sum(3 in picks for picks in seen) == 1


def test_a_first_step_that_fails_is_not_a_loop_that_reports_no_loss() -> None:
    class FailOnce(Callback):
        def __init__(self) -> None:
            self.left = 2

        def after_forward(self, state: State, logger: Any) -> None:
            self.left -= 1
            if self.left >= 0:
                raise ZeroDivisionError

    torch.manual_seed(5)
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given: dict[str, Any] = {"loss_fn": F.cross_entropy, "optimizers": optimizer, "max_duration": "2ep"}
    algorithm = SelectiveBackprop(0, 1, **CARRIED)
    with Trainer(model, BATCHES, algorithms=algorithm, callbacks=[FailOnce()], device="cpu", **given) as trainer:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                trainer.fit()
        trainer.fit()
    assert len(table_of(algorithm)) > 0


def logged(destination: RecordingDestination, name: str) -> list[Any]:
    return [metrics[name] for _, metrics in destination.metrics if name in metrics]


def test_examples_never_trained_on_are_counted_and_in_no_mean() -> None:
    destination = RecordingDestination()
    train(SelectiveBackprop(0, 1, **CARRIED), loggers=[destination], max_duration="2ep")
    assert logged(destination, "selective_backprop/unseen") == [8, 8, 8, 4, 4, 4]
    means = logged(destination, "selective_backprop/loss_mean")
    assert len(means) == 3
    assert max(means) < 10
    assert logged(destination, "selective_backprop/nonfinite") == [0] * 6


def test_refreshed_rows_are_counted() -> None:
    destination = RecordingDestination()
    algorithm = SelectiveBackprop(0, 1, **{**CARRIED, "scorer": "stale"}, refresh=2)
    train(algorithm, loggers=[destination], max_duration="3ep")
    assert logged(destination, "selective_backprop/refreshed") == [8, 8, 8, 0, 0, 0, 8, 8, 8]


@pytest.mark.parametrize(("interval", "kept"), [((0, 1), 0.5), ((0.5, 1), 0.75)])
def test_the_fraction_of_rows_that_were_trained_on_is_logged_at_the_end(interval: Any, kept: float) -> None:
    destination = RecordingDestination()
    train(SelectiveBackprop(*interval, **CARRIED), loggers=[destination])
    assert logged(destination, "selective_backprop/kept_fraction") == [kept]
    assert 0 < logged(destination, "time/selective_backprop/scoring_fraction")[0] < 1


def test_the_share_of_time_spent_scoring_is_that_of_the_whole_run() -> None:
    """If one of its two parts began again with the second fit, it would be near 2, or near a half."""

    def slow(batch: Any, state: State) -> torch.Tensor:
        time.sleep(0.2)
        return batch[0].sum(1)

    destination = RecordingDestination()
    algorithm = SelectiveBackprop(0, 1, scale_factor=1, interrupt=0, scorer=slow)
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Trainer(
        model,
        BATCHES,
        max_duration="2ep",
        loss_fn=F.cross_entropy,
        optimizers=optimizer,
        algorithms=algorithm,
        loggers=[destination],
        device="cpu",
    ) as trainer:
        trainer.fit(duration="1ep")
        trainer.fit()
    shares = logged(destination, "time/selective_backprop/scoring_fraction")
    assert len(shares) == 2 and all(0.55 < share < 1 for share in shares)


def test_a_table_is_not_a_table_of_visits_and_a_refused_state_changes_nothing(engine_of: Any) -> None:
    carried = SelectiveBackprop(0, 1, **CARRIED)
    train(carried)
    stale = SelectiveBackprop(0, 1, **{**CARRIED, "scorer": "stale"})
    stale.load_state_dict(carried.state_dict())
    before = carried.state_dict()
    with pytest.raises(ArgumentError, match="'table' in the state"):
        carried.load_state_dict({**stale.state_dict(), "table": torch.zeros(3, 3)})
    after = carried.state_dict()
    assert all(torch.equal(torch.as_tensor(before[name]), torch.as_tensor(after[name])) for name in before)


@pytest.mark.parametrize("scope", ["global", "rank"])
def test_the_class_lists_each_event_of_an_instance_so_that_its_pass_places_it_there(scope: str) -> None:
    events = SelectiveBackprop(**CARRIED, scope=scope).metadata.events
    assert set(events or ()) <= set(SelectiveBackprop.metadata.events or ())
    assert (Event.BATCH_END in (events or ())) == (scope == "global")
