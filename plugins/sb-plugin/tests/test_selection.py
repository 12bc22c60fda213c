"""What holds for every draw of every selector, and how often each row is kept, by draws against closed formulas."""

import math
from collections import Counter
from fractions import Fraction
from functools import cache
from itertools import pairwise

import numpy as np
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


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def drawn_by_hand(scores, k, keep, generator):
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


def test_the_default_law_draws_the_rows_it_has_always_drawn():
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
def test_rows_are_k_different_places_in_order_and_finite_ones_come_first(scores, selector, keep, floor, share, seed):
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
def test_scaling_and_shifting_the_losses_changes_nothing(scores, selector, floor, power, shift, seed):
    """By powers of two and whole numbers, which are exact."""
    given = torch.tensor(scores).float()
    once, scaled, shifted = (
        draw_rows(losses, 1 + len(scores) // 3, 0.4, seeded(seed), selector, floor).tolist()
        for losses in (given, given * 2.0**power, given + shift)
    )
    assert once == scaled == shifted


@settings(deadline=None)
@given(scores=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, unique=True), seed=seeds, data=st.data())
def test_topk_takes_the_hardest_rows(scores, seed, data):
    k = data.draw(st.integers(1, len(scores)))
    hardest = sorted(range(len(scores)), key=lambda row: scores[row])[-k:]
    assert draw_rows(torch.tensor(scores), k, 0.5, seeded(seed), "topk").tolist() == sorted(hardest)


@pytest.mark.parametrize("selector", ["composer", "cdf"])
def test_a_tiny_keep_takes_the_hardest_rows_also_beside_others_that_are_not_finite(selector):
    """Their weights are too small for any float: (r + 0.5) ** 1e300."""
    scores = torch.cat([torch.arange(64.0), torch.full((8,), math.nan)])
    assert draw_rows(scores, 3, 1e-300, seeded(0), selector).tolist() == [61, 62, 63]


@settings(deadline=None, max_examples=100)
@given(m=st.integers(1, 5000), share=st.floats(0, 1), keep=keeps, floor=floors, law=st.sampled_from(["cdf", "topk"]))
@example(m=5000, share=0.9998, keep=0.999, floor=0.5, law="cdf")
@example(m=4654, share=4304 / 4654, keep=0.85, floor=0.0, law="cdf")  # rounding gives one rank more than 1
def test_chances_add_up_to_k_rows_none_of_which_can_be_drawn_twice(m, share, keep, floor, law):
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
def test_the_number_kept_is_exact_for_every_percentage(n, percent):
    assert number_kept(n, percent / 100) == max(1, math.floor(Fraction(percent, 100) * n))


@pytest.mark.parametrize(
    ("n", "keep", "multiple_of", "k"),
    [(0, 0.5, 1, 0), (100, 0.5, 8, 48), (100, 0.29, 29, 29), (10, 0.5, 8, 1), (100, 1, 8, 100)],
)
def test_the_number_kept_is_rounded_down_to_a_multiple(n, keep, multiple_of, k):
    """But never to none, and not where all are kept."""
    assert number_kept(n, keep, multiple_of) == k


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_a_custom_selector_decides_and_its_rows_come_in_order(dtype):
    chosen = torch.tensor([4, 0, 2], dtype=dtype)
    rows = draw_rows(torch.rand(5), 3, 0.6, seeded(0), lambda scores, k, generator: chosen)
    assert (rows.tolist(), rows.dtype) == ([0, 2, 4], torch.long)


def test_a_custom_selector_gets_scores_that_it_may_change():
    scores, generator, seen = torch.tensor([3.0, 1.0, 2.0], requires_grad=True), seeded(0), []

    def lowest(given, k, own):
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
def test_the_error_of_a_custom_selector_says_what_is_wrong(returned, error, message):
    def hardest(scores, k, generator):
        return returned

    with pytest.raises(error, match=message):
        draw_with(hardest, torch.rand(3), 2, seeded(0))


DRAWS, FEW = 20_000, 4_000
KEEPS = [0.25, 0.5, 0.75]
TABLE = {
    0.5: (0.087, 0.249, 0.387, 0.500, 0.595, 0.671, 0.732, 0.780),
    0.25: (0.000, 0.008, 0.036, 0.101, 0.210, 0.367, 0.559, 0.719),
}


