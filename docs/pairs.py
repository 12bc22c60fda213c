"""The table of pairs: `python docs/pairs.py` writes how any two of the algorithms under plugins/ combine.

The engine itself says which two may run together and which comes first, in both orders of the user's list.
"""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

from engine_core import Algorithm, Engine, Event, Logger, State
from engine_core.errors import EngineError
from engine_core.registry import Registry

FILE = Path(__file__).parent / "reference" / "pairs.md"
OURS = {project.parent.name for project in Path(__file__).parents[1].glob("plugins/*-plugin/pyproject.toml")}
HEAD = """# Pairs of algorithms

How any two algorithms of this repository combine, with default arguments. `python docs/pairs.py` asks the engine and
writes the table. `tests/composition` trains each pair that is not refused, in both orders of the user's list. Two
arguments change cells: with MixUp's `interpolate_loss=True`, CutMix is around MixUp. With `scorer="carried"`,
SelectiveBackprop has more events, and is before MixUp, CutMix, label smoothing and the gradient penalty at these.

Each cell says how the row's algorithm runs relative to the column's:

- **·** they share no event, so there is nothing to order.
- **before**, **after**: at each event that both list.
- **around**, **within**: the one around the other comes first, and last on the AFTER or END half of a pair.
- **refused**: the engine refuses to run the two together; the error names both and the reason.
- **list**: your list decides.
"""
NEEDED = {"curriculum": {"difficulty": [0.0]}}
"""The arguments without which an algorithm can't be made."""


def algorithm_names() -> list[str]:
    """Return the registered names of the algorithms under plugins/ that are installed, sorted by distribution."""
    records = [r for r in Registry.scan().records if r.kind == "algorithms" and r.distribution in OURS]
    return [record.name for record in sorted(records, key=lambda record: (record.distribution, record.name))]


@functools.cache
def class_of(name: str) -> type[Algorithm]:
    """Return the class of a registered algorithm."""
    return Registry.scan().load("algorithms", name)  # type: ignore[no-any-return]


def make(name: str) -> Algorithm:
    """Return an algorithm with its default arguments."""
    return class_of(name)(**NEEDED.get(name, {}))


def relation(one: str, other: str) -> tuple[str, str]:
    """Return how the first runs relative to the second, and why."""
    pair = [make(one), make(other)]
    try:
        found = [_leaders(algorithms) for algorithms in (pair, pair[::-1])]
    except EngineError as error:
        return "refused", str(error).partition("; ")[0]
    leads, reasons = zip(*found, strict=True)
    if leads[0] != leads[1]:
        return "list", "nothing declares their order"
    if not leads[0]:
        return "·", ""
    why = "; ".join(sorted(set.union(*reasons)))
    at_once = {first == one for first in leads[0].values()}
    if len(at_once) == 1:
        return ("before" if at_once.pop() else "after"), why
    opens = {(first == one) != event.is_after_event for event, first in leads[0].items()}
    assert len(opens) == 1, f"{one} is neither before nor around {other}: {leads[0]}"
    return ("around" if opens.pop() else "within"), why


def _leaders(algorithms: list[Algorithm]) -> tuple[dict[Event, str], set[str]]:
    """Return which comes first at each event that both list, and what besides the list decided it."""
    leads, reasons = {}, set()
    with Engine(State(algorithms=algorithms), Logger()) as engine:
        for event in Event:
            explained = engine.explain(event)
            if len(explained) == 2:
                leads[event] = explained[0].name
                why = explained[0].why.partition(": ")[2]
                reasons |= {why} if why.startswith(("declared", "pass")) else set()
    return leads, reasons


def as_text() -> str:
    """Return the page."""
    names = algorithm_names()
    found = {(one, other): relation(one, other) for one, other in itertools.permutations(names, 2)}
    lines = [HEAD]
    lines += [f"| | {' | '.join(f'`{name}`' for name in names)} |", f"|---|{'---|' * len(names)}"]
    for one in names:
        cells = [found[one, other][0] if one != other else "" for other in names]
        lines.append(f"| `{one}` | {' | '.join(cells)} |")
    lines += ["", "## Why", "", "| first | second | | why |", "|---|---|---|---|"]
    for one, other in itertools.combinations(names, 2):
        first, second = (other, one) if found[one, other][0] in ("after", "within") else (one, other)
        what, why = found[first, second]
        if what != "·":
            lines.append(f"| `{first}` | `{second}` | {what} | {why} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(as_text(), encoding="utf-8")
