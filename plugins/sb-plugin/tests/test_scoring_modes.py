"""How the scoring forward runs: BatchNorm's mode, the precision, scaled inputs; and which seed draws."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Callback, State, Trainer
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
    assert all(module.training for module in model.modules())


def test_in_train_mode_statistics_are_those_of_a_forward_that_trains(engine_of: Any, pruned: Any) -> None:
    model, oracle = Spied(), Spied()
    pruned(engine_of(SelectiveBackprop(**ALWAYS, scale_factor=1, bn="train"), model=model), (IMAGES, LABELS))
    oracle(IMAGES)
    assert all(map(torch.equal, model.buffers(), oracle.buffers()))


def test_a_model_in_eval_mode_stays_there_in_all_modes(engine_of: Any, pruned: Any) -> None:
    for bn in ("frozen", "eval", "train"):
        model = Spied().eval()
        pruned(engine_of(SelectiveBackprop(**ALWAYS, scale_factor=1, bn=bn), model=model), (IMAGES, LABELS))
        assert not any(module.training for module in model.modules())


@pytest.mark.parametrize("of_run", ["fp32", "amp_bf16"])
@pytest.mark.parametrize(("precision", "dtype"), [("engine", None), ("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_precision_is_of_the_scoring_forward_alone(of_run: str, precision: str, dtype: Any) -> None:
    model = Spied()
    of_step = torch.bfloat16 if of_run == "amp_bf16" else torch.float32
    with Trainer(
        model,
        [(IMAGES, LABELS)],
        max_duration="1ba",
        loss_fn=F.cross_entropy,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        algorithms=SelectiveBackprop(**ALWAYS, scale_factor=1, precision=precision),
        precision=of_run,
        device="cpu",
    ) as trainer:
        trainer.fit()
    assert [found for _, found, _ in model.seen] == [dtype or of_step, of_step]


class FirstPixel(nn.Module):
    """Looks at one pixel, which a smaller image has not."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 0, -1, -1] * self.scale


def train_scaled(model: nn.Module, images: torch.Tensor, **settings: Any) -> list[dict[str, Any]]:
    destination = RecordingDestination()
    with Trainer(
        model,
        [(images, torch.zeros(len(images)))] * 3,
        max_duration="1ep",
        loss_fn=nn.MSELoss(),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.0),
        algorithms=SelectiveBackprop(**ALWAYS, **settings),
        loggers=[destination],
        device="cpu",
        seed=2,
    ) as trainer:
        trainer.fit()
    return [metrics for _, metrics in destination.metrics if "selective_backprop/kept" in metrics]


def test_scaled_losses_are_compared_once_with_the_true_ones() -> None:
    """A blurred image keeps the ranks of its corner, up to a few."""
    images = F.interpolate(torch.arange(16.0).view(16, 1, 1, 1), scale_factor=6)
    logged = train_scaled(FirstPixel(), images)
    assert [metrics.get("selective_backprop/rank_correlation") for metrics in logged] == [1.0, None, None]


