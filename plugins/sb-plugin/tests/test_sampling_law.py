"""Which rows are kept, against closed formulas. The oracle enumerates successive sampling without a random number."""

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sb_plugin.select import draw_rows, number_kept

DRAWS, MANY = 10_000, 20_000
TABLE = {
    0.5: (0.087, 0.249, 0.387, 0.500, 0.595, 0.671, 0.732, 0.780),
    0.25: (0.000, 0.008, 0.036, 0.101, 0.210, 0.367, 0.559, 0.719),
}


def weights(n: int, keep: float) -> list[float]:
    return [((rank + 0.5) / n) ** (1 / keep - 1) for rank in range(n)]


def exact_sets(w: Sequence[float], k: int) -> dict[frozenset[int], float]:
    """Return the probability of each set of k picks, where every pick is proportional to the weights that are left."""
    sets = {frozenset[int](): 1.0}
    for _ in range(k):
        larger: Counter[frozenset[int]] = Counter()
        for chosen, probability in sets.items():
            left = sum(w[i] for i in range(len(w)) if i not in chosen)
            for i in range(len(w)):
                if i not in chosen:
                    larger[chosen | {i}] += probability * w[i] / left
        sets = dict(larger)
    return sets


def inclusion(w: Sequence[float], k: int) -> list[float]:
    return [sum(p for chosen, p in exact_sets(w, k).items() if i in chosen) for i in range(len(w))]


@cache
def drawn_sets(scores: tuple[float, ...], k: int, keep: float, draws: int = DRAWS) -> Counter[frozenset[int]]:
    generator, tensor = torch.Generator().manual_seed(7), torch.tensor(scores)
    return Counter(frozenset(draw_rows(tensor, k, keep, generator).tolist()) for _ in range(draws))


def drawn_inclusion(scores: tuple[float, ...], k: int, keep: float, draws: int = DRAWS) -> list[float]:
    sets = drawn_sets(scores, k, keep, draws)
    return [sum(count for chosen, count in sets.items() if i in chosen) / draws for i in range(len(scores))]


def p_value(observed: Sequence[float], expected: Sequence[float]) -> float:
    """Return the chance of a chi-square this large; cells that expect less than 5 are taken together."""
    cells = sorted(zip(expected, observed, strict=True))
    rare = [cell for cell in cells if cell[0] < 5]
    cells = cells[len(rare) :] + ([tuple(map(sum, zip(*rare, strict=True)))] if rare else [])
    statistic = sum((seen - hoped) ** 2 / hoped for hoped, seen in cells)
    return torch.special.gammaincc(torch.tensor((len(cells) - 1) / 2.0), torch.tensor(statistic / 2.0)).item()


ASCENDING = tuple(float(i) for i in range(8))


@pytest.mark.parametrize("keep", [0.5, 0.25])
def test_the_oracle_gives_the_published_table(keep: float) -> None:
    """The table was drawn, so it is a few thousandths off the exact values."""
    assert inclusion(weights(8, keep), int(8 * keep)) == pytest.approx(TABLE[keep], abs=0.005)


@pytest.mark.full
@pytest.mark.parametrize("keep", [0.5, 0.25])
def test_each_rank_is_kept_as_often_as_the_table_says(keep: float) -> None:
    assert drawn_inclusion(ASCENDING, int(8 * keep), keep, MANY) == pytest.approx(TABLE[keep], abs=0.015)


@pytest.mark.full
@pytest.mark.parametrize("keep", [0.5, 0.25, 0.75])
def test_sets_of_rows_follow_successive_sampling(keep: float) -> None:
    k = int(8 * keep)
    expected = exact_sets(weights(8, keep), k)
    seen = drawn_sets(ASCENDING, k, keep)
    assert p_value([seen[s] for s in expected], [DRAWS * p for p in expected.values()]) > 1e-4


@pytest.mark.parametrize("keep", [0.5, 0.2])
def test_a_single_pick_follows_the_weights(keep: float) -> None:
    w = weights(5, keep)
    seen = drawn_sets((0.0, 1.0, 2.0, 3.0, 4.0), 1, keep)
    assert p_value([seen[frozenset({i})] for i in range(5)], [DRAWS * x / sum(w) for x in w]) > 1e-4


def test_ranks_count_and_places_do_not() -> None:
    places = (3, 6, 0, 7, 1, 5, 2, 4)
    shuffled = drawn_inclusion(tuple(float(place) for place in places), 4, 0.5)
    assert shuffled == pytest.approx([TABLE[0.5][place] for place in places], abs=0.02)


