"""Reuse of the scoring forward in whole trainings: bit-equal to runs without, or declined with the reason."""

import copy
import gc
import itertools
import warnings

import pytest
import torch
from parts import acting, at, trainer
from torch import nn
from torch.nn import functional as F

from engine_core import Engine, Event, Logger, State
from engine_core.errors import ArgumentError
from sb_plugin import SelectiveBackprop

ALWAYS = {"start": 0.2, "end": 1, "scale_factor": 1, "interrupt": 3}


def mlp(*before_head):
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.GELU(), *before_head, nn.Linear(32, 4))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.embed = nn.Linear(4, 32)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x.view(len(x), 3, 4))).mean(1))


def data(rows=60):
    """Batches of 16, the last one of 12."""
    x = torch.randn(rows, 12, generator=torch.Generator().manual_seed(0))
    return list(zip(x.split(16), (x.sum(1) * 2).long().remainder(4).split(16), strict=True))


Steps = list[list[torch.Tensor]]


def train(model, algorithms, seen=None, **settings):
    """Return the loss and the gradients of each step."""
    seen = [] if seen is None else seen

    def note(state):
        grads = [parameter.grad.clone() for parameter in state.model.parameters() if parameter.grad is not None]
        seen.append([state.loss.detach().clone(), *grads])

    given = {"max_duration": "4ep", "optimizers": torch.optim.SGD(model.parameters(), lr=0.01), "seed": 3, **settings}
    with trainer(data(), model, algorithms=algorithms, callbacks=at("after_train_batch", note), **given) as made:
        made.fit()
    return seen


def same(one, other):
    return all(torch.equal(a, b) for s, t in zip(one, other, strict=True) for a, b in zip(s, t, strict=True))


@pytest.mark.parametrize(
    ("make", "keep", "optimizer"),
    [(mlp, 0.25, torch.optim.AdamW), (mlp, 0.75, torch.optim.SGD), (Transformer, 0.5, torch.optim.AdamW)],
)
def test_losses_gradients_and_weights_have_the_same_bits_as_without(make, keep, optimizer):
    plain, reused = make(), make()
    without, with_it = (
        train(model, SelectiveBackprop(**ALWAYS, keep=keep, reuse=reuse), optimizers=optimizer(model.parameters()))
        for model, reuse in ((plain, "off"), (reused, "on"))
    )
    assert same(without, with_it)
    assert all(map(torch.equal, plain.parameters(), reused.parameters()))


def test_a_layer_computes_once_a_step_and_is_left_as_it_was():
    """After the first steps, which compute again to compare."""
    calls = []

    class Loud(nn.ReLU):
        """Is called by its parent in each forward, scoring and training."""

        def forward(self, x):
            calls.append((torch.is_grad_enabled(), type(x.grad_fn).__name__))
            return super().forward(x)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 256), Loud(), nn.Linear(256, 4))
    train(model, SelectiveBackprop(0, 1, scale_factor=1, interrupt=0, reuse="on"))
    assert calls[1] == (True, "AddmmBackward0")
    assert calls[-2:] == [(False, "NoneType"), (True, "_KnownProductBackward")]
    assert not any("forward" in vars(module) for module in model.modules())
    copy.deepcopy(model)


REASONS = [
    (lambda: mlp(nn.Dropout(0.1)), {}, "dropout is active in '4' (Dropout)"),
    (lambda: nn.Sequential(nn.Unflatten(1, (3, 4)), nn.Conv1d(3, 4, 4), nn.Flatten()), {}, "no layer that is exactly"),
    (mlp, {"precision": "amp_bf16"}, "autocast is on"),
    (mlp, {"microbatch_size": 3}, "microbatches"),
    (lambda: nn.Sequential(mlp(), nn.ReLU(inplace=True)), {}, "changed in place"),
]
IDS = ["dropout", "no linear", "autocast", "microbatches", "in place"]


