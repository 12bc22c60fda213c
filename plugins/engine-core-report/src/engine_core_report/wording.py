"""Numbers and sizes in words, as a page shows them."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from .files import number_in

NOTHING = "-"


class Cell(NamedTuple):
    """What a cell shows, and the exact value where that is shorter."""

    text: str
    exact: str = ""


def cell(value: Any) -> Cell:
    """Return a value for a cell, with five digits.

    Example:
        >>> cell(0.123456789), cell(12345678), cell(None).text
        (Cell(text='0.12346', exact='0.123456789'), Cell(text='12,345,678', exact=''), '-')
    """
    if value is None:
        return Cell(NOTHING)
    if isinstance(value, str):
        return Cell(value)
    number = number_in(value)
    if number is None:
        return Cell("not finite" if isinstance(value, float) and not math.isfinite(value) else json.dumps(value))
    exact = repr(number) if abs(number) < 1e300 else f"{float(number)!r}"
    text = f"{number:,}" if isinstance(number, int) and abs(number) < 10**15 else f"{float(number):.5g}"
    return Cell(text, "" if float(text.replace(",", "")) == number else exact)


def setting(value: Any) -> str:
    """Return a setting, or a value of a config.

    Example:
        >>> setting("cpu"), setting(0.1), setting(["flip", "crop"]), setting(None)
        ('cpu', '0.1', '["flip", "crop"]', '-')
    """
    if value is None:
        return NOTHING
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def seconds(value: float) -> str:
    """Return a time.

    Example:
        >>> seconds(0.00123), seconds(75.2), seconds(9000)
        ('1.230 ms', '75.20 s', '2.50 h')
    """
    if value >= 3600:
        return f"{value / 3600:.2f} h"
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.3f} ms"


def size(count: int) -> str:
    """Return a number of bytes.

    Example:
        >>> size(512), size(62880), size(3_000_000_000)
        ('512 B', '62.88 kB', '3.00 GB')
    """
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count} B"


def percent(share: float) -> str:
    """Return a share of 1 as a percentage.

    Example:
        >>> percent(0.1234)
        '12.3 %'
    """
    return f"{100 * share:.1f} %"
