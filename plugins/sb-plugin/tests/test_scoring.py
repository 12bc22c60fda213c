"""What scoring must not touch; its precision, BatchNorm's mode, scaled inputs; and which seed draws."""

import copy
import math
import random
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch
from parts import at, same, trainer
from torch import nn
from torch.nn import functional as F

from engine_core import Objective
from engine_core.objective import autocast_of
from engine_core_author import RecordingDestination
from sb_plugin import SelectiveBackprop, select_using_loss
from sb_plugin.scoring import Manner, rank_correlation, score

X, Y = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 4


def net(*layers):
    return nn.Sequential(nn.Conv2d(3, 4, 3), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))


def select(model, seed=0):
    return select_using_loss(X, Y, model, F.cross_entropy, generator=torch.Generator().manual_seed(seed))


def scores(model, seed=0):
    return score(Objective(F.cross_entropy), model, (X, Y), seed)[0]


class Raises(nn.Module):
    def forward(self, x):
        raise RuntimeError("out of order")


class Codebook(nn.Module):
    """A module that counts in a buffer, and replaces another one, as moving averages do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("nothing", None)

    def forward(self, x):
        self.seen += x.shape[0]
        self.average = 0.9 * self.average + 0.1 * x.mean((0, 2, 3))
        return x


class OwnNorm(nn.BatchNorm2d):
    """A custom BatchNorm, which ignores the flag."""

    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, True, 0.1)


class Switching(nn.Module):
    """Sets the mode: of a child before it is called, then of all."""

    def __init__(self):
        super().__init__()
        self.d, self.norm = nn.Dropout(), nn.BatchNorm2d(4).eval()

    def forward(self, x):
        self.norm.train()
        x = self.norm(self.d.eval()(x))
        self.eval()
        return x


class DrawsEverywhere(nn.Module):
    def forward(self, x):
        return F.dropout(x) * (1 + random.random() + np.random.rand() + np.random.randn())


PARTS = {
    "BatchNorm with a cumulative average": lambda: nn.BatchNorm2d(4, momentum=None),
    "InstanceNorm": lambda: nn.InstanceNorm2d(4, track_running_stats=True),
    "own BatchNorm": lambda: OwnNorm(4),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Conv2d(4, 4, 1)),
    "codebook": Codebook,
    "modes": Switching,
    "random numbers": DrawsEverywhere,
}


def trace_of(model):
    """Return all that scoring must not touch, in copies."""
    return [
        [(module.training, getattr(module, "track_running_stats", None)) for module in model.modules()],
        [(name, id(buffer), buffer.clone()) for name, buffer in model.named_buffers()],
        [(p.requires_grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()],
        [torch.get_rng_state(), random.getstate(), repr(np.random.get_state(legacy=False))],
    ]


@contextmanager
def untouched(model, *, raises=False):
    before = trace_of(model)
    with pytest.raises(RuntimeError, match="out of order") if raises else nullcontext():
        yield
    assert same(trace_of(model), before)


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("last", [nn.Identity, Raises], ids=["ends", "raises"])
def test_scoring_leaves_no_trace_also_when_it_raises(part, last):
    model = net(part())
    F.cross_entropy(model(X), Y).backward()  # leaves gradients, and moves the buffers off their first values
    model[0].bias.requires_grad_(False)
    with untouched(model := nn.Sequential(model, last()), raises=last is Raises):
        select(model)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit
@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: lambda x: model(x) * 1,
        lambda model: model.forward,
        lambda model: torch.compile(model, backend="eager"),
        torch.jit.script,
    ],
    ids=["lambda", "bound method", "compiled", "scripted"],
)
def test_scoring_leaves_no_trace_behind_any_callable(wrap):
    model = net(nn.BatchNorm2d(4), nn.Dropout(), Codebook())
    with untouched(model):
        select(wrap(model))


@pytest.mark.parametrize("last", [nn.Identity, Raises], ids=["ends", "raises"])
def test_modes_are_back_behind_a_callable_whose_forward_sets_them(last):
    model = net(Switching(), last())
    with untouched(model, raises=last is Raises):
        select(lambda x: model(x) * 1)


def test_any_kind_of_global_generator_of_numpy_is_untouched():
    usual = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    np.random.randn()  # leaves a second normal number waiting
    try:
        with untouched(model := net(DrawsEverywhere())):
            select(model)
    finally:
        np.random.set_bit_generator(usual)


def test_scores_are_the_losses_of_a_forward_in_train_mode():
    model = net(nn.BatchNorm2d(4))
    expected = F.cross_entropy(copy.deepcopy(model)(X), Y, reduction="none")
    in_eval_mode = F.cross_entropy(copy.deepcopy(model).eval()(X), Y, reduction="none")
    assert torch.equal(scores(model), expected)
    assert not torch.allclose(expected, in_eval_mode)


def test_a_norm_that_was_frozen_for_training_scores_with_its_running_statistics():
    model = net(nn.BatchNorm2d(4))
    model[1].eval()
    expected = F.cross_entropy(model(X), Y, reduction="none")
    assert torch.equal(scores(model), expected)
    assert [module.training for module in model] == [True, False, True, True, True]


def test_dropout_in_scoring_is_on_and_follows_its_own_seed():
    model = net(nn.Dropout(0.5))
    torch.manual_seed(1)
    once = scores(model, seed=5)
    torch.manual_seed(2)
    assert torch.equal(scores(model, seed=5), once)
    assert not torch.equal(scores(model, seed=6), once)
    assert not torch.equal(scores(model.eval(), seed=5), once)


def test_dropout_differs_from_one_scoring_to_the_next():
    """Rows of equal loss but for dropout: the same masks each time would keep the same rows."""
    model, x = nn.Sequential(nn.Dropout(0.5), nn.Flatten()), torch.ones(16, 32)
    generator = torch.Generator().manual_seed(0)
    masks = []
    model.register_forward_hook(lambda module, inputs, outputs: masks.append(outputs.clone()))
    for _ in range(2):
        select_using_loss(x, torch.zeros(16, dtype=torch.long), model, F.cross_entropy, generator=generator)
    assert not torch.equal(*masks)


def test_no_graph_is_kept_even_if_the_model_turns_gradients_on():
    class Stubborn(nn.Module):
        def forward(self, x):
            with torch.enable_grad():
                return x * torch.ones((), requires_grad=True)

    model, seen = net(Stubborn()), []
    model[0].register_forward_hook(lambda module, inputs, outputs: seen.append(outputs.requires_grad))
    assert scores(model).requires_grad is False
    assert select(model)[0].requires_grad is False
    assert seen == [False, False]


def test_gradients_flow_to_inputs_that_want_them():
    x = X.clone().requires_grad_()
    rows, _ = select_using_loss(x, Y, net(), F.cross_entropy)
    rows.sum().backward()
    assert x.grad is not None
    assert sorted(x.grad.flatten(1).mean(1).tolist()) == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_graph_made_before_scoring_can_still_run_backward():
    """Writing to a buffer that did not change would break it."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.ones(6, 6))

        def forward(self, x):
            return x * self.mask

    model = nn.Sequential(Masked(), net())
    loss = F.cross_entropy(model(X.clone().requires_grad_()), Y)
    select(model)
    loss.backward()
    assert model[1][0].weight.grad is not None


