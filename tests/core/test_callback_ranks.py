"""Which callbacks and loggers of the core are used on which ranks, as the page on callbacks says."""

import re
from pathlib import Path

from engine_core.callback import is_used_on
from engine_core.registry import Registry

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "callbacks.md"


def test_the_page_says_on_which_ranks_each_callback_is_used():
    registry = Registry.scan()
    rows = dict(re.findall(r"^\| (every rank|rank 0) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    said = {place: re.findall(r"`(\w+)`", names) for place, names in rows.items()}
    known = [
        record.name
        for record in registry.records
        if record.kind == "callbacks" and record.distribution == "engine-core"
    ]
    everywhere = [name for name in sorted(known) if is_used_on(1, registry.load("callbacks", name))]
    assert said == {"every rank": everywhere, "rank 0": sorted({*known} - {*everywhere})}
