"""A checkpoint that several processes write into one folder, without messages between them.

Each writes its files and then, atomically, a part file that lists them. Rank 0 waits for all part files, and only then
completes the folder and renames it: a process that is killed at any moment leaves what was there before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import CheckpointError, CheckpointWarning
from ..files import sync
from ..messages import warn
from .files import SHARDED, Content, Share, complete, read_json, taking_place, write_json
from .pieces import cut
from .shards import SHAPES, open_sets, shapes_of, tensors_of_average, write_own
from .tensor_file import Written

_LOOK_S = 0.02
_ALIKE = "optimizers."


class Writers(NamedTuple):
    """The processes that write one checkpoint together, as one of them sees it.

    Args:
        begun: the name of the folder that they fill, as `Store.begin` returned it on rank 0.
        is_lost: is another process known to have ended? Then rank 0 waits no longer.
        timeout_s: how long rank 0 waits for the others once it has written its own files.
    """

    rank: int
    size: int
    begun: str
    is_lost: Callable[[], bool] = lambda: False
    timeout_s: float = 600.0


def cut_content(content: Content, rank: int, size: int) -> Share:
    """Return a rank's share of what all ranks hold whole: its piece of weights, averages and optimizers' tensors.

    The rest is rank 0's, since ranks may differ in it, as in their random generators.
    """
    alike = {*tensors_of_average(content.manifest).values()}
    model = {name: cut(tensor, rank, size) for name, tensor in content.model.items()}
    tensors = {
        name: cut(tensor, rank, size) if name in alike or name.startswith(_ALIKE) else tensor
        for name, tensor in content.tensors.items()
    }
    return Share(model, content.state, tensors, content.manifest)


def write_share(folder: Path, share: Share, writers: Writers) -> None:
    """Write what one process holds of a checkpoint; on rank 0, complete it once all others have written theirs.

    State and manifest are rank 0's. After its call `folder` is complete, or as it was before.

    Raises:
        CheckpointError: if it can't be written, or on rank 0, if another process could not write its share, has ended
            or takes too long, or if the pieces of all don't make up whole tensors.
    """
    begun = folder.with_name(writers.begun)
    if writers.rank:
        _write_part(begun, share, writers)
        return
    with taking_place(begun, folder):
        manifest = {**share.manifest, "schema": SHARDED, "shards": writers.size}
        files = write_own(begun, share, 0, writers.size)
        for rank, part in _wait_for_parts(begun, writers).items():
            files |= {name: Written(file["bytes"], file["sha256"]) for name, file in part["files"].items()}
            (begun / _part_of(rank)).unlink()
        shapes = shapes_of(share)
        open_sets(begun, manifest, shapes)  # what could not be read again is not a checkpoint
        for path in {(begun / name).parent for name in files} - {begun}:
            sync(path)
        complete(begun, {**share.state, SHAPES: shapes}, manifest, files)


def _part_of(rank: int) -> str:
    return f"part-{rank + 1:05}.json"


def _write_part(begun: Path, share: Share, writers: Writers) -> None:
    try:
        files = write_own(begun, share, writers.rank, writers.size)
        _tell(begun, writers.rank, {"files": {name: file.as_json() for name, file in files.items()}})
    except (OSError, CheckpointError) as error:
        why = error
        if not begun.is_dir():
            why = CheckpointError("rank 0 did not begin it, has given it up, or does not share this file system")
        told = f"the share of rank {writers.rank} can't be written in {str(begun)!r}: {why}"
        try:
            for file in begun.rglob(f"*-{writers.rank + 1:05}-of-*"):  # a full disk has room for the reason then
                file.unlink()
            _tell(begun, writers.rank, {"error": f"{why}"[:500]})
        except OSError:
            if begun.is_dir():  # rank 0 waits in vain, until its time is up, and does not learn why
                warn(told, CheckpointWarning, of_rank=True)
        raise CheckpointError(told) from error


def _tell(begun: Path, rank: int, part: dict[str, Any]) -> None:
    beside = begun / f".{_part_of(rank)}"
    write_json(beside, part)
    beside.replace(begun / _part_of(rank))


def _wait_for_parts(begun: Path, writers: Writers) -> dict[int, dict[str, Any]]:
    """Return the part of each other rank, when all are there."""
    parts: dict[int, dict[str, Any]] = {}
    until_s = time.monotonic() + writers.timeout_s
    while True:
        was_lost = writers.is_lost()  # before looking: a process that has ended may have written its part
        there = {entry.name for entry in os.scandir(begun)}
        absent = [rank for rank in range(1, writers.size) if _part_of(rank) not in there]
        for rank in set(range(1, writers.size)) - parts.keys() - set(absent):
            parts[rank] = read_json(begun / _part_of(rank))
            if "error" in parts[rank]:
                raise CheckpointError(f"rank {rank} can't write its share: {parts[rank]['error']}")
        if not absent:
            return parts
        if was_lost or time.monotonic() > until_s:
            why = "a process has ended" if was_lost else f"{writers.timeout_s:g} s are up"
            ranks = f"rank{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent)):.80}"
            raise CheckpointError(f"{why}, and {ranks} had not written a share")
        time.sleep(_LOOK_S)
