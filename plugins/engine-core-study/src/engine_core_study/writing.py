"""What a study found, as a table for terminals, Markdown, HTML and CSV. Knows `study.json`, and no runs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from engine_core.messages import escaped, table_in_html

from .wording import Content

_WIDE = 110
_KEPT_WHOLE = (1, 3, 4)
"""The columns of a mean, of seconds and of compute."""
_BRACKETS = re.compile(r" \(.*?\)")


def tables_of(content: Content) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield a table for each reported value: title, header, rows."""
    unit = content["units"]["seconds"]
    tuned = any(arm["settings_tried"] for arm in content["arms"])
    for name in content["report"]:
        is_lower = content["lower_is_better"]
        better = f", {'lower' if is_lower[name] else 'higher'} is better" if name in is_lower else ""
        header = ["arm", "mean (sd)", f"against {content['baseline']}", unit, content["units"]["compute"]]
        if is_target := name in content["target"]:
            counted = _counted_to_reach(name, content)
            header.append(f"{content['units'][counted]} to reach {content['target'][name]:g}")
        header += ["chosen setting"] if tuned else []
        rows = [list(_row(arm, name, content, with_target=is_target, tuned=tuned)) for arm in content["arms"]]
        yield f"{name}{better}", header, rows


def _row(arm: Content, name: str, content: Content, *, with_target: bool, tuned: bool) -> Iterator[str]:
    value, cost = arm["values"][name], arm["cost"]
    yield arm["name"]
    yield _mean(value, len(content["seeds"]))
    yield value["difference"]["words"] if value["difference"] else ""
    yield _seconds(cost)
    yield _passes(arm, content)
    if with_target:
        yield _reached(arm["to_target"].get(name, {}), _counted_to_reach(name, content), content)
    if tuned:
        yield f"{arm['setting']} (of {arm['settings_tried']})" if arm["settings_tried"] else "not tuned"


def _mean(value: Content, seeds: int) -> str:
    """Return mean and standard deviation, and how many seeds have a value, if not all have."""
    if not value["n"]:
        return ""
    spread = "" if value["sd"] is None else f" ({figure(value['sd'], 2)})"
    some = "" if value["n"] == seeds else f", {value['n']} of {seeds} seeds"
    return f"{figure(value['mean'])}{spread}{some}"


def _seconds(cost: Content) -> str:
    """Return the mean seconds of the baseline, or the ratio to it with its range."""
    ratio = cost["ratio"]
    if ratio is None:
        return "" if cost["seconds"] is None else f"{cost['seconds']:.3g}"
    spread = f" ({ratio['low']:.2f} to {ratio['high']:.2f})" if ratio["n"] > 1 else ""
    return f"{'' if ratio['adjacent'] else '~ '}x {ratio['median']:.2f}{spread}"


def _passes(arm: Content, content: Content) -> str:
    """Return the compute of the longest runs; of other arms as a share of the baseline's."""
    of = {each["name"]: (each["ladder"] or [{}])[-1].get("compute") for each in content["arms"]}
    own, plain = of[arm["name"]], of[content["baseline"]]
    if own is None:
        return ""
    return f"{own:,.0f}" if arm["name"] == content["baseline"] or not plain else f"x {own / plain:.2f}"


def _counted_to_reach(name: str, content: Content) -> str:
    """Return in which unit the table tells what a target costs: seconds only where no arm tells its compute."""
    return "compute" if any(arm["to_target"].get(name, {}).get("compute") for arm in content["arms"]) else "seconds"


def _reached(costs: Content, counted: str, content: Content) -> str:
    """Return what a target costs; an arm that tells only its seconds names them, if the column has compute."""
    told = counted if costs.get(counted) else "seconds"
    found = costs.get(told)
    if found is None or found["cost"] is None:
        return ""
    cost = f"{found['cost']:,.0f}" if told == "compute" or found["cost"] >= 100 else f"{found['cost']:.3g}"
    return " ".join(filter(None, (found["bound"], cost, "" if told == counted else content["units"][told])))


def figure(value: float | None, digits: int = 4) -> str:
    """Return a number as a table shows it."""
    return "" if value is None else f"{value:#.{digits}g}"


def to_terminal(content: Content, width: int) -> str:
    """Return the tables and notes for a terminal; a narrow one shows no deviations and ranges (in brackets)."""
    out = io.StringIO()
    console = Console(file=out, width=max(width, 60), highlight=False, markup=False, no_color=True)
    for title, header, rows in tables_of(content):
        table = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
        for place, head in enumerate(header):
            table.add_column(head, overflow="fold", no_wrap=place in _KEPT_WHOLE)
        for row in rows:
            short = [_BRACKETS.sub("", cell) if place in _KEPT_WHOLE else cell for place, cell in enumerate(row)]
            table.add_row(*map(escaped, row if width >= _WIDE else short))
        console.print(table)
        console.print()
    for note in content["notes"]:
        console.print(f"- {escaped(note)}")
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def to_markdown(content: Content) -> str:
    """Return the tables and notes as Markdown."""
    lines = []
    for title, header, rows in tables_of(content):
        lines += [f"**{_in_markdown(title)}**", "", _line(header), _line(["---"] * len(header)), *map(_line, rows), ""]
    lines += [f"- {_in_markdown(note)}" for note in content["notes"]]
    return "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(map(_in_markdown, cells))} |"


def _in_markdown(text: str) -> str:
    return escaped(text).replace("|", "\\|").replace("<", "&lt;")


def to_html(content: Content) -> str:
    """Return the tables for a notebook."""
    found = [table_in_html(header, rows, title) for title, header, rows in tables_of(content)]
    notes = table_in_html(("notes",), [(note,) for note in content["notes"]])
    return "\n".join([*found, notes])


def to_csv(content: Content) -> str:
    """Return a row for each run: arm, seed, length, cost, the chosen setting, values, and deviations at this length."""
    out = io.StringIO()
    names = list(dict.fromkeys(name for run in content["runs"] for name in run["values"]))
    fixed = ["arm", "setting", "length", "seed", "status", "error", "seconds", "unit", "wall_s", "samples", "tokens"]
    fixed += ["batches", "forward_rows", "backward_rows", "folder"]
    sd = {(arm["name"], rung["length"]): rung["sd"] for arm in content["arms"] for rung in arm["ladder"]}
    chosen = {arm["name"]: [arm["setting"], arm["settings_tried"] or None] for arm in content["arms"]}
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*fixed, "chosen_setting", "settings_tried", *names, *[f"{name} sd" for name in content["report"]]])
    for run in content["runs"]:
        values = [run["values"].get(name) for name in names]
        is_reported = run["folder"].startswith("runs/")
        spread = sd.get((run["arm"], run["length"]), {}) if is_reported else {}
        spreads = [spread.get(name) for name in content["report"]]
        writer.writerow([*[run[name] for name in fixed], *chosen[run["arm"]], *values, *spreads])
    return out.getvalue()
