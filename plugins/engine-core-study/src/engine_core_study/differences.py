"""What the seeds of a study say: the spread of an arm, its difference to the baseline, and a verdict.

An arm is compared with the baseline seed by seed. The differences of the pairs are taken as draws of one normal
distribution, as Student's paired t-test does, so what a seed does to both runs cancels out. It knows no runs or files,
only numbers by seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeGuard

from .power import FEWEST, LEVEL, smallest_effect, t_p_value, t_quantile

Verdict = Literal["gains", "loses", "no difference seen", "no spread", "too few seeds"]

# Training computes in float32. The difference of two such numbers is off by up to 2**-23 of the larger one, so two
# differences that should be equal are at most this far apart.
ROUNDING = 2.0**-22


@dataclass(frozen=True)
class Summary:
    """The values of one arm.

    Args:
        n: the finite values.
        left_out: how many were missing or not finite.
        mean: None without a value.
        sd: the standard deviation of single runs; None for fewer than two values.
    """

    n: int
    left_out: int
    mean: float | None
    sd: float | None


@dataclass(frozen=True)
class Difference:
    """How an arm differs from the baseline, as `paired` finds it and `holm` corrects it.

    Differences are those of the arm minus the baseline, whichever is better.

    Args:
        verdict: `gains` and `loses` say whether the arm is better, so a loss that falls gains. `no spread`: the
            differences are equal and not 0, see `paired`.
        n: pairs, which are the seeds with a finite value of both.
        without_arm: seeds without a finite value of the arm: runs that failed or are not done, NaN, infinity.
        without_baseline: the same of the baseline; a seed may be in both.
        mean: of the differences; None without a pair.
        sd: of the differences; None for fewer than two pairs.
        higher_is_better: of the value that is compared.
        low: the lower end of the 95 % t interval of the mean; None for fewer than three pairs and without spread.
        high: its upper end.
        p: of the two-sided paired t-test, as if this arm were the only one; None where no test can be made.
        could_miss: a true difference of this size is found with a chance of 80 %, so one study in five misses it. The
            spread is taken for the true one. Of five seeds it's known only within a factor of 0.6 to 2.9. None without
            a spread.
        arms: how many arms p was corrected for.
        p_corrected: for `arms` arms, by Holm's method; what the verdict goes by.
    """

    verdict: Verdict
    n: int
    without_arm: tuple[int, ...]
    without_baseline: tuple[int, ...]
    mean: float | None
    sd: float | None
    higher_is_better: bool
    low: float | None = None
    high: float | None = None
    p: float | None = None
    could_miss: float | None = None
    arms: int = 1
    p_corrected: float | None = None


def summary(values: Iterable[float | None]) -> Summary:
    """Return how many values there are, their mean and their spread.

    Example:
        >>> summary([1.0, 2.0, None, float("nan"), 3.0])
        Summary(n=3, left_out=2, mean=2.0, sd=1.0)
    """
    given = list(values)
    finite = [value for value in given if is_finite(value)]
    mean, sd = _mean_and_sd(finite)
    return Summary(len(finite), len(given) - len(finite), mean, sd)


def paired(
    arm: Mapping[int, float | None], baseline: Mapping[int, float | None], *, higher_is_better: bool
) -> Difference:
    """Compare an arm with the baseline, both by seed.

    Differences without spread have no test. If all are 0 the arm has the baseline's values, and `no difference seen` is
    sure: p is 1. If all are equal and not 0, the formula would give p = 0 and an interval of one point, however few the
    seeds are. But a spread of 0 is what a coarse value shows by luck: an accuracy on 100 images moves in whole points,
    and three seeds then agree by chance in 3 % of the comparisons of equal arms. R's `t.test` refuses such data, and so
    does this: the verdict is `no spread`, without p and interval. Where a value has no noise (a count of samples), the
    mean is the whole truth and needs no verdict. Differences are equal if float32 can't tell them apart. Coarse values
    with a spread are compared as others are; with eight seeds 6 % instead of 5 % of equal arms then seem to differ.

    A seed without a value of both is left out. If the arm diverged there, the other seeds flatter it: `words` tells how
    many are left out.

    Example:
        >>> found = paired({0: 0.92, 1: 0.93, 2: 0.95}, {0: 0.90, 1: 0.91, 2: 0.92}, higher_is_better=True)
        >>> found.verdict, round(found.mean, 4), round(found.low, 4), round(found.high, 4)
        ('gains', 0.0233, 0.009, 0.0377)
    """
    values = {seed: (arm.get(seed), baseline.get(seed)) for seed in sorted({*arm, *baseline})}
    pairs = [(a, b) for a, b in values.values() if is_finite(a) and is_finite(b)]
    mean, sd = _mean_and_sd([a - b for a, b in pairs])
    untested = Difference(
        verdict="too few seeds",
        n=len(pairs),
        without_arm=tuple(seed for seed, (value, _) in values.items() if not is_finite(value)),
        without_baseline=tuple(seed for seed, (_, value) in values.items() if not is_finite(value)),
        mean=mean,
        sd=sd,
        higher_is_better=higher_is_better,
    )
    return untested if len(pairs) < FEWEST else _tested(untested, pairs)


def holm(differences: Mapping[str, Difference]) -> dict[str, Difference]:
    """Correct the verdicts on several arms, so that at most 5 % of studies hold a false `gains` or `loses`.

    This holds whichever arms do differ, and however their values hang together. It's Holm's step-down method
    ("A simple sequentially rejective multiple test procedure", 1979). The family is the arms that have a p-value, for
    one reported value. A study that reports three values has three families: who looks at all of them and picks the
    best has more than 5 % again.

    The intervals stay: each covers the true difference of its own arm in 95 % of studies, as a reader of a single row
    expects. They are not wide enough for all arms at once. So an interval may exclude 0 where p after the correction is
    above 0.05. The verdict is then `no difference seen`, and `words` says why. Intervals that agree with Holm's method
    exist, but they end at exactly 0 for the arms that it finds, and say no more how large a gain is.

    `could_miss` grows too: it's for the level that this arm has to pass given the p-values of the others.
    """
    by_p = sorted((found.p, name) for name, found in differences.items() if found.p is not None)
    arms, ordered = len(by_p), [p for p, _ in by_p]
    judged = dict(differences)
    p_corrected = 0.0
    for rank, (p, name) in enumerate(by_p):
        p_corrected = max(p_corrected, min(1.0, (arms - rank) * p))
        judged[name] = replace(
            differences[name],
            verdict=_verdict(differences[name], p_corrected),
            could_miss=_could_miss(differences[name], _level_given(ordered[:rank] + ordered[rank + 1 :])),
            arms=arms,
            p_corrected=p_corrected,
        )
    return judged


def is_finite(value: float | None) -> TypeGuard[float]:
    """Is there a value to compute with?"""
    return value is not None and math.isfinite(value)


def _level_given(others: Sequence[float]) -> float:
    """Return what p an arm needs, given the others' in ascending order: Holm's method, seen from one arm."""
    arms, found = len(others) + 1, 0
    while found < len(others) and others[found] <= LEVEL / (arms - found):
        found += 1
    return LEVEL / (arms - found)


def _tested(found: Difference, pairs: Sequence[tuple[float, float]]) -> Difference:
    """Return a difference of enough pairs with what the t-test says of it."""
    assert found.mean is not None
    assert found.sd is not None
    differences = [a - b for a, b in pairs]
    rounding = ROUNDING * max(abs(value) for pair in pairs for value in pair)
    if max(differences) - min(differences) <= rounding:
        if abs(found.mean) <= rounding:
            return replace(found, verdict="no difference seen", sd=0.0, p=1.0, p_corrected=1.0)
        return replace(found, verdict="no spread", sd=0.0)
    error = found.sd / math.sqrt(found.n)
    reach = t_quantile(found.n) * error
    p = t_p_value(found.mean / error, found.n)
    return replace(
        found,
        verdict=_verdict(found, p),
        low=found.mean - reach,
        high=found.mean + reach,
        p=p,
        could_miss=_could_miss(found, LEVEL),
        p_corrected=p,
    )


def _verdict(found: Difference, p: float) -> Verdict:
    assert found.mean is not None
    if p > LEVEL:
        return "no difference seen"
    return "gains" if (found.mean > 0) == found.higher_is_better else "loses"


def _could_miss(found: Difference, level: float) -> float | None:
    return found.sd * smallest_effect(found.n, level) if found.sd else None


def _mean_and_sd(values: Sequence[float]) -> tuple[float | None, float | None]:
    if not values:
        return None, None
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, None
    # hypot scales: the squares of tiny differences don't vanish
    return mean, math.hypot(*(value - mean for value in values)) / math.sqrt(len(values) - 1)