def test_a_worthless_ranking_causes_one_warning() -> None:
    images = torch.randn(16, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    with pytest.warns(UserWarning, match=r"rank correlation 0\.\d\d.*set scale_factor=1") as caught:
        logged = train_scaled(FirstPixel(), images)
    assert len(caught) == 1
    assert logged[0]["selective_backprop/rank_correlation"] < 0.5


def test_at_full_size_nothing_is_compared() -> None:
    logged = train_scaled(FirstPixel(), torch.randn(16, 1, 6, 6), scale_factor=1)
    assert not any("selective_backprop/rank_correlation" in metrics for metrics in logged)


@pytest.mark.parametrize(
    ("others", "expected"),
    [([1.0, 2.0, 3.0], 1.0), ([3.0, 2.0, 1.0], -1.0), ([1.0, 3.0, 2.0], 0.5), ([1.0, 1.0, 2.0], 0.75**0.5)],
)
def test_the_rank_correlation_is_that_of_mid_ranks(others: list[float], expected: float) -> None:
    found = rank_correlation(torch.tensor([10.0, 20.0, 40.0]), torch.tensor(others))
    assert found == pytest.approx(expected, abs=1e-6)


def test_equal_losses_have_no_rank_correlation() -> None:
    assert math.isnan(rank_correlation(torch.ones(3), torch.arange(3.0)))


class Picks(Callback):
    def __init__(self) -> None:
        self.rows: list[Any] = []

    def before_forward(self, state: State, logger: Any) -> None:
        self.rows.append(state.batch[1].tolist())


def picks(seed: int, generator_seed: int | None, algorithms: int = 1) -> list[Any]:
    torch.manual_seed(5)
    model, seen = nn.Linear(3, 1), Picks()
    batches = [(torch.ones(8, 3), torch.arange(8.0).view(8, 1))] * 4
    made = [
        SelectiveBackprop(**ALWAYS, scale_factor=1, selector="uniform", generator_seed=generator_seed)
        for _ in range(algorithms)
    ]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings: dict[str, Any] = {"loss_fn": F.mse_loss, "optimizers": optimizer, "seed": seed, "device": "cpu"}
    with Trainer(model, batches, max_duration="1ep", algorithms=made, callbacks=seen, **settings) as trainer:
        trainer.fit()
    return seen.rows


def test_its_own_seed_takes_the_place_of_the_runs() -> None:
    assert picks(1, None) != picks(2, None)
    assert picks(1, 7) == picks(2, 7)
    assert picks(1, 7) != picks(1, 8)


class Picky(nn.Module):
    """Draws dropout, and takes images of six pixels only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(36, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.drop(x).flatten(1))
        return logits


@pytest.mark.filterwarnings("ignore:Picky can't take inputs scaled")
def test_a_run_whose_model_refuses_scaled_inputs_is_resumed_with_the_same_picks(engine_of: Any, pruned: Any) -> None:
    first = SelectiveBackprop(**ALWAYS)
    engine = engine_of(first, model=Picky())
    pruned(engine, (IMAGES, LABELS))
    saved = first.state_dict()
    expected = [pruned(engine, (IMAGES, torch.arange(8) % 4))[0] for _ in range(6)]
    again = SelectiveBackprop(**ALWAYS)
    resumed = engine_of(again, model=Picky())
    again.load_state_dict(saved)
    assert all(torch.equal(pruned(resumed, (IMAGES, LABELS))[0], rows) for rows in expected)


def test_a_resumed_run_does_not_compare_scaled_losses_again(engine_of: Any) -> None:
    algorithm = SelectiveBackprop(**ALWAYS)
    algorithm.load_state_dict({"has_compared": True, "generator": torch.Generator().get_state()})
    images = torch.randn(16, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    destination = RecordingDestination()
    model = FirstPixel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    settings: dict[str, Any] = {"loss_fn": nn.MSELoss(), "optimizers": optimizer, "max_duration": "1ep"}
    with Trainer(
        model,
        [(images, torch.zeros(16))],
        algorithms=algorithm,
        loggers=[destination],
        device="cpu",
        **settings,
    ) as trainer:
        trainer.fit()
    assert not any("selective_backprop/rank_correlation" in metrics for _, metrics in destination.metrics)


def test_a_function_that_scores_leaves_no_trace(engine_of: Any, pruned: Any) -> None:
    model = Spied()
    algorithm = SelectiveBackprop(**ALWAYS, scorer=lambda batch, state: state.model(batch[0]).sum(1))
    engine = engine_of(algorithm, model=model)
    before, generator = buffers(model), torch.get_rng_state()
    pruned(engine, (IMAGES, LABELS))
    assert all(map(torch.equal, before, buffers(model)))
    assert torch.equal(torch.get_rng_state(), generator)
    assert len(model.seen) == 1
