"""How often each row is kept, by draws against closed formulas. The oracles use no random number."""

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch

from sb_plugin.select import draw_rows

DRAWS, FEW = 20_000, 4_000
KEEPS = [0.25, 0.5, 0.75]
TABLE = {
    0.5: (0.087, 0.249, 0.387, 0.500, 0.595, 0.671, 0.732, 0.780),
    0.25: (0.000, 0.008, 0.036, 0.101, 0.210, 0.367, 0.559, 0.719),
}


def weights(n: int, keep: float, floor: float = 0.0) -> np.ndarray:
    w = ((np.arange(n) + 0.5) / n) ** (1 / keep - 1)
    return (1 - floor) * w / w.sum() + floor / n


@cache
def successive_sets(n: int, k: int, keep: float, floor: float = 0.0) -> dict[frozenset[int], float]:
    """Return the probability of each set of k picks, where every pick is proportional to the weights that are left."""
    w = weights(n, keep, floor).tolist()
    sets = {frozenset[int](): 1.0}
    for _ in range(k):
        larger: Counter[frozenset[int]] = Counter()
        for chosen, probability in sets.items():
            left = [i for i in range(n) if i not in chosen]
            total = sum(w[i] for i in left)
            for i in left:
                larger[chosen | {i}] += probability * w[i] / total
        sets = dict(larger)
    return sets


def inclusion_of(sets: dict[frozenset[int], float], n: int) -> np.ndarray:
    return np.array([sum(p for chosen, p in sets.items() if i in chosen) for i in range(n)])


def cdf_inclusion(n: int, k: int, keep: float, floor: float = 0.0) -> np.ndarray:
    """Return min(1, c * w) with the c that bisection finds for a sum of k."""
    w = weights(n, keep, floor)
    low, high = 0.0, n / w.min()
    for _ in range(200):
        c = (low + high) / 2
        low, high = (c, high) if np.minimum(1, c * w).sum() < k else (low, c)
    return np.minimum(1, high * w)


def systematic_sets(inclusion: Sequence[float]) -> Counter[frozenset[int]]:
    """Return the probability of each set that a point of [0, 1) and those at distance 1 hit, rank by rank."""
    sums = np.cumsum(inclusion)
    k = round(sums[-1])
    ends = np.unique(np.concatenate([[0.0], sums % 1, [1.0]]))
    sets: Counter[frozenset[int]] = Counter()
    for low, high in pairwise(ends):
        if high - low > 1e-9:
            points = (low + high) / 2 + np.arange(k)
            sets[frozenset(np.searchsorted(sums, points).tolist())] += high - low
    return sets


@cache
def drawn(n: int, k: int, keep: float, selector: str, floor: float = 0.0) -> torch.Tensor:
    """Return the ranks of the rows kept (draws, k); ranks and places differ."""
    ranks = torch.randperm(n, generator=torch.Generator().manual_seed(n))
    generator, scores = torch.Generator().manual_seed(5), ranks.float()
    draws = DRAWS if selector == "composer" and n == 8 and k > 1 else FEW
    rows = [draw_rows(scores, k, keep, generator, selector, floor) for _ in range(draws)]
    return ranks[torch.stack(rows)]


def drawn_counts(n: int, k: int, keep: float, selector: str, floor: float = 0.0) -> np.ndarray:
    return drawn(n, k, keep, selector, floor).flatten().bincount(minlength=n).numpy()


def drawn_sets(n: int, k: int, keep: float, selector: str, floor: float = 0.0) -> Counter[frozenset[int]]:
    return Counter(map(frozenset, drawn(n, k, keep, selector, floor).tolist()))


def assert_each_rank_is_kept(counts: np.ndarray, inclusion: np.ndarray) -> None:
    """|z| < 5: less than one in 10,000 goes beyond it among 100 ranks; a rank that is sure is kept each time."""
    draws = counts.sum() / round(inclusion.sum())
    deviation = np.sqrt(np.maximum(draws * inclusion * (1 - inclusion), 1))
    assert np.abs((counts - draws * inclusion) / deviation).max() < 5
    assert (counts[inclusion == 1] == draws).all()


def p_value(seen: Counter[frozenset[int]], sets: dict[frozenset[int], float]) -> float:
    """Return the chance of a chi-square this large; cells that expect less than 5 are taken together."""
    assert seen.keys() <= sets.keys()
    cells = sorted((seen.total() * p, seen[chosen]) for chosen, p in sets.items())
    rare = [cell for cell in cells if cell[0] < 5]
    pooled = [(sum(cell[0] for cell in rare), sum(cell[1] for cell in rare))] if rare else []
    cells = cells[len(rare) :] + pooled
    statistic = sum((count - expected) ** 2 / expected for expected, count in cells)
    return torch.special.gammaincc(torch.tensor((len(cells) - 1) / 2.0), torch.tensor(statistic / 2.0)).item()


@pytest.mark.parametrize("keep", [0.5, 0.25])
def test_the_oracle_gives_the_published_table(keep: float) -> None:
    """The table was drawn, so it is a few thousandths off the exact values."""
    assert inclusion_of(successive_sets(8, int(8 * keep), keep), 8) == pytest.approx(TABLE[keep], abs=0.005)


