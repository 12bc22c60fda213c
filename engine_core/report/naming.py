"""What runs are called on a page: by their folders, and by more of the path where folders are called alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from .reading import RunData


def name_runs(runs: Sequence[RunData]) -> list[tuple[str, RunData]]:
    """Return each run with its name; one that is given twice is there once."""
    once = list({run.folder.resolve(): run for run in runs}.values())
    return list(zip(names_of([run.folder for run in once]), once, strict=True))


def names_of(folders: Sequence[Path]) -> list[str]:
    """Return a name for each folder, the shortest end of its path that no other has.

    Example:
        >>> names_of([Path("/a/x/run"), Path("/a/y/run"), Path("/a/other")])
        ['x/run', 'y/run', 'other']
    """
    parts = [folder.resolve().parts for folder in folders]
    lengths = [1] * len(parts)
    while True:
        names = ["/".join(path[-length:]) for path, length in zip(parts, lengths, strict=True)]
        alike = {name for name, count in Counter(names).items() if count > 1}
        longer = [
            min(length + (name in alike), max(1, len(path)))
            for path, length, name in zip(parts, lengths, names, strict=True)
        ]
        if longer == lengths:
            return names
        lengths = longer