def weights(n, keep, floor=0.0):
    w = ((np.arange(n) + 0.5) / n) ** (1 / keep - 1)
    return (1 - floor) * w / w.sum() + floor / n


@cache
def successive_sets(n, k, keep, floor=0.0):
    """Return the probability of each set of k picks, where every pick is proportional to the weights that are left."""
    w = weights(n, keep, floor).tolist()
    sets = {frozenset(): 1.0}
    for _ in range(k):
        larger = Counter()
        for chosen, probability in sets.items():
            left = [i for i in range(n) if i not in chosen]
            total = sum(w[i] for i in left)
            for i in left:
                larger[chosen | {i}] += probability * w[i] / total
        sets = dict(larger)
    return sets


def inclusion_of(sets, n):
    return np.array([sum(p for chosen, p in sets.items() if i in chosen) for i in range(n)])


def cdf_inclusion(n, k, keep, floor=0.0):
    """Return min(1, c * w) with the c that bisection finds for a sum of k."""
    w = weights(n, keep, floor)
    low, high = 0.0, n / w.min()
    for _ in range(200):
        c = (low + high) / 2
        low, high = (c, high) if np.minimum(1, c * w).sum() < k else (low, c)
    return np.minimum(1, high * w)


def systematic_sets(inclusion):
    """Return the probability of each set that a point of [0, 1) and those at distance 1 hit, rank by rank."""
    sums = np.cumsum(inclusion)
    k = round(sums[-1])
    ends = np.unique(np.concatenate([[0.0], sums % 1, [1.0]]))
    sets = Counter()
    for low, high in pairwise(ends):
        if high - low > 1e-9:
            points = (low + high) / 2 + np.arange(k)
            sets[frozenset(np.searchsorted(sums, points).tolist())] += high - low
    return sets


@cache
def drawn(n, k, keep, selector, floor=0.0):
    """Return the ranks of the rows kept (draws, k); ranks and places differ."""
    ranks = torch.randperm(n, generator=torch.Generator().manual_seed(n))
    generator, scores = torch.Generator().manual_seed(5), ranks.float()
    draws = DRAWS if selector == "composer" and n == 8 and k > 1 else FEW
    rows = [draw_rows(scores, k, keep, generator, selector, floor) for _ in range(draws)]
    return ranks[torch.stack(rows)]


def drawn_counts(n, k, keep, selector, floor=0.0):
    return drawn(n, k, keep, selector, floor).flatten().bincount(minlength=n).numpy()


def drawn_sets(n, k, keep, selector, floor=0.0):
    return Counter(map(frozenset, drawn(n, k, keep, selector, floor).tolist()))


def assert_each_rank_is_kept(counts, inclusion):
    """|z| < 5: less than one in 10,000 goes beyond it among 100 ranks; a rank that is sure is kept each time."""
    draws = counts.sum() / round(inclusion.sum())
    deviation = np.sqrt(np.maximum(draws * inclusion * (1 - inclusion), 1))
    assert np.abs((counts - draws * inclusion) / deviation).max() < 5
    assert (counts[inclusion == 1] == draws).all()


def p_value(seen, sets):
    """Return the chance of a chi-square this large; cells that expect less than 5 are taken together."""
    assert seen.keys() <= sets.keys()
    cells = sorted((seen.total() * p, seen[chosen]) for chosen, p in sets.items())
    rare = [cell for cell in cells if cell[0] < 5]
    pooled = [(sum(cell[0] for cell in rare), sum(cell[1] for cell in rare))] if rare else []
    cells = cells[len(rare) :] + pooled
    statistic = sum((count - expected) ** 2 / expected for expected, count in cells)
    return torch.special.gammaincc(torch.tensor((len(cells) - 1) / 2.0), torch.tensor(statistic / 2.0)).item()


@pytest.mark.parametrize("keep", [0.5, 0.25])
def test_the_oracle_gives_the_published_table(keep):
    """The table was drawn, so it is a few thousandths off the exact values."""
    assert inclusion_of(successive_sets(8, int(8 * keep), keep), 8) == pytest.approx(TABLE[keep], abs=0.005)


def kept_shares(*scores):
    """Return how often each row of a batch is among the four that are kept."""
    generator, losses = torch.Generator().manual_seed(7), torch.tensor(scores)
    rows = torch.cat([draw_rows(losses, 4, 0.5, generator) for _ in range(FEW)])
    return (rows.bincount(minlength=len(scores)) / FEW).tolist()