def kept_shares(*scores: float) -> list[float]:
    """Return how often each row of a batch is among the four that are kept."""
    generator, losses = torch.Generator().manual_seed(7), torch.tensor(scores)
    rows = torch.cat([draw_rows(losses, 4, 0.5, generator) for _ in range(FEW)])
    return (rows.bincount(minlength=len(scores)) / FEW).tolist()


def test_tied_rows_share_the_chances_of_their_ranks() -> None:
    """Two easy rows, four tied ones, two hard ones."""
    expected = [*TABLE[0.5][:2], *[sum(TABLE[0.5][2:6]) / 4] * 4, *TABLE[0.5][6:]]
    assert kept_shares(0, 1, 2, 2, 2, 2, 3, 4) == pytest.approx(expected, abs=0.02)


def test_where_finite_rows_run_out_others_fill_up_at_random() -> None:
    seen = kept_shares(math.nan, 1, math.inf, 2, -math.inf, math.nan)
    assert [seen[1], seen[3]] == [1, 1]
    assert [seen[i] for i in (0, 2, 4, 5)] == pytest.approx([0.5] * 4, abs=0.02)


@pytest.mark.parametrize(("selector", "expected"), [("composer", 0.793), ("cdf", 0.984)])
def test_the_hardest_of_32_rows_is_kept_more_often_by_the_papers_law(selector: str, expected: float) -> None:
    counts = drawn_counts(32, 16, 0.5, selector)
    assert counts[-1] / (counts.sum() / 16) == pytest.approx(expected, abs=0.015)


@pytest.mark.parametrize("keep", KEEPS)
def test_composer_draws_sets_as_successive_sampling(keep: float) -> None:
    k = int(8 * keep)
    assert p_value(drawn_sets(8, k, keep, "composer"), successive_sets(8, k, keep)) > 1e-4


@pytest.mark.parametrize(("n", "keep"), [*((8, keep) for keep in KEEPS), (65, 0.25)])
def test_cdf_draws_the_sets_of_a_systematic_sample_and_each_rank_as_often_as_the_paper(n: int, keep: float) -> None:
    k = int(n * keep)
    exact = cdf_inclusion(n, k, keep)
    assert_each_rank_is_kept(drawn_counts(n, k, keep, "cdf"), exact)
    assert p_value(drawn_sets(n, k, keep, "cdf"), systematic_sets(exact.tolist())) > 1e-4


@pytest.mark.parametrize("selector", ["composer", "cdf"])
def test_a_single_pick_follows_the_weights(selector: str) -> None:
    expected = {frozenset({rank}): w for rank, w in enumerate(weights(8, 0.3))}
    assert p_value(drawn_sets(8, 1, 0.3, selector), expected) > 1e-4


def test_composers_floor_bounds_the_chance_of_every_row() -> None:
    floor = 0.7
    exact = inclusion_of(successive_sets(10, 3, 0.25, floor), 10)
    assert exact.min() > 1 - (1 - floor / 10) ** 3
    assert_each_rank_is_kept(drawn_counts(10, 3, 0.25, "composer", floor), exact)


@pytest.mark.parametrize("selector", ["cdf", "topk"])
def test_the_floor_of_a_systematic_sample_bounds_the_chance_of_every_row(selector: str) -> None:
    mixed = 0.7 * (np.arange(10) >= 7) + 0.3 * 3 / 10
    exact = cdf_inclusion(10, 3, 0.25, 0.3) if selector == "cdf" else mixed
    assert exact.min() >= 0.3 * 3 / 10
    assert_each_rank_is_kept(drawn_counts(10, 3, 0.25, selector, 0.3), exact)
    assert p_value(drawn_sets(10, 3, 0.25, selector, 0.3), systematic_sets(exact.tolist())) > 1e-4


@pytest.mark.parametrize(
    ("selector", "floor"), [("composer", 0.0), ("composer", 0.3), ("cdf", 0.0), ("topk", 0.0), ("uniform", 0.0)]
)
def test_equal_losses_make_every_law_uniform(selector: str, floor: float) -> None:
    generator, tied = torch.Generator().manual_seed(2), torch.full((6,), 2.5)
    rows = [draw_rows(tied, 3, 0.5, generator, selector, floor) for _ in range(FEW)]
    each = {frozenset(chosen): 1 / 20 for chosen in torch.combinations(torch.arange(6), 3).tolist()}
    assert p_value(Counter(frozenset(chosen.tolist()) for chosen in rows), each) > 1e-4


@pytest.mark.parametrize("selector", ["composer", "cdf", "topk"])
def test_a_floor_is_shared_by_the_finite_rows_alone(selector: str) -> None:
    scores = torch.tensor([0.0, math.nan, 1.0, math.inf, 2.0, -math.inf, 3.0, math.nan])
    generator = torch.Generator().manual_seed(3)
    rows = torch.cat([draw_rows(scores, 2, 0.5, generator, selector, 0.5) for _ in range(FEW)])
    exact = {
        "composer": inclusion_of(successive_sets(4, 2, 0.5, 0.5), 4),
        "cdf": cdf_inclusion(4, 2, 0.5, 0.5),
        "topk": np.array([0.25, 0.25, 0.75, 0.75]),
    }[selector]
    counts = rows.bincount(minlength=8).numpy()
    assert_each_rank_is_kept(counts[0::2], exact)
    assert counts[1::2].tolist() == [0, 0, 0, 0]