def test_equal_losses_are_chosen_uniformly() -> None:
    sets = drawn_sets((1.0,) * 8, 4, 0.5)
    assert p_value([sets[s] for s in exact_sets([1.0] * 8, 4)], [DRAWS / 70] * 70) > 1e-4


def test_tied_rows_share_the_chances_of_their_ranks() -> None:
    """Two easy rows, four tied ones, two hard ones."""
    expected = [*TABLE[0.5][:2], *[sum(TABLE[0.5][2:6]) / 4] * 4, *TABLE[0.5][6:]]
    assert drawn_inclusion((0.0, 1.0, 2.0, 2.0, 2.0, 2.0, 3.0, 4.0), 4, 0.5) == pytest.approx(expected, abs=0.02)


def test_finite_rows_are_drawn_as_if_the_others_were_not_there() -> None:
    scores = (0.0, math.nan, 1.0, math.inf, 2.0, -math.inf, 3.0, math.nan)
    expected = inclusion(weights(4, 0.5), 2)
    seen = drawn_inclusion(scores, 2, 0.5)
    assert seen[0::2] == pytest.approx(expected, abs=0.02)
    assert seen[1::2] == [0, 0, 0, 0]


def test_where_finite_rows_run_out_others_fill_up_at_random() -> None:
    seen = drawn_inclusion((math.nan, 1.0, math.inf, 2.0, -math.inf, math.nan), 4, 0.5)
    assert [seen[1], seen[3]] == [1, 1]
    assert [seen[i] for i in (0, 2, 4, 5)] == pytest.approx([0.5] * 4, abs=0.02)


@pytest.mark.parametrize(
    ("n", "keep", "k"),
    [(100, 0.29, 29), (100, 0.57, 57), (2, 0.1, 1), (1, 0.5, 1), (8, 1, 8), (9, 0.5, 4), (0, 0.5, 0)],
)
def test_the_number_kept_is_rounded_down_but_never_to_none(n: int, keep: float, k: int) -> None:
    assert number_kept(n, keep) == k


@settings(deadline=None)
@given(n=st.integers(1, 2000), percent=st.integers(1, 100))
def test_the_number_kept_is_exact_for_every_percentage(n: int, percent: int) -> None:
    assert number_kept(n, percent / 100) == max(1, math.floor(Fraction(percent, 100) * n))


losses = st.lists(st.integers(-(10**6), 10**6).map(lambda thousandths: thousandths / 1000), min_size=2, max_size=40)


@settings(deadline=None)
@given(scores=losses, power=st.integers(-6, 6), seed=st.integers(0, 2**31), keep=st.floats(0.05, 0.95))
def test_scaling_the_losses_changes_nothing(scores: list[float], power: int, seed: int, keep: float) -> None:
    """By powers of two, which are exact."""
    k = number_kept(len(scores), keep)
    once, twice = (
        draw_rows(torch.tensor(scores) * factor, k, keep, torch.Generator().manual_seed(seed))
        for factor in (1.0, 2.0**power)
    )
    assert once.tolist() == twice.tolist()


@settings(deadline=None)
@given(
    scores=st.lists(st.integers(-500, 500), min_size=2, max_size=40), shift=st.integers(0, 500), seed=st.integers(0, 99)
)
def test_shifting_the_losses_changes_nothing(scores: list[int], shift: int, seed: int) -> None:
    """By whole numbers, which are exact."""
    once, twice = (
        draw_rows(torch.tensor(scores).float() + by, 1 + len(scores) // 2, 0.5, torch.Generator().manual_seed(seed))
        for by in (0, shift)
    )
    assert once.tolist() == twice.tolist()


@settings(deadline=None)
@given(
    scores=st.lists(st.floats(width=32), min_size=1, max_size=40), keep=st.floats(0.001, 1), seed=st.integers(0, 2**31)
)
def test_rows_are_k_different_places_in_order(scores: list[float], keep: float, seed: int) -> None:
    k = number_kept(len(scores), keep)
    rows = draw_rows(torch.tensor(scores), k, keep, torch.Generator().manual_seed(seed)).tolist()
    assert rows == sorted(set(rows))
    assert len(rows) == k
    assert set(rows) <= set(range(len(scores)))


def test_a_tiny_keep_takes_the_hardest_rows() -> None:
    """Their weights are too small for any float: (r + 0.5) ** 9999."""
    assert draw_rows(torch.arange(64.0), 3, 1e-4, torch.Generator()).tolist() == [61, 62, 63]