def test_tied_rows_share_the_chances_of_their_ranks():
    """Two easy rows, four tied ones, two hard ones."""
    expected = [*TABLE[0.5][:2], *[sum(TABLE[0.5][2:6]) / 4] * 4, *TABLE[0.5][6:]]
    assert kept_shares(0, 1, 2, 2, 2, 2, 3, 4) == pytest.approx(expected, abs=0.02)


def test_where_finite_rows_run_out_others_fill_up_at_random():
    seen = kept_shares(math.nan, 1, math.inf, 2, -math.inf, math.nan)
    assert [seen[1], seen[3]] == [1, 1]
    assert [seen[i] for i in (0, 2, 4, 5)] == pytest.approx([0.5] * 4, abs=0.02)


@pytest.mark.parametrize(("selector", "expected"), [("composer", 0.793), ("cdf", 0.984)])
def test_the_hardest_of_32_rows_is_kept_more_often_by_the_papers_law(selector, expected):
    counts = drawn_counts(32, 16, 0.5, selector)
    assert counts[-1] / (counts.sum() / 16) == pytest.approx(expected, abs=0.015)


@pytest.mark.parametrize("keep", KEEPS)
def test_composer_draws_sets_as_successive_sampling(keep):
    k = int(8 * keep)
    assert p_value(drawn_sets(8, k, keep, "composer"), successive_sets(8, k, keep)) > 1e-4


@pytest.mark.parametrize(("n", "keep"), [*((8, keep) for keep in KEEPS), (65, 0.25)])
def test_cdf_draws_the_sets_of_a_systematic_sample_and_each_rank_as_often_as_the_paper(n, keep):
    k = int(n * keep)
    exact = cdf_inclusion(n, k, keep)
    assert_each_rank_is_kept(drawn_counts(n, k, keep, "cdf"), exact)
    assert p_value(drawn_sets(n, k, keep, "cdf"), systematic_sets(exact.tolist())) > 1e-4


@pytest.mark.parametrize("selector", ["composer", "cdf"])
def test_a_single_pick_follows_the_weights(selector):
    expected = {frozenset({rank}): w for rank, w in enumerate(weights(8, 0.3))}
    assert p_value(drawn_sets(8, 1, 0.3, selector), expected) > 1e-4


def test_composers_floor_bounds_the_chance_of_every_row():
    floor = 0.7
    exact = inclusion_of(successive_sets(10, 3, 0.25, floor), 10)
    assert exact.min() > 1 - (1 - floor / 10) ** 3
    assert_each_rank_is_kept(drawn_counts(10, 3, 0.25, "composer", floor), exact)


@pytest.mark.parametrize("selector", ["cdf", "topk"])
def test_the_floor_of_a_systematic_sample_bounds_the_chance_of_every_row(selector):
    mixed = 0.7 * (np.arange(10) >= 7) + 0.3 * 3 / 10
    exact = cdf_inclusion(10, 3, 0.25, 0.3) if selector == "cdf" else mixed
    assert exact.min() >= 0.3 * 3 / 10
    assert_each_rank_is_kept(drawn_counts(10, 3, 0.25, selector, 0.3), exact)
    assert p_value(drawn_sets(10, 3, 0.25, selector, 0.3), systematic_sets(exact.tolist())) > 1e-4


@pytest.mark.parametrize(
    ("selector", "floor"), [("composer", 0.0), ("composer", 0.3), ("cdf", 0.0), ("topk", 0.0), ("uniform", 0.0)]
)
def test_equal_losses_make_every_law_uniform(selector, floor):
    generator, tied = torch.Generator().manual_seed(2), torch.full((6,), 2.5)
    rows = [draw_rows(tied, 3, 0.5, generator, selector, floor) for _ in range(FEW)]
    each = {frozenset(chosen): 1 / 20 for chosen in torch.combinations(torch.arange(6), 3).tolist()}
    assert p_value(Counter(frozenset(chosen.tolist()) for chosen in rows), each) > 1e-4


@pytest.mark.parametrize("selector", ["composer", "cdf", "topk"])
def test_a_floor_is_shared_by_the_finite_rows_alone(selector):
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
