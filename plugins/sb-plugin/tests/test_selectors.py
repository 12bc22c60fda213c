"""What holds for every draw of every selector, and what a custom selector may be."""

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sb_plugin.arguments import SELECTORS
from sb_plugin.laws import ONE, inclusion, ticks
from sb_plugin.select import draw_rows, draw_with, number_kept

LAWS = ("composer", "cdf", "topk")
CPU = torch.device("cpu")

seeds = st.integers(0, 2**31)
keeps = st.floats(0.001, 1) | st.sampled_from([1e-320, 1e-40, 1e-6, 0.25, 0.5, 0.999999, 1 - 2**-53])
floors = st.just(0.0) | st.floats(0, 1, exclude_max=True) | st.sampled_from([1e-320, 1 - 2**-53])


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn_by_hand(scores: torch.Tensor, k: int, keep: float, generator: torch.Generator) -> list[int]:
    """Draw by the default law: from a permutation, which ranks equal scores, and then a number for each rank."""
    n = len(scores)
    rows = torch.randperm(n, generator=generator)
    noise = torch.empty(n).exponential_(generator=generator).double()
    ranked = rows[scores.where(scores.isfinite(), torch.tensor(math.inf))[rows].sort().indices].tolist()
    keys = {
        row: (1 / keep - 1) * math.log((rank + 0.5) / n) - math.log(noise[rank])
        if scores[row].isfinite()
        else -math.inf
        for rank, row in enumerate(ranked)
    }
    return sorted(sorted(ranked, key=keys.__getitem__)[-k:])


def test_the_default_law_draws_the_rows_it_has_always_drawn() -> None:
    scores = (torch.arange(32) * 7 % 32).float()
    scores[5], scores[9], scores[20] = math.nan, math.inf, scores[21]
    few = torch.tensor([math.nan, 1, math.inf, 2])
    generator, by_hand = seeded(11), seeded(11)
    for drawn, k, keep in [(scores, 16, 0.5), (scores, 8, 0.25), (scores, 24, 0.75), (few, 2, 0.75)] * 20:
        assert draw_rows(drawn, k, keep, generator).tolist() == drawn_by_hand(drawn, k, keep, by_hand)
    assert {1, 3} < set(draw_rows(few, 3, 0.75, generator).tolist())


@settings(deadline=None, max_examples=100)
@given(
    scores=st.lists(st.floats(width=32), min_size=1, max_size=40),
    selector=st.sampled_from(SELECTORS),
    keep=keeps,
    floor=floors,
    share=st.floats(0, 1),
    seed=seeds,
)
def test_rows_are_k_different_places_in_order_and_finite_ones_come_first(
    scores: list[float], selector: str, keep: float, floor: float, share: float, seed: int
) -> None:
    k = max(1, round(share * len(scores)))
    rows = draw_rows(torch.tensor(scores), k, keep, seeded(seed), selector, floor).tolist()
    assert rows == sorted(set(rows))
    assert len(rows) == k
    assert set(rows) <= set(range(len(scores)))
    if selector != "uniform":
        assert sum(math.isfinite(scores[row]) for row in rows) == min(k, sum(map(math.isfinite, scores)))


@settings(deadline=None)
@given(
    scores=st.lists(st.integers(-500, 500), min_size=2, max_size=40),
    selector=st.sampled_from(LAWS),
    floor=floors,
    power=st.integers(-6, 6),
    shift=st.integers(0, 500),
    seed=seeds,
)
def test_scaling_and_shifting_the_losses_changes_nothing(
    scores: list[int], selector: str, floor: float, power: int, shift: int, seed: int
) -> None:
    """By powers of two and whole numbers, which are exact."""
    given = torch.tensor(scores).float()
    once, scaled, shifted = (
        draw_rows(losses, 1 + len(scores) // 3, 0.4, seeded(seed), selector, floor).tolist()
        for losses in (given, given * 2.0**power, given + shift)
    )
    assert once == scaled == shifted


@settings(deadline=None)
@given(scores=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, unique=True), seed=seeds, data=st.data())
def test_topk_takes_the_hardest_rows(scores: list[float], seed: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(scores)))
    hardest = sorted(range(len(scores)), key=lambda row: scores[row])[-k:]
    assert draw_rows(torch.tensor(scores), k, 0.5, seeded(seed), "topk").tolist() == sorted(hardest)


