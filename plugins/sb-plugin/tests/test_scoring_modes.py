"""How the scoring forward runs: BatchNorm's mode, the precision, scaled inputs; and which seed draws."""

import math
from typing import Any

import pytest
import torch
from parts import at, trainer
from torch import nn
from torch.nn import functional as F

from engine_core_author import RecordingDestination
from sb_plugin import SelectiveBackprop
from sb_plugin.scoring import rank_correlation

ALWAYS: dict[str, Any] = {"start": 0, "end": 1, "interrupt": 0}
IMAGES = torch.randn(8, 1, 6, 6, generator=torch.Generator().manual_seed(2))
LABELS = torch.arange(8) % 4


class Spied(nn.Module):
    """Records what each of its forwards was like."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.norm, self.drop = nn.BatchNorm2d(1), nn.Dropout(0.5)
        self.head = nn.Linear(1, 4)
        self.norm.running_mean.fill_(0.3)  # type: ignore[union-attr]
        self.seen: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(self.norm(x))
        logits: torch.Tensor = self.head(hidden.mean((2, 3)))
        self.seen.append((self.training, logits.dtype, x.shape[2]))
        return logits


def buffers(model: nn.Module) -> list[torch.Tensor]:
    return [buffer.clone() for buffer in model.buffers()]


@pytest.mark.parametrize(("bn", "training", "moves"), [("frozen", True, 0), ("eval", False, 0), ("train", True, 3)])
def test_batch_norm_is_frozen_or_in_eval_mode_or_records(
    engine_of: Any, pruned: Any, bn: str, training: bool, moves: int
) -> None:
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


def test_a_model_in_eval_mode_stays_there_in_all_modes(engine_of: Any, pruned: Any) -> None:
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
def test_the_precision_is_of_the_scoring_forward_alone(of_run: str, precision: str, dtype: Any) -> None:
    model, algorithm = Spied(), SelectiveBackprop(**ALWAYS, scale_factor=1, precision=precision)
    with trainer([(IMAGES, LABELS)], model, algorithms=algorithm, precision=of_run) as made:
        made.fit()
    of_step = torch.bfloat16 if of_run == "amp_bf16" else torch.float32
    assert [found for _, found, _ in model.seen] == [dtype, of_step]


class FirstPixel(nn.Module):
    """Looks at one pixel, which a smaller image has not."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 0, -1, -1] * self.scale


def train_scaled(images: torch.Tensor, algorithm: SelectiveBackprop | None = None, **settings: Any) -> list[Any]:
    """Return the rank correlation that each step logs, if it does."""
    destination, data = RecordingDestination(), [(images, torch.zeros(len(images)))] * 3
    given = {"algorithms": algorithm or SelectiveBackprop(**ALWAYS, **settings), "loggers": destination, "seed": 2}
    with trainer(data, FirstPixel(), loss_fn=nn.MSELoss(), **given) as made:
        made.fit()
    steps = [metrics for _, metrics in destination.metrics if "selective_backprop/kept" in metrics]
    return [metrics.get("selective_backprop/rank_correlation") for metrics in steps]


def test_scaled_losses_are_compared_once_with_the_true_ones() -> None:
    """A blurred image keeps the ranks of its corner, up to a few."""
    images = F.interpolate(torch.arange(16.0).view(16, 1, 1, 1), scale_factor=6)
    assert train_scaled(images) == [1.0, None, None]


def test_a_worthless_ranking_causes_one_warning_and_none_in_a_resumed_run_or_at_full_size() -> None:
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
def test_the_rank_correlation_is_that_of_mid_ranks(others: list[float], expected: float) -> None:
    found = rank_correlation(torch.tensor([10.0, 20.0, 40.0]), torch.tensor(others))
    assert found == pytest.approx(expected, abs=1e-6, nan_ok=True)


def picks(seed: int, generator_seed: int | None) -> list[Any]:
    rows: list[Any] = []
    batches = [(torch.ones(8, 3), torch.arange(8.0).view(8, 1))] * 4
    algorithm = SelectiveBackprop(**ALWAYS, scale_factor=1, selector="uniform", generator_seed=generator_seed)
    note = at("before_forward", lambda state: rows.append(state.batch[1].tolist()))
    with trainer(batches, nn.Linear(3, 1), loss_fn=F.mse_loss, algorithms=algorithm, callbacks=note, seed=seed) as made:
        made.fit()
    return rows


def test_its_own_seed_takes_the_place_of_the_runs() -> None:
    assert picks(1, None) != picks(2, None)
    assert picks(1, 7) == picks(2, 7)
    assert picks(1, 7) != picks(1, 8)


def picky() -> nn.Module:
    """Return a model that draws dropout, and takes images of six pixels only."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Dropout(0.5), nn.Flatten(), nn.Linear(36, 4))


@pytest.mark.filterwarnings("ignore:Sequential can't take inputs scaled")
def test_a_run_whose_model_refuses_scaled_inputs_is_resumed_with_the_same_picks(engine_of: Any, pruned: Any) -> None:
    first = SelectiveBackprop(**ALWAYS)
    engine = engine_of(first, model=picky())
    pruned(engine, (IMAGES, LABELS))
    saved = first.state_dict()
    expected = [pruned(engine, (IMAGES, torch.arange(8) % 4))[0] for _ in range(6)]
    again = SelectiveBackprop(**ALWAYS)
    resumed = engine_of(again, model=picky())
    again.load_state_dict(saved)
    assert all(torch.equal(pruned(resumed, (IMAGES, LABELS))[0], rows) for rows in expected)


def test_a_function_that_scores_leaves_no_trace(engine_of: Any, pruned: Any) -> None:
    model = Spied()
    algorithm = SelectiveBackprop(**ALWAYS, scorer=lambda batch, state: state.model(batch[0]).sum(1))
    engine = engine_of(algorithm, model=model)
    before, generator = buffers(model), torch.get_rng_state()
    pruned(engine, (IMAGES, LABELS))
    assert all(map(torch.equal, before, buffers(model)))
    assert torch.equal(torch.get_rng_state(), generator)
    assert len(model.seen) == 1