@pytest.mark.parametrize(("make", "settings", "words"), REASONS, ids=IDS)
def test_where_it_is_not_sound_on_is_an_error_and_auto_warns_once_and_is_off(make, settings, words):
    with pytest.raises(ArgumentError) as refused:
        train(make(), SelectiveBackprop(**ALWAYS, reuse="on"), **settings)
    assert words in str(refused.value)
    assert "or set reuse='off'" in str(refused.value)
    without = train(make(), SelectiveBackprop(**ALWAYS), **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with_it = train(make(), SelectiveBackprop(**ALWAYS, reuse="auto"), **settings)
    (message,) = [str(w.message) for w in caught if "selective_backprop" in str(w.message)]
    assert words in message
    assert "reuse='auto' continues without it" in message
    assert same(without, with_it)


def test_what_a_look_at_the_model_shows_is_reported_at_the_first_batch_not_at_start():
    seen = []
    with pytest.raises(ArgumentError, match="dropout is active"):
        train(mlp(nn.Dropout(0.1)), SelectiveBackprop(0.9, 1, scale_factor=1, reuse="on"), seen)
    assert seen == []


def test_inputs_that_another_algorithm_has_changed_are_not_reused_and_change_nothing():
    """As MixUp changes them, after they were scored."""
    found = []

    def shift(event, state):
        if event is Event.BEFORE_FORWARD:
            found.append(state.batch)
            state.batch = (state.batch[0] + 1, state.batch[1])
        else:
            state.batch = found.pop()

    shifting = acting(shift, "before_forward", "after_forward", writes=("batch",))
    without = train(mlp(), [SelectiveBackprop(**ALWAYS), shifting])
    with pytest.warns(UserWarning, match="gets other inputs"):
        with_it = train(mlp(), [SelectiveBackprop(**ALWAYS, reuse="auto"), shifting])
    assert same(without, with_it)


class RoundsFew(nn.Module):
    """Rounds few rows differently from many, as convolutions may, or drops from some step on."""

    def __init__(self, drops_from=float("inf")):
        super().__init__()
        self.drops_from, self.steps = drops_from, 0

    def forward(self, x):
        self.steps += torch.is_grad_enabled()
        x = F.dropout(x, 0.5, self.steps >= self.drops_from)
        return x * 1.000001 if len(x) < 4 else x


@pytest.mark.parametrize("where", ["nowhere", "inside", "first too"])
def test_few_rows_which_round_otherwise_are_computed_and_the_others_are_reused(where):
    """12 rows with keep .25 leave three, for which matrix products take another way."""

    def make():
        return nn.Sequential(
            *([RoundsFew()] if where == "first too" else []), mlp(*([] if where == "nowhere" else [RoundsFew()]))
        )

    without = train(make(), SelectiveBackprop(0, 1, 0.25, 1, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(without, train(make(), SelectiveBackprop(0, 1, 0.25, 1, 0, reuse="on")))


def test_dropout_that_begins_late_is_reported_also_after_a_batch_of_few_rows():
    model = mlp(RoundsFew(drops_from=7))
    with pytest.raises(ArgumentError, match="gets other inputs for 4 rows than for the same rows among 16"):
        train(model, SelectiveBackprop(0, 1, 0.25, 1, 0, reuse="on"))
    assert model[4].steps == 7


def test_what_raises_in_the_forward_of_a_step_leaves_the_layers_as_they_were():
    class Fails(nn.Module):
        def forward(self, x):
            if torch.is_grad_enabled():
                raise ZeroDivisionError
            return x

    model = mlp(Fails())
    with pytest.raises(ZeroDivisionError):
        train(model, SelectiveBackprop(0, 1, scale_factor=1, interrupt=0, reuse="on"))
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_fit_after_an_interrupted_one_works():
    """In the third step, before any layer has computed."""
    steps = itertools.count(1)

    def interrupt(state):
        if next(steps) == 3:
            raise KeyboardInterrupt

    algorithm = SelectiveBackprop(0, 1, scale_factor=1, interrupt=0, reuse="on")
    with trainer(
        data(), mlp(), max_duration="2ep", algorithms=algorithm, callbacks=at("before_forward", interrupt)
    ) as made:
        with pytest.raises(KeyboardInterrupt):
            made.fit()
        made.fit()
        assert made.state.timestamp.batch >= 7


def test_a_second_selection_is_reported():
    with pytest.raises(ArgumentError, match="a second SelectiveBackprop"):
        train(mlp(), [SelectiveBackprop(**ALWAYS, reuse="on"), SelectiveBackprop(**ALWAYS, reuse="on")])


def test_where_it_is_declined_nothing_is_held():
    """A loop that fires neither BEFORE_FORWARD nor AFTER_FORWARD."""

    def held():
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
