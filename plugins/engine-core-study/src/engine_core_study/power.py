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
