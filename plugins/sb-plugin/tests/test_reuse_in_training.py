"""Reuse of the scoring forward in whole trainings: bit-equal to runs without, or declined with the reason."""

import copy
import gc
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Algorithm, AlgorithmMetadata, Callback, Engine, Event, Logger, State, Trainer
from engine_core.errors import ArgumentError
from sb_plugin import SelectiveBackprop

ALWAYS: dict[str, Any] = {"start": 0.2, "end": 1, "scale_factor": 1, "interrupt": 3}


def mlp(*before_head: nn.Module) -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.GELU(), *before_head, nn.Linear(32, 4))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embed = nn.Linear(4, 32)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.encoder(self.embed(x.view(len(x), 3, 4))).mean(1))
        return logits


def data(rows: int = 60) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of 16, the last one of 12."""
    x = torch.randn(rows, 12, generator=torch.Generator().manual_seed(0))
    return list(zip(x.split(16), (x.sum(1) * 2).long().remainder(4).split(16), strict=True))


class Gradients(Callback):
    """Takes the gradients and the loss of each step."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def after_train_batch(self, state: State, logger: Any) -> None:
        grads = [parameter.grad.clone() for parameter in state.model.parameters() if parameter.grad is not None]
        self.seen.append([state.loss.detach().clone(), *grads])


def train(
    model: nn.Module, algorithms: Any, optimizer: Any = torch.optim.SGD, *, rows: int = 60, **settings: Any
) -> Gradients:
    gradients = Gradients()
    with Trainer(
        model,
        data(rows),
        max_duration="4ep",
        loss_fn=F.cross_entropy,
        optimizers=optimizer(model.parameters(), lr=0.01),
        algorithms=algorithms,
        callbacks=[gradients],
        device="cpu",
        seed=3,
        **settings,
    ) as trainer:
        trainer.fit()
    return gradients