def test_the_loss_module_stays_as_it_was():
    loss = nn.CrossEntropyLoss(weight=torch.ones(4), label_smoothing=0.1)
    before = dict(vars(loss))
    select_using_loss(X, Y, net(), loss)
    assert vars(loss) == before
    assert loss.reduction == "mean"


def test_scores_are_single_precision_under_autocast():
    model, seen, mixing = net(), [], torch.randn(4, 4)

    def loss(outputs, targets, reduction="mean"):
        seen.append(outputs.dtype)
        return F.cross_entropy(outputs @ mixing, targets, reduction=reduction)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        reduced = model(X)
        found, _ = score(Objective(loss), model, (X, Y), 0)
    assert (reduced.dtype, seen, found.dtype) == (torch.bfloat16, [torch.float32], torch.float32)
    assert torch.equal(found, F.cross_entropy(reduced.float() @ mixing, Y, reduction="none"))
    assert score(Objective(F.cross_entropy), net().bfloat16(), (X.bfloat16(), Y), 0)[0].dtype == torch.float32


def test_autocast_remembers_nothing_of_the_scoring_forward():
    """Seen with every torch: whether what was remembered gets gradients depends on torch's version."""
    model, remembered = net(), []
    model.register_forward_hook(lambda *_: remembered.append(torch.is_autocast_cache_enabled()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        score(Objective(F.cross_entropy), model, (X, Y), 0)
        score(
            Objective(F.cross_entropy), model, (X, Y), 0, Manner(autocast=autocast_of("amp_bf16", torch.device("cpu")))
        )
        assert torch.is_autocast_cache_enabled()
    assert remembered == [False, False]


ALWAYS = {"start": 0, "end": 1, "interrupt": 0}
IMAGES = torch.randn(8, 1, 6, 6, generator=torch.Generator().manual_seed(2))
LABELS = torch.arange(8) % 4


class Spied(nn.Module):
    """Records what each of its forwards was like."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.norm, self.drop = nn.BatchNorm2d(1), nn.Dropout(0.5)
        self.head = nn.Linear(1, 4)
        self.norm.running_mean.fill_(0.3)
        self.seen = []

    def forward(self, x):
        hidden = self.drop(self.norm(x))
        logits = self.head(hidden.mean((2, 3)))
        self.seen.append((self.training, logits.dtype, x.shape[2]))
        return logits


def buffers(model):
    return [buffer.clone() for buffer in model.buffers()]


@pytest.mark.parametrize(("bn", "training", "moves"), [("frozen", True, 0), ("eval", False, 0), ("train", True, 3)])
def test_batch_norm_is_frozen_or_in_eval_mode_or_records(engine_of, pruned, bn, training, moves):
    engine = engine_of(SelectiveBackprop(**ALWAYS, scale_factor=1, bn=bn), model=(model := Spied()))
    before = buffers(model)
    pruned(engine, (IMAGES, LABELS))
    assert [mode for mode, _, _ in model.seen] == [training]
    assert sum(not torch.equal(a, b) for a, b in zip(before, buffers(model), strict=True)) == moves
    if moves:
        oracle = Spied()
        oracle(IMAGES)
        assert all(map(torch.equal, model.buffers(), oracle.buffers()))
    assert all(module.training for module in model.modules())


def test_a_model_in_eval_mode_stays_there_in_all_modes(engine_of, pruned):
    for bn in ("frozen", "eval", "train"):
        model = Spied().eval()
        pruned(engine_of(SelectiveBackprop(**ALWAYS, scale_factor=1, bn=bn), model=model), (IMAGES, LABELS))
        assert not any(module.training for module in model.modules())


@pytest.mark.parametrize(
    ("of_run", "precision", "dtype"),
    [
        ("fp32", "engine", torch.float32),
        ("fp32", "bf16", torch.bfloat16),
        ("amp_bf16", "engine", torch.bfloat16),
        ("amp_bf16", "fp32", torch.float32),
    ],
)
def test_the_precision_is_of_the_scoring_forward_alone(of_run, precision, dtype):
    model, algorithm = Spied(), SelectiveBackprop(**ALWAYS, scale_factor=1, precision=precision)
    with trainer([(IMAGES, LABELS)], model, algorithms=algorithm, precision=of_run) as made:
        made.fit()
    of_step = torch.bfloat16 if of_run == "amp_bf16" else torch.float32
    assert [found for _, found, _ in model.seen] == [dtype, of_step]


class FirstPixel(nn.Module):
    """Looks at one pixel, which a smaller image has not."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return x[:, 0, -1, -1] * self.scale


def train_scaled(images, algorithm=None, **settings):
    """Return the rank correlation that each step logs, if it does."""
    destination, data = RecordingDestination(), [(images, torch.zeros(len(images)))] * 3
    given = {"algorithms": algorithm or SelectiveBackprop(**ALWAYS, **settings), "loggers": destination, "seed": 2}
    with trainer(data, FirstPixel(), loss_fn=nn.MSELoss(), **given) as made:
        made.fit()
    steps = [metrics for _, metrics in destination.metrics if "selective_backprop/kept" in metrics]
    return [metrics.get("selective_backprop/rank_correlation") for metrics in steps]


def test_scaled_losses_are_compared_once_with_the_true_ones():
    """A blurred image keeps the ranks of its corner, up to a few."""
    images = F.interpolate(torch.arange(16.0).view(16, 1, 1, 1), scale_factor=6)
    assert train_scaled(images) == [1.0, None, None]


def test_a_worthless_ranking_causes_one_warning_and_none_in_a_resumed_run_or_at_full_size():
    images = torch.randn(16, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    with pytest.warns(UserWarning, match=r"rank correlation 0\.\d\d.*set scale_factor=1") as caught:
        first, *others = train_scaled(images)
    assert len(caught) == 1
    assert first < 0.5 and others == [None, None]
    resumed = SelectiveBackprop(**ALWAYS)
    resumed.load_state_dict({"has_compared": True, "generator": torch.Generator().get_state()})
    assert train_scaled(images, resumed) == train_scaled(images, scale_factor=1) == [None, None, None]


@pytest.mark.parametrize(
    ("others", "expected"),
    [([3.0, 2.0, 1.0], -1.0), ([1.0, 3.0, 2.0], 0.5), ([1.0, 1.0, 2.0], 0.75**0.5), ([1.0, 1.0, 1.0], math.nan)],
)
def test_the_rank_correlation_is_that_of_mid_ranks(others, expected):
    found = rank_correlation(torch.tensor([10.0, 20.0, 40.0]), torch.tensor(others))
    assert found == pytest.approx(expected, abs=1e-6, nan_ok=True)


def picks(seed, generator_seed):
    rows = []
    batches = [(torch.ones(8, 3), torch.arange(8.0).view(8, 1))] * 4
    algorithm = SelectiveBackprop(**ALWAYS, scale_factor=1, selector="uniform", generator_seed=generator_seed)
    note = at("before_forward", lambda state: rows.append(state.batch[1].tolist()))
    with trainer(batches, nn.Linear(3, 1), loss_fn=F.mse_loss, algorithms=algorithm, callbacks=note, seed=seed) as made:
        made.fit()
    return rows


def test_its_own_seed_takes_the_place_of_the_runs():
    assert picks(1, None) != picks(2, None)
    assert picks(1, 7) == picks(2, 7)
    assert picks(1, 7) != picks(1, 8)


def picky():
    """Return a model that draws dropout, and takes images of six pixels only."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Dropout(0.5), nn.Flatten(), nn.Linear(36, 4))


@pytest.mark.filterwarnings("ignore:Sequential can't take inputs scaled")
def test_a_run_whose_model_refuses_scaled_inputs_is_resumed_with_the_same_picks(engine_of, pruned):
    first = SelectiveBackprop(**ALWAYS)
    engine = engine_of(first, model=picky())
    pruned(engine, (IMAGES, LABELS))
    saved = first.state_dict()
    expected = [pruned(engine, (IMAGES, torch.arange(8) % 4))[0] for _ in range(6)]
    again = SelectiveBackprop(**ALWAYS)
    resumed = engine_of(again, model=picky())
    again.load_state_dict(saved)
    assert all(torch.equal(pruned(resumed, (IMAGES, LABELS))[0], rows) for rows in expected)


def test_a_function_that_scores_leaves_no_trace(engine_of, pruned):
    model = Spied()
    algorithm = SelectiveBackprop(**ALWAYS, scorer=lambda batch, state: state.model(batch[0]).sum(1))
    engine = engine_of(algorithm, model=model)
    before, generator = buffers(model), torch.get_rng_state()
    pruned(engine, (IMAGES, LABELS))
    assert all(map(torch.equal, before, buffers(model)))
    assert torch.equal(torch.get_rng_state(), generator)
    assert len(model.seen) == 1