@pytest.mark.parametrize("selector", ["composer", "cdf"])
def test_a_tiny_keep_takes_the_hardest_rows_also_beside_others_that_are_not_finite(selector: str) -> None:
    """Their weights are too small for any float: (r + 0.5) ** 1e300."""
    scores = torch.cat([torch.arange(64.0), torch.full((8,), math.nan)])
    assert draw_rows(scores, 3, 1e-300, seeded(0), selector).tolist() == [61, 62, 63]


@settings(deadline=None, max_examples=100)
@given(m=st.integers(1, 5000), share=st.floats(0, 1), keep=keeps, floor=floors, law=st.sampled_from(["cdf", "topk"]))
@example(m=5000, share=0.9998, keep=0.999, floor=0.5, law="cdf")
@example(m=4654, share=4304 / 4654, keep=0.85, floor=0.0, law="cdf")  # rounding gives one rank more than 1
def test_chances_add_up_to_k_rows_none_of_which_can_be_drawn_twice(
    m: int, share: float, keep: float, floor: float, law: str
) -> None:
    k = max(1, round(share * m))
    chances = inclusion(m, k, keep, floor, law)
    sums, firsts = ticks(m, k, keep, floor, law, CPU)
    steps = sums.diff(prepend=torch.zeros(1, dtype=torch.long))
    assert (sums[-1], firsts.tolist()) == (k * ONE, [i * ONE for i in range(k)])
    assert 0 <= steps.min() <= steps.max() <= ONE
    assert torch.allclose(steps.double() / ONE, chances, rtol=0, atol=1e-8)
    assert chances.min() >= floor * k / m - 1e-12


@settings(deadline=None)
@given(n=st.integers(1, 2000), percent=st.integers(1, 100))
@example(n=100, percent=29)
@example(n=100, percent=57)
def test_the_number_kept_is_exact_for_every_percentage(n: int, percent: int) -> None:
    assert number_kept(n, percent / 100) == max(1, math.floor(Fraction(percent, 100) * n))


@pytest.mark.parametrize(
    ("n", "keep", "multiple_of", "k"),
    [
        (0, 0.5, 1, 0),
        (100, 0.5, 8, 48),
        (100, 0.29, 29, 29),
        (10, 0.5, 8, 1),
        (100, 1, 8, 100),
    ],
)
def test_the_number_kept_is_rounded_down_to_a_multiple(n: int, keep: float, multiple_of: int, k: int) -> None:
    """But never to none, and not where all are kept."""
    assert number_kept(n, keep, multiple_of) == k


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_a_custom_selector_decides_and_its_rows_come_in_order(dtype: torch.dtype) -> None:
    chosen = torch.tensor([4, 0, 2], dtype=dtype)
    rows = draw_rows(torch.rand(5), 3, 0.6, seeded(0), lambda scores, k, generator: chosen)
    assert (rows.tolist(), rows.dtype) == ([0, 2, 4], torch.long)


def test_a_custom_selector_gets_scores_that_it_may_change() -> None:
    scores, generator, seen = torch.tensor([3.0, 1.0, 2.0], requires_grad=True), seeded(0), []

    def lowest(given: torch.Tensor, k: int, own: torch.Generator) -> torch.Tensor:
        seen.append((given.tolist(), k, own))
        return given.mul_(-1).topk(k).indices

    assert draw_rows(scores, 2, 0.7, generator, lowest).tolist() == [1, 2]
    assert seen == [([3.0, 1.0, 2.0], 2, generator)]
    assert scores.tolist() == [3.0, 1.0, 2.0]


REMEDY = r"return the positions of 2 rows, as scores\.topk\(k\)\.indices does"


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (None, TypeError, rf"the selector .*hardest returned None \(NoneType\), which is not a tensor: {REMEDY}"),
        (torch.tensor([True, False, True]), TypeError, rf"a tensor of torch\.bool, not of whole numbers: {REMEDY}"),
        (torch.tensor([0]), ValueError, rf"a tensor of shape \(1,\), not \(2,\): {REMEDY}"),
        (torch.tensor([0, 3]), ValueError, rf"the position 3, but there are only 0 to 2: {REMEDY}"),
        (torch.tensor([-1, 1]), ValueError, "the position -1, but there are only 0 to 2"),
        (torch.tensor([1, 1]), ValueError, "the position 1 more than once: return 2 diff"),
    ],
)
def test_the_error_of_a_custom_selector_says_what_is_wrong(returned: Any, error: type[Exception], message: str) -> None:
    def hardest(scores: torch.Tensor, k: int, generator: torch.Generator) -> Any:
        return returned

    with pytest.raises(error, match=message):
        draw_with(hardest, torch.rand(3), 2, seeded(0))
