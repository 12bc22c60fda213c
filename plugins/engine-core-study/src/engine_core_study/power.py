"""Student's t for pairs of runs: quantiles, p-values, and what a number of pairs can find.

scipy is imported when something is first computed: the listing of commands imports this package.
"""

from __future__ import annotations

import math
from functools import lru_cache

LEVEL = 0.05
POWER = 0.8
FEWEST = 3  # two pairs have a t interval too, 13 times as wide as the two are apart: it says nothing


def t_quantile(n: int, level: float = LEVEL) -> float:
    """Return how many standard errors the mean of `n` differences may be off, but for a share `level`.

    Example:
        >>> round(t_quantile(5), 3)
        2.776
    """
    from scipy.special import stdtrit  # noqa: PLC0415  see above

    return -float(stdtrit(n - 1, level / 2))


def t_p_value(t: float, n: int) -> float:
    """Return the two-sided p-value of a mean of `n` differences that is `t` standard errors from zero."""
    from scipy.special import stdtr  # noqa: PLC0415  see above

    return 2 * float(stdtr(n - 1, -abs(t)))


def power_of(n: int, effect: float, level: float = LEVEL) -> float:
    """Return the chance that `n` pairs show a true difference, and with its true sign.

    Args:
        n: pairs.
        effect: the true difference, in standard deviations of the differences between pairs; positive.
        level: of the two-sided test.
    """
    from scipy.special import nctdtr  # noqa: PLC0415  see above

    return 1 - float(nctdtr(n - 1, effect * math.sqrt(n), t_quantile(n, level)))


@lru_cache(maxsize=4096)
def smallest_effect(n: int, level: float = LEVEL, power: float = POWER) -> float:
    """Return the effect that `n` pairs show with the chance `power`; see `power_of`.

    Example:
        >>> round(smallest_effect(5), 2)
        1.68
    """
    low, high = 0.0, 1.0
    while power_of(n, high, level) < power:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if power_of(n, middle, level) < power else (low, middle)
    return high


def seeds_needed(sd: float, difference: float, *, level: float = LEVEL, power: float = POWER) -> int:
    """Return how many seeds show a true `difference` with the chance `power`.

    Args:
        sd: of the differences between pairs, not of single runs: those of independent runs are 1.41 times as spread.
        difference: in the unit of `sd`.
        level: of the test; for `k` arms `0.05 / k` is enough, whatever the other arms show.
        power: the chance to see the difference.

    Raises:
        ValueError: the difference is 0, the spread is negative, or one of them is not finite.

    Example:
        >>> seeds_needed(sd=0.3, difference=0.3), seeds_needed(sd=0.3, difference=0.6)
        (10, 5)
    """
    if not (math.isfinite(sd) and math.isfinite(difference) and sd >= 0 and difference):
        raise ValueError(
            f"no number of seeds shows a difference of {difference} with a spread of {sd}: "
            "give a difference other than 0 and a spread of at least 0, both finite"
        )
    if not sd:
        return FEWEST
    effect = abs(difference) / sd
    too_few, enough = FEWEST - 1, FEWEST
    while power_of(enough, effect, level) < power:
        too_few, enough = enough, 2 * enough
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (middle, enough) if power_of(middle, effect, level) < power else (too_few, middle)
    return enough
