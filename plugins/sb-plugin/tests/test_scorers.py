"""Scores from tables, functions and nowhere, in whole training runs; what is kept equals a hand-made record."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from engine_core import Callback, Engine, Event, Logger, State, Trainer
from engine_core.errors import ArgumentError, EngineError
from engine_core_author import RecordingDestination
from sb_plugin import SelectiveBackprop, WithIndex

ROWS, SIZE = 24, 8
ALWAYS: dict[str, Any] = {"start": 0, "end": 1, "scale_factor": 1, "interrupt": 0}


def data(seed: int = 0) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, 6, generator=generator)
    return DataLoader(WithIndex(TensorDataset(x, (x.sum(1) > 0).long())), SIZE, shuffle=True)


class Witness(Callback):
    """Records what a forward that trains gives each example, and how many rows each forward had."""

    def __init__(self, momentum: float = 0.5) -> None:
        self.momentum = momentum
        self.table: dict[int, float] = {}
        self.picks: list[list[int]] = []
        self.scored: list[int] = []

    def init(self, state: State, logger: Any) -> None:
        def count(module: nn.Module, args: Any) -> None:
            if not torch.is_grad_enabled():
                self.scored.append(len(args[0]))

        state.model.register_forward_pre_hook(count)

    def after_forward(self, state: State, logger: Any) -> None:
        _, targets, ids = state.batch
        losses = F.cross_entropy(state.outputs.detach(), targets, reduction="none")
        for key, loss in zip(ids.tolist(), losses, strict=True):
            old = self.table.get(key)
            new = loss if old is None else self.momentum * torch.tensor(old) + (1 - self.momentum) * loss
            self.table[key] = new.item()
        self.picks.append(ids.tolist())


def train(algorithm: Any, witness: Callback, epochs: int = 4, **settings: Any) -> Trainer:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    given = {"max_duration": f"{epochs}ep", "optimizers": torch.optim.SGD(model.parameters(), lr=0.3), "seed": 1}
    with Trainer(
        model,
        data(),
        device="cpu",
        loss_fn=F.cross_entropy,
        algorithms=[algorithm],
        callbacks=[witness],
        **{**given, **settings},
    ) as trainer:
        trainer.fit()
    return trainer


def table_of(algorithm: SelectiveBackprop) -> dict[int, float]:
    return {key: value for key, value in enumerate(algorithm.state_dict()["table"].tolist()) if value != math.inf}


@pytest.mark.parametrize("momentum", [0.5, 0.0, 0.9])
@pytest.mark.parametrize("interval", [(0, 1), (0.5, 1)])
def test_the_carried_table_is_a_record_of_the_losses_that_trained(momentum: float, interval: Any) -> None:
    """Also of the steps before the interval, which warm it up."""
    algorithm = SelectiveBackprop(
        *interval, scale_factor=1, interrupt=3, scorer="carried", index_key=2, momentum=momentum
    )
    witness = Witness(momentum)
    train(algorithm, witness)
    assert table_of(algorithm) == pytest.approx(witness.table, rel=1e-6)
    assert witness.scored == []


def test_carried_losses_are_taken_up_to_the_end_of_the_interval() -> None:
    algorithm, witness = SelectiveBackprop(0, 0.5, scale_factor=1, scorer="carried", index_key=2), Witness()
    train(algorithm, witness, epochs=2)
    half = Witness()
    train(SelectiveBackprop(0, 1, scale_factor=1, scorer="carried", index_key=2), half, epochs=1)
    assert table_of(algorithm) == pytest.approx(half.table, rel=1e-6)


@pytest.mark.parametrize("size", [3, 4])
def test_microbatches_leave_the_same_table(size: int) -> None:
    whole, split = (SelectiveBackprop(**ALWAYS, scorer="carried", index_key=2) for _ in range(2))
    train(whole, Witness())
    train(split, Witness(), microbatch_size=size)
    assert table_of(split) == pytest.approx(table_of(whole), rel=1e-4)


class Again(Callback):
    """Runs a second forward and backward at other weights, as SAM does."""

    def after_train_batch(self, state: State, logger: Any) -> None:
        assert state.loop.closure is not None
        weight = next(state.model.parameters())
        before = weight.detach().clone()
        with torch.no_grad():
            weight.add_(1)
        state.loop.closure()
        with torch.no_grad():
            weight.copy_(before)


def test_a_second_forward_of_the_step_is_not_recorded() -> None:
    once, twice = (SelectiveBackprop(**ALWAYS, scorer="carried", index_key=2) for _ in range(2))
    train(once, Witness(), max_duration="1ba")
    train(twice, Again(), max_duration="1ba")
    assert table_of(twice) == table_of(once)
    assert len(table_of(once)) == SIZE // 2


def test_an_example_that_was_never_trained_on_counts_as_hardest() -> None:
    """Of batches of 8 with keep .5, the second epoch takes those that the first has left out."""
    witness = Witness()
    train(SelectiveBackprop(**ALWAYS, scorer="carried", index_key=2, selector="topk"), witness, epochs=2)
    first = {key for picks in witness.picks[:3] for key in picks}
    assert len(first) == ROWS // 2
    chances = [sum(key not in first for key in picks) for picks in witness.picks[3:]]
    left_in_batch = ROWS - len(first)
    assert sum(chances) >= left_in_batch - 3  # a batch may have had more than 4 of them
    assert max(chances) == 4


@pytest.mark.parametrize("refresh", [1, 2, 3])
def test_stale_scores_are_renewed_every_few_visits(refresh: int) -> None:
    algorithm = SelectiveBackprop(**ALWAYS, scorer="stale", index_key=2, refresh=refresh)
    witness = Witness()
    train(algorithm, witness, epochs=4)
    epochs = [epoch for epoch in range(4) if epoch % refresh == 0]
    assert witness.scored == [SIZE] * 3 * len(epochs)


@pytest.mark.parametrize("refresh", [2, 9])
def test_stale_scores_are_the_losses_of_their_last_forward(refresh: int) -> None:
    x, y = data().dataset.dataset.tensors  # type: ignore[attr-defined]
    record: dict[int, float] = {}

    class Oracle(Callback):
        def init(self, state: State, logger: Any) -> None:
            state.model.register_forward_hook(self.note)

        def note(self, module: nn.Module, args: Any, outputs: torch.Tensor) -> None:
            if not outputs.requires_grad:
                ids = (args[0][:, None] == x).all(2).nonzero()[:, 1]
                losses = F.cross_entropy(outputs, y[ids], reduction="none")
                record.update(zip(ids.tolist(), losses.tolist(), strict=True))

    algorithm = SelectiveBackprop(**ALWAYS, scorer="stale", index_key=2, refresh=refresh)
    train(algorithm, Oracle(), epochs=4)
    assert len(record) == ROWS
    assert table_of(algorithm) == record


def test_the_uniform_selector_scores_nothing() -> None:
    witness, destination = Witness(), RecordingDestination()
    train(SelectiveBackprop(**ALWAYS, selector="uniform"), witness, epochs=40, loggers=[destination])
    assert witness.scored == []
    assert {len(picks) for picks in witness.picks} == {SIZE // 2}
    counts = torch.bincount(torch.tensor(witness.picks).flatten(), minlength=ROWS)
    assert (counts - 20).abs().max() < 5 * math.sqrt(40 / 4)
    names = {name for _, metrics in destination.metrics for name in metrics if name.startswith("selective")}
    assert names == {"selective_backprop/kept", "selective_backprop/kept_fraction"}


def test_a_function_of_the_batch_and_the_state_gives_scores() -> None:
    """The reducible loss of Mindermann et al. 2022 (arXiv 2206.07137): the loss less what a table says is left."""
    irreducible = torch.linspace(0, 3, ROWS)
    hardest = []

    def reducible(batch: Any, state: State) -> torch.Tensor:
        x, y, ids = batch
        assert state.model is not None
        assert not torch.is_grad_enabled()
        scores = F.cross_entropy(state.model(x), y, reduction="none") - irreducible[ids]
        hardest.append(ids[scores.topk(4).indices.sort().values].tolist())
        return scores

    witness = Witness()
    train(SelectiveBackprop(**ALWAYS, scorer=reducible, selector="topk"), witness, epochs=1)
    assert witness.picks == hardest


def test_what_a_scorer_function_gives_has_to_be_a_score_for_each_row(engine_of: Any, pruned: Any) -> None:
    for given, words in ((lambda b, s: [1.0], "not a tensor of shape"), (lambda b, s: b[0], r"not \(8,\), a score")):
        engine = engine_of(SelectiveBackprop(**ALWAYS, scorer=given))
        with pytest.raises((ValueError, TypeError), match=words):
            pruned(engine)


def test_a_loop_that_reports_no_loss_gets_an_error(engine_of: Any, pruned: Any) -> None:
    engine = engine_of(SelectiveBackprop(**ALWAYS, scorer="carried", index_key=2))
    batch = (torch.randn(8, 3), torch.zeros(8).long(), torch.arange(8))
    for _ in range(3):
        pruned(engine, batch)
    with pytest.raises(EngineError, match=r"got no losses for the last 3 batches.*AFTER_LOSS"):
        pruned(engine, batch)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (torch.arange(8.0), "float32"),
        (torch.ones(8).bool(), "bool"),
        (torch.arange(8) * 2**40, "number the examples from 0"),
        (torch.arange(7), r"\(7,\)"),
        (list(range(8)), r"not a tensor \(8,\) with the id"),
        (None, "has no item 2.*sb_plugin.WithIndex"),
    ],
)
def test_anything_but_an_id_is_refused_at_the_first_batch(ids: Any, words: str) -> None:
    batch = (torch.randn(8, 3), torch.zeros(8).long(), *(() if ids is None else (ids,)))
    algorithm = SelectiveBackprop(0.5, 1, scale_factor=1, scorer="carried", index_key=2)
    state = State(nn.Linear(3, 2), algorithms=[algorithm], loss_fn=F.cross_entropy, max_duration="9ba", batch=batch)
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.INIT)
        with pytest.raises((TypeError, ValueError, LookupError), match=words):
            engine.run_event(Event.AFTER_DATALOADER)


@pytest.mark.parametrize(("key", "settings"), [(-1, {}), (-2, {}), (0, {"input_key": -2})])
def test_targets_and_inputs_are_not_taken_for_ids(key: int, settings: dict[str, Any]) -> None:
    """As when the examples were never numbered, and the ids are looked for at the end."""
    batch = (torch.arange(8), torch.arange(8) % 2)
    algorithm = SelectiveBackprop(0, 1, scale_factor=1, scorer="carried", index_key=key, **settings)
    state = State(nn.Embedding(8, 2), algorithms=[algorithm], loss_fn=F.cross_entropy, max_duration="9ba", batch=batch)
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.INIT)
        with pytest.raises(ArgumentError, match=rf"index_key={key} finds the inputs or the targets.*WithIndex"):
            engine.run_event(Event.AFTER_DATALOADER)