def test_a_batch_of_few_rows_which_rounds_otherwise_is_computed_and_the_others_are_reused() -> None:
    """12 rows with keep .25 leave three, for which matrix products take another way."""
    plain, reused = mlp(), mlp()
    without = train(plain, SelectiveBackprop(0, 1, 0.25, 1, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with_it = train(reused, SelectiveBackprop(0, 1, 0.25, 1, 0, reuse="on"))
    assert same(without, with_it)


def same(one: Gradients, other: Gradients) -> bool:
    return all(torch.equal(a, b) for s, t in zip(one.seen, other.seen, strict=True) for a, b in zip(s, t, strict=True))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("keep", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("make", [mlp, Transformer])
def test_losses_gradients_and_weights_have_the_same_bits_as_without(make: Any, keep: float, optimizer: Any) -> None:
    plain, reused = make(), make()
    without = train(plain, SelectiveBackprop(**ALWAYS, keep=keep), optimizer)
    with_it = train(reused, SelectiveBackprop(**ALWAYS, keep=keep, reuse="on"), optimizer)
    assert same(without, with_it)
    assert all(map(torch.equal, plain.parameters(), reused.parameters()))


def test_a_layer_computes_once_a_step_and_is_left_as_it_was() -> None:
    """After the first steps, which compute again to compare."""
    calls = []

    class Loud(nn.ReLU):
        """Is called by its parent in each forward, scoring and training."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append((torch.is_grad_enabled(), type(x.grad_fn).__name__))
            return super().forward(x)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 256), Loud(), nn.Linear(256, 4))
    train(model, SelectiveBackprop(0, 1, scale_factor=1, interrupt=0, reuse="on"))
    assert calls[1] == (True, "AddmmBackward0")
    assert calls[-2:] == [(False, "NoneType"), (True, "_KnownProductBackward")]
    assert not any("forward" in vars(module) for module in model.modules())
    copy.deepcopy(model)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


REASONS = [
    (lambda: mlp(nn.BatchNorm1d(32)), {}, "'4' (BatchNorm1d)"),
    (lambda: mlp(nn.Dropout(0.1)), {}, "dropout is active in '4' (Dropout)"),
    (lambda: nn.DataParallel(mlp()), {}, "DataParallel"),
    (lambda: torch.compile(mlp(), backend="eager"), {}, "torch.compile"),
    (lambda: nn.Sequential(Scale(), nn.Unflatten(1, (3, 4)), nn.Flatten()), {}, "no layer that is exactly"),
    (mlp, {"precision": "amp_bf16"}, "autocast is on"),
    (mlp, {"microbatch_size": 3}, "microbatches"),
    (lambda: nn.Sequential(mlp(), nn.ReLU(inplace=True)), {}, "changed in place"),
]
IDS = ["norm", "dropout", "wrapped", "compiled", "no linear", "autocast", "microbatches", "in place"]


@pytest.mark.parametrize(("make", "settings", "words"), REASONS, ids=IDS)
def test_where_it_is_not_sound_on_is_an_error_with_the_reason(make: Any, settings: Any, words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        train(make(), SelectiveBackprop(**ALWAYS, reuse="on"), **settings)
    assert words in str(caught.value)
    assert "or set reuse='off'" in str(caught.value)


def test_what_a_look_at_the_model_shows_is_reported_at_the_first_batch_not_at_start() -> None:
    seen = Gradients()
    model = mlp(nn.Dropout(0.1))
    algorithm = SelectiveBackprop(0.9, 1, scale_factor=1, reuse="on")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    settings: dict[str, Any] = {"loss_fn": F.cross_entropy, "optimizers": optimizer, "max_duration": "9ep"}
    with (
        Trainer(model, data(), algorithms=algorithm, callbacks=[seen], device="cpu", **settings) as trainer,
        pytest.raises(ArgumentError, match="dropout is active"),
    ):
        trainer.fit()
    assert seen.seen == []


@pytest.mark.parametrize(("make", "settings", "words"), REASONS, ids=IDS)
def test_where_it_is_not_sound_auto_warns_once_and_is_off(make: Any, settings: Any, words: str) -> None:
    off, auto = make(), make()
    without = train(off, SelectiveBackprop(**ALWAYS), **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with_it = train(auto, SelectiveBackprop(**ALWAYS, reuse="auto"), **settings)
    messages = [str(w.message) for w in caught if "selective_backprop" in str(w.message)]
    assert len(messages) == 1
    assert words in messages[0]
    assert "reuse='auto' continues without it" in messages[0]
    assert same(without, with_it)


class Shift(Algorithm):
    """Changes the inputs after they were scored, as MixUp does."""

    metadata = AlgorithmMetadata(events=("before_forward", "after_forward"), writes=("batch",))

    def match(self, event: Event, state: State) -> bool:
        return True

    def apply(self, event: Event, state: State, logger: Any) -> None:
        if event is Event.BEFORE_FORWARD:
            self.found = state.batch
            state.batch = (state.batch[0] + 1, state.batch[1])
        else:
            state.batch = self.found


def test_inputs_that_another_algorithm_has_changed_are_not_reused_and_change_nothing() -> None:
    plain, auto = mlp(), mlp()
    without = train(plain, [SelectiveBackprop(**ALWAYS), Shift()])
    with pytest.warns(UserWarning, match="gets other inputs"):
        with_it = train(auto, [SelectiveBackprop(**ALWAYS, reuse="auto"), Shift()])
    assert same(without, with_it)


def test_what_raises_in_the_forward_leaves_the_layers_as_they_were() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled():
                raise ZeroDivisionError
            return x

    model = mlp(Fails())
    with pytest.raises(ZeroDivisionError):
        train(model, SelectiveBackprop(0, 1, scale_factor=1, interrupt=0, reuse="on"))
    assert not any("forward" in vars(module) for module in model.modules())


class RoundsFew(nn.Module):
    """Rounds few rows differently from many, as convolutions may, or drops from some step on."""

    def __init__(self, drops_from: float = float("inf")) -> None:
        super().__init__()
        self.drops_from, self.steps = drops_from, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += torch.is_grad_enabled()
        x = F.dropout(x, 0.5, self.steps >= self.drops_from)
        return x * 1.000001 if len(x) < 4 else x


@pytest.mark.parametrize("first", [True, False])
def test_few_rows_whose_inputs_round_otherwise_are_computed_and_the_others_are_reused(first: bool) -> None:
    """12 rows with keep .25 leave three."""
    plain, reused = (nn.Sequential(*([RoundsFew()] if first else []), mlp(RoundsFew())) for _ in range(2))
    without = train(plain, SelectiveBackprop(0, 1, 0.25, 1, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with_it = train(reused, SelectiveBackprop(0, 1, 0.25, 1, 0, reuse="on"))
    assert same(without, with_it)


def test_dropout_that_begins_late_is_reported_also_after_a_batch_of_few_rows() -> None:
    model = mlp(RoundsFew(drops_from=7))
    with pytest.raises(ArgumentError, match="gets other inputs for 4 rows than for the same rows among 16"):
        train(model, SelectiveBackprop(0, 1, 0.25, 1, 0, reuse="on"))
    assert model[4].steps == 7


class Stops(nn.Module):
    """Is interrupted in the third step, before any layer has computed."""

    steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += torch.is_grad_enabled()
        if self.steps == 3 and torch.is_grad_enabled():
            raise KeyboardInterrupt
        return x


def test_a_fit_after_an_interrupted_one_works() -> None:
    model = nn.Sequential(Stops(), mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    algorithm = SelectiveBackprop(0, 1, scale_factor=1, interrupt=0, reuse="on")
    settings: dict[str, Any] = {"loss_fn": F.cross_entropy, "optimizers": optimizer, "max_duration": "2ep"}
    with Trainer(model, data(), algorithms=algorithm, device="cpu", **settings) as trainer:
        with pytest.raises(KeyboardInterrupt):
            trainer.fit()
        trainer.fit()
        assert trainer.state.timestamp.batch >= 7


def test_a_second_selection_is_reported() -> None:
    with pytest.raises(ArgumentError, match="a second SelectiveBackprop"):
        train(mlp(), [SelectiveBackprop(**ALWAYS, reuse="on"), SelectiveBackprop(**ALWAYS, reuse="on")])


def test_where_it_is_declined_nothing_is_held() -> None:
    """A loop that fires neither BEFORE_FORWARD nor AFTER_FORWARD."""

    def held() -> int:
        gc.collect()
        return sum(
            type(item) is torch.Tensor and not item.is_nested and item.shape == (16, 97) for item in gc.get_objects()
        )

    model = nn.Sequential(nn.Linear(12, 97), nn.Linear(97, 4))
    algorithm = SelectiveBackprop(0, 1, scale_factor=1, interrupt=0, reuse="auto")
    state = State(model=model, loss_fn=F.cross_entropy, max_duration="9ba", algorithms=[algorithm], seed=1)
    found = []
    with Engine(state, Logger()) as engine, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine.run_event(Event.INIT)
        for state.batch in data()[:3]:
            engine.run_event(Event.AFTER_DATALOADER)
            found.append(held())
    assert (found[0] > 0, found[1:]) == (True, [0, 0])
