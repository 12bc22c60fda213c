"""MixUp as a function: the paper's formula, the law of lambda, and what it leaves alone."""

import math

import pytest
import torch
from augmentation_parts import seeded
from scipy import stats

from augmentation_plugin import mixup_batch
from augmentation_plugin.pairings import draw
from engine_core.errors import ArgumentError, ArgumentTypeError


@pytest.mark.parametrize("shape", [(7,), (7, 2, 5, 4)])
def test_each_row_is_lambda_of_itself_and_the_rest_of_its_partner(shape: tuple[int, ...]) -> None:
    rows = torch.randn(shape, dtype=torch.double)
    mixed, partner, lam = mixup_batch(rows, torch.arange(7), alpha=1.0, generator=seeded())
    for i in range(7):
        torch.testing.assert_close(mixed[i], lam * rows[i] + (1 - lam) * rows[partner[i]], rtol=1e-12, atol=1e-12)


def test_each_pairing_of_three_rows_is_as_likely() -> None:
    generator = seeded()
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(1200):
        order = tuple(draw(0.2, generator).pairing(3).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    assert stats.chisquare(list(counts.values())).pvalue > 0.001


@pytest.mark.parametrize("alpha", [0.2, 8.0])
def test_lambda_is_drawn_from_beta_of_alpha_and_alpha(alpha: float) -> None:
    generator = seeded(5)
    drawn = [draw(alpha, generator).lam for _ in range(4000)]
    assert stats.kstest(drawn, stats.beta(alpha, alpha).cdf).pvalue > 0.001


def test_a_tiny_alpha_gives_zero_and_one_alike() -> None:
    generator = seeded(5)
    drawn = torch.tensor([draw(1e-4, generator).lam for _ in range(2000)])
    assert ((drawn < 0.01) | (drawn > 0.99)).all()
    assert stats.binomtest(int((drawn > 0.5).sum()), 2000).pvalue > 0.001


def test_lambda_pairing_and_place_are_independent() -> None:
    generator = seeded(6)
    draws = [draw(1.0, generator) for _ in range(3000)]
    rows = torch.tensor([[d.lam, *d.place, float(d.pairing(16)[0])] for d in draws]).T
    off_diagonal = torch.corrcoef(rows)[~torch.eye(4, dtype=torch.bool)]
    assert off_diagonal.abs().max() < 4 / math.sqrt(3000)


def test_without_a_generator_draws_differ_and_no_global_one_is_touched() -> None:
    before = torch.get_rng_state()
    lambdas = {mixup_batch(torch.zeros(2), torch.zeros(2), alpha=1.0).lam for _ in range(5)}
    assert len(lambdas) == 5
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64])
def test_dtype_and_memory_format_stay(dtype: torch.dtype) -> None:
    images = torch.randn(4, 3, 5, 5).to(dtype).contiguous(memory_format=torch.channels_last)
    before = images.clone()
    mixed = mixup_batch(images, torch.arange(4), generator=seeded()).input
    assert mixed.dtype is dtype
    assert mixed.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, before)


def test_a_row_alone_is_mixed_with_itself() -> None:
    row = torch.randn(1, 3)
    mixed, paired, _ = mixup_batch(row, torch.tensor([2]), alpha=1.0, generator=seeded())
    assert torch.equal(mixed, row)
    assert paired.tolist() == [2]


def test_targets_in_containers_are_paired_alike() -> None:
    target = {"a": torch.arange(6), "b": (torch.arange(6) * 10, list("abcdef"))}
    paired = mixup_batch(torch.zeros(6), target, generator=seeded()).paired_target
    assert torch.equal(paired["a"] * 10, paired["b"][0])
    assert paired["b"][1] == ["abcdef"[i] for i in paired["a"]]


@pytest.mark.parametrize(
    ("rows", "alpha", "error", "words"),
    [
        (torch.zeros(4, dtype=torch.long), 0.2, ArgumentError, "int64.*tokens"),
        (torch.zeros(4, dtype=torch.uint8), 0.2, ArgumentError, "uint8.*floats first"),
        (torch.tensor(1.0), 0.2, ArgumentError, "one number"),
        ([1.0, 2.0], 0.2, ArgumentTypeError, "a list"),
        (torch.zeros(4), 0, ArgumentError, "alpha=0 has to be within"),
        (torch.zeros(4), "a", ArgumentTypeError, "alpha='a'"),
    ],
)
def test_what_cannot_be_blended_is_refused(rows: object, alpha: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        mixup_batch(rows, None, alpha)  # type: ignore[arg-type]


def test_there_has_to_be_a_target_for_each_row_or_none_at_all() -> None:
    with pytest.raises(ArgumentError, match="4 rows and the targets 3"):
        mixup_batch(torch.zeros(4), torch.zeros(3))
    assert mixup_batch(torch.zeros(4), None).paired_target is None
