"""What a study says in words: differences, with as many digits as their intervals deserve, and how to read them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine_core.messages import join_words, plural

from .differences import Difference
from .power import LEVEL

Content = Mapping[str, Any]
"""What `study.json` holds."""

_COUNTS = ("no seed has a value of both", "one seed shows nothing", "two seeds show nothing")


def words(difference: Difference) -> str:
    """Return what a comparison says.

    Numbers are sizes: a loss that falls by 0.4 gains 0.4. Two digits of an interval's width are shown.

    Args:
        difference: as `paired` or `holm` gives it.

    Example:
        >>> from engine_core_study.differences import paired
        >>> words(paired({0: 3.1, 1: 3.4, 2: 3.3}, {0: 2.1, 1: 2.3, 2: 2.2}, higher_is_better=True))
        'gains 1.07 (0.92 to 1.21)'
        >>> words(paired({0: 3.1}, {0: 2.1}, higher_is_better=True))
        'one seed shows nothing'
    """
    return _finding(difference) + _left_out(difference)


def rounded(value: float, width: float) -> str:
    """Return a number with two digits of the width of its interval; one that isn't 0 never looks like 0.

    Example:
        >>> rounded(0.4186, 0.42), rounded(1234.5, 420), rounded(-0.0004, 0.02), rounded(0.5, 0)
        ('0.42', '1230', '-0.0004', '0.5')
    """
    if not width:
        return _plain(value)
    decimals = 1 - math.floor(math.log10(width))
    text = f"{round(value, decimals) + 0.0:.{max(0, decimals)}f}"  # -0.0 + 0.0 has no sign
    return text if float(text) or not value else _plain(value, 1)


def _plain(value: float, digits: int = 3) -> str:
    """Return a number with some digits, and no exponent where people write none."""
    if not value or not 1e-6 <= abs(value) < 1e15:
        return f"{value:.{digits}g}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    text = f"{round(value, decimals):.{max(0, decimals)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _finding(found: Difference) -> str:
    if found.mean is None or found.verdict == "too few seeds":
        return _COUNTS[found.n]
    is_better = (found.mean > 0) == found.higher_is_better
    if found.verdict == "no spread":
        how = "better" if is_better else "worse"
        return f"{how} by {_plain(abs(found.mean))} at each of {found.n} seeds: without spread there is no interval"
    if found.could_miss is None:
        return f"no difference seen: the baseline's value at each of {found.n} seeds"
    if found.verdict != "no difference seen":
        return f"{found.verdict} {_sizes(found)}"
    if found.p is not None and found.p <= LEVEL:
        how = "gains" if is_better else "loses"
        return f"no difference seen: {how} {_sizes(found)} alone, but not after correction for {found.arms} arms"
    return f"no difference seen: with {found.n} seeds, {_plain(found.could_miss, 2)} could have been missed"


def _sizes(found: Difference) -> str:
    """Return a difference that isn't 0 with its interval, without signs unless the interval holds 0."""
    assert found.mean is not None
    assert found.low is not None
    assert found.high is not None
    low, high = (found.low, found.high) if found.mean > 0 else (-found.high, -found.low)
    mean, low_end, high_end = (rounded(value, high - low) for value in (abs(found.mean), low, high))
    return f"{mean} ({low_end} to {high_end})"


def _left_out(found: Difference) -> str:
    seeds = {*found.without_arm, *found.without_baseline}
    return f"; {len(seeds)} of {found.n + len(seeds)} seeds left out" if seeds else ""


def notes_of(content: Content) -> list[str]:
    """Return what a reader has to know: how to read the table, what `notes` says already, and of what it is."""
    compared = [value["difference"] for arm in content["arms"] for value in arm["values"].values()]
    arms = max((found["arms"] for found in compared if found), default=1)  # those with enough seeds for a test
    holm = f", corrected for {arms} arms (Holm), and each interval is of its arm alone" if arms > 1 else ""
    seeds = plural(len(content["seeds"]), "seed", "seeds")
    first = f"{seeds}; differences are paired by seed, with 95 % intervals (t); a gain or loss has p <= 0.05{holm}"
    unit, beside = content["units"]["seconds"], "of runs side by side"
    ratios = [arm["cost"]["ratio"] for arm in content["arms"] if arm["cost"]["ratio"]]
    if not all(ratio["adjacent"] for ratio in ratios):
        beside += ", ~ of runs of a seed that were not all side by side"
    counted = content["units"]["compute"]
    counts = "those that were loaded" if counted == "tokens" else "forward 1, backward 2"
    second = f"{unit}: of training, as the median ratio {beside}; {counted}: {counts}"
    names = ("engine-core", "torch")
    versions = ", ".join(f"{name} {content['versions'][name]}" for name in names if content["versions"].get(name))
    where = ", ".join(filter(None, [*content["devices"], versions, content["written"][:10]]))
    lacking = "; ".join(_lacking(content))
    third = [f"left out of means and differences, without a value: {lacking}"] if lacking else []
    return [first, second, *third, *content["notes"], where]


def _lacking(content: Content) -> Iterator[str]:
    """Yield each arm that lacks a value of some seeds, with these and the values."""
    for arm in content["arms"]:
        names: dict[tuple[int, ...], list[str]] = {}
        for name, value in arm["values"].items():
            lacks = tuple(seed for seed in content["seeds"] if value["by_seed"].get(str(seed)) is None)
            names.setdefault(lacks, []).append(name)
        for lacks, of in names.items():
            if lacks:
                some = "" if len(of) == len(arm["values"]) else f" ({join_words(of)})"
                yield f"{arm['name']} {_seeds(lacks)}{some}"


def _seeds(seeds: Sequence[int]) -> str:
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {join_words([*map(str, seeds)])}"
