"""Wording: warnings at the user's line, exceptions in one line, text safe for terminals and notebooks. A leaf."""

from __future__ import annotations

import inspect
import sys
import traceback
import warnings
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any
from unicodedata import east_asian_width

from pydantic import ValidationError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = [
    "aligned",
    "cause_of",
    "columns_of",
    "escaped",
    "in_html",
    "in_one_line",
    "is_of_user",
    "join_words",
    "plural",
    "raised_at",
    "readable",
    "table_in_html",
    "warn",
]

LONGEST = 300
"""How many characters of a plugin's text are shown."""

_OURS = {"engine_core", "importlib", "importlib_metadata", "pydantic", "pydantic_core"}


def cause_of(error: BaseException) -> str:
    """Return type, message and place of an exception in one line; for pydantic's only the plugin's mistake."""
    kind = readable(type(error).__name__)
    replaced = error.__context__ if error.__suppress_context__ else None
    if isinstance(problem := replaced or error, ValidationError):
        return in_one_line(problem) + raised_at(error)
    try:
        if isinstance(error, SyntaxError) and error.filename is not None:
            return f"{kind}: {readable(str(error.msg))} (at {readable(str(error.filename))}:{error.lineno})"
        message = readable(" ".join(str(error).split()))
    except BaseException as another:  # noqa: BLE001  its __str__ is the plugin's code too
        message = f"it can't be shown, since its __str__ raises {readable(type(another).__name__)}"
    return kind + (f": {message}" if message else "") + raised_at(error)


def plural(number: int | None, one: str, several: str) -> str:
    """Return a number with what it counts; None stands for a number that is not known."""
    return f"{'?' if number is None else f'{number:,}'} {one if number == 1 else several}"


def readable(text: str, longest: int = LONGEST) -> str:
    """Return foreign text for one line of a terminal: without control characters, and cut at `longest`."""
    cut = text[:longest] + (f"... ({len(text)} characters)" if len(text) > longest else "")
    return escaped(cut)


def escaped(text: str, keep: str = "") -> str:
    """Escape characters that a terminal would obey or not show, except those to `keep`."""
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii") for c in text)


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return rows as lines with columns as wide as a terminal shows their cells; what it would not show is escaped."""
    cells = [[escaped(cell) for cell in row] for row in rows]
    widths = [max(map(columns_of, column)) for column in zip_longest(*cells, fillvalue="")]
    gaps = [[" " * (width - columns_of(cell)) for cell, width in zip(row, widths, strict=False)] for row in cells]
    return ["  ".join(map("".join, zip(*row, strict=True))).rstrip() for row in zip(cells, gaps, strict=True)]


def columns_of(text: str) -> int:
    """Return how many columns of a terminal a text takes: East Asian characters are two columns wide."""
    return sum(1 + (east_asian_width(character) in "WF") for character in text)


def in_html(text: object) -> str:
    """Return foreign text for HTML, where it is nothing but text."""
    from html import escape  # noqa: PLC0415  of a notebook alone, and this module is loaded early

    return escape(escaped(str(text), keep="\n"))


def table_in_html(header: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> str:
    """Return a table for a notebook; all of it is escaped."""
    caption = f"<caption>{in_html(title)}</caption>" if title else ""
    head = "".join(f"<th>{in_html(cell)}</th>" for cell in header)
    body = ["".join(f"<td>{in_html(cell)}</td>" for cell in row) for row in rows]
    lines = [f"<table>{caption}", f"<thead><tr>{head}</tr></thead>", "<tbody>", *(f"<tr>{row}</tr>" for row in body)]
    return "\n".join([*lines, "</tbody></table>"])


def in_one_line(error: ValidationError) -> str:
    """Return what pydantic found wrong, each with its field."""
    found = []
    for problem in error.errors(include_url=False):
        field = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in problem["loc"]).lstrip(".")
        message = readable(_said_of(problem))
        found.append(f"{readable(field)}: {message}" if field else message)
    return readable(f"{error.title}: {'; '.join(found)}", 5 * LONGEST)


def _said_of(problem: ErrorDetails) -> str:
    if problem["type"] == "missing":
        return "it is missing"
    if problem["type"] == "tuple_type" and isinstance(problem["input"], str):
        text = str.__str__(problem["input"])  # of an Event too
        return f"{text!r} is a string, not a tuple: write ({text!r},)"
    try:
        return str(problem.get("ctx", {}).get("error") or f"{problem['msg']}, not {problem['input']!r}")
    except Exception:  # noqa: BLE001  a value's __repr__ is the plugin's code
        return problem["msg"]


def join_words(names: Sequence[str], most: int = 4) -> str:
    """Join names with commas and "and"; beyond `most`, give the first few and how many more: `a, b, c and 4 more`."""
    shown = [*names] if len(names) <= most else [*names[: most - 1], f"{len(names) - most + 1} more"]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if shown[1:] else shown)


def raised_at(error: BaseException) -> str:
    """Return where outside engine-core an error was raised, since its traceback is not always shown."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = frame.f_globals.get("__name__")
        top = name.partition(".")[0] if type(name) is str else ""
        if top not in _OURS and not frame.f_code.co_filename.startswith("<"):
            place = f" (at {readable(frame.f_code.co_filename)}:{line})"
    return place


def is_of_user(error: BaseException) -> bool:
    """Was an error raised in code that is not ours, torch's or Python's, other than by a state that it was to load?"""
    if "in DataLoader worker process" in str(error):  # the frames are those of the worker, in the message
        return "load_state_dict" not in str(error)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    tops = [str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames]
    libraries = {*sys.stdlib_module_names, "engine_core", "torch", "torchdata"} - {"__main__"}
    theirs = {frame.f_code.co_name for frame, top in zip(frames, tops, strict=True) if top not in libraries}
    return bool(theirs) and "load_state_dict" not in theirs


BETWEEN = {"engine_core", "pluggy", "click", "contextlib", "torch"}
"""Packages whose lines say nothing to the user."""


def warn(message: str, category: type[Warning], *, of_rank: bool = False) -> None:
    """Issue a warning at the nearest line of the user's code, which is not in the package that warns either.

    If code that an engine runs warns through this package, as by logging, its package is the one that warns. Of several
    processes that train together the first one warns: the others have the same to say, unless the warning is `of_rank`,
    about this process alone. Then each warns, and names itself at the end.
    """
    dist: Any = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        if not of_rank and dist.get_rank():
            return
        if of_rank and dist.get_world_size() > 1:
            message = f"{message} (rank {dist.get_rank()})"  # at the end: filters look at the beginning
    frame = inspect.currentframe()
    packages = []  # the innermost first
    while frame is not None:
        packages.append(str(frame.f_globals.get("__name__")).partition(".")[0])
        frame = frame.f_back
    first = next((level for level, package in enumerate(packages) if package not in BETWEEN), 0)
    is_run = "engine_core" in packages[first:]
    passed_over = BETWEEN | {packages[first] if is_run else packages[1]}
    for level, package in enumerate(packages):
        if package not in passed_over:
            break
        if level > first and package == "engine_core":  # frames above are the caller's, even in its package
            passed_over = BETWEEN
    else:
        level = 1
    warnings.warn(message, category, stacklevel=level + 1)
