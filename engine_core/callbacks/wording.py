"""Facts of a run in words, line by line, as the screen shows them. Names are escaped, nothing is cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..messages import aligned, counted, enumerated, escaped


def header_lines(header: Mapping[str, Any]) -> list[str]:
    """Return the lines of a `start` or a `resume`, see `engine_core.callbacks.facts`."""
    length, sizes = header["duration"], header["parameters"]
    resumed = f", resumed at step {header['step']:,}" if header.get("kind") == "resume" else ""
    values = {
        "model": _said(header["model"]),
        "parameters": "?"
        if sizes is None
        else f"{_count(sizes['trainable'])} trainable, {_count(sizes['all'])} in all",
        "device": _said(header["device"]),
        "precision": header["precision"],
        **({} if (ranks := header["ranks"]) is None else {"ranks": _ranks(ranks)}),
        "data": _size(header["data"]),
        **{f"eval {escaped(label)}": _size(size) for label, size in header["eval"].items()},
        "algorithms": ", ".join(map(_algorithm, header["algorithms"])) or "none",
        "optimizer": ", ".join(map(_optimizer, header["optimizer"])) or "none",
        "duration": f"{counted(length['steps'], 'step', 'steps')} ({_said(length['max_duration'])}){resumed}",
        "seed": _said(header["seed"]),
        "folder": "none" if header["folder"] is None else escaped(header["folder"]),
    }
    return aligned(values.items())


def row(evaluation: Mapping[str, Any], position: str) -> str:
    """Return the line of an evaluation; a `*` marks a value that is better than all before.

    Example:
        >>> found = {"seconds": 12.3, "train_loss": 0.25, "metrics": {"eval/loss": 0.5}, "improved": ["eval/loss"]}
        >>> row(found, "epoch 1/10")
        'epoch 1/10  train/loss 0.25  eval/loss 0.5*  0:12'
    """
    pairs = [position]
    if "train_loss" in evaluation:
        pairs.append(f"train/loss {evaluation['train_loss']:.4g}")
    for name, value in evaluation["metrics"].items():
        pairs.append(f"{escaped(name)} {value:.4g}{'*' if name in evaluation['improved'] else ''}")
    return "  ".join([*pairs, clock(evaluation["seconds"])])


def clock(seconds: float) -> str:
    """Return seconds as minutes and seconds, with hours if there are any.

    Example:
        >>> clock(75), clock(3675)
        ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _said(value: object) -> str:
    return "?" if value is None else escaped(str(value))


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _ranks(ranks: Mapping[str, Any]) -> str:
    said, rows = f"{ranks['number']} ({ranks['parallel']})", ranks["rows"]
    if rows is None:
        return said
    same = len({*rows}) == 1
    each = f"{counted(rows[0], 'row', 'rows')} on each" if same else f"{enumerated([*map(str, rows)], most=8)} rows"
    return f"{said}: global batch {sum(rows)} = {each}"


def _size(size: Mapping[str, int | None]) -> str:
    return f"{counted(size['samples'], 'sample', 'samples')}, {counted(size['batches'], 'batch', 'batches')}"


def _algorithm(entry: Mapping[str, Any]) -> str:
    name = escaped(entry["algorithm"])
    return name if entry["distribution"] is None else f"{name} ({entry['distribution']} {escaped(entry['version'])})"


def _optimizer(entry: Mapping[str, Any]) -> str:
    return f"{escaped(entry['name'])} (lr {', '.join(f'{lr:g}' for lr in entry['lr'])})"
