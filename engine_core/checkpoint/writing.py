"""One checkpoint, written completely or not at all: by one process or several, at once or in the background.

Several write into one folder without messages between them. Each writes its files and then, atomically, a part file
that lists them. Rank 0 waits for all part files, and only then completes the folder and renames it: a process that is
killed at any moment leaves what was there before.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, CheckpointWarning
from ..files import MOST_BYTES_OF_JSON, sync, write_whole
from ..messages import join_words, warn
from ..ranks import Ranks
from .reading import (
    AVERAGE,
    AVERAGES,
    MANIFEST,
    SCHEMA,
    SHAPES,
    STATE,
    STATES,
    WEIGHTS,
    Checkpoint,
    checksum_of,
    name_of,
    open_sets,
    read_json,
)
from .tensor_file import save_slices, slice_rows

_LOOK_S = 0.02


def write_content(folder: Path, content: Checkpoint, ranks: Ranks | None = None, begun: str = "") -> None:
    """Write a checkpoint, or what one of several processes holds of it: `folder` is complete then, or as it was before.

    State and manifest are rank 0's, which completes the checkpoint once all others have written theirs.

    Args:
        ranks: the processes that write it together; None: this one writes all of it.
        begun: the name of the folder that several fill, as `Store.begin` returned it on rank 0.

    Raises:
        CheckpointError: if it can't be written, or could not be read again; the partial write is removed. On rank 0
            also if another process could not write its part, has ended or takes too long.
    """
    is_alone, ranks = ranks is None, ranks or Ranks()
    place = folder.with_name(f".{folder.name}.{os.getpid()}.new" if is_alone else begun)
    if ranks.rank:
        _write_part(place, content, ranks)
        return
    with _taking_place(place, folder):
        if is_alone:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
        manifest = {**content.manifest, "schema": SCHEMA, "shards": ranks.size}
        files = write_own(place, content, ranks)
        for other, part in _wait_for_parts(place, ranks).items():
            files |= part["files"]
            (place / _part_of(other)).unlink()
        shapes = {
            kind: {key: list(value.shape) for key, value in values.items()}
            for kind, values in _sets_of(content).items()
        }
        open_sets(place, manifest, shapes)  # what could not be read again is not a checkpoint
        for path in {(place / file).parent for file in files} - {place}:
            sync(path)
        files[STATE] = _write_json(place / STATE, {**content.state, SHAPES: shapes})
        manifest["files"] = dict(sorted(files.items()))
        _write_json(place / MANIFEST, {**manifest, "checksum": checksum_of(manifest)})


@contextmanager
def _taking_place(begun: Path, folder: Path) -> Iterator[None]:
    """Let `begun` become `folder` when the block ends; after an error `folder` is as before."""
    replaced = folder.with_name(f".{folder.name}.old")
    try:
        yield
        sync(begun)  # before the rename, or a crash may leave the new name with half of the files
        if folder.exists():  # else `replaced` is the only copy
            shutil.rmtree(replaced, ignore_errors=True)
            folder.rename(replaced)
        begun.rename(folder)
        sync(folder.parent)
    except BaseException as error:
        shutil.rmtree(begun, ignore_errors=True)
        if replaced.exists() and not folder.exists():
            replaced.rename(folder)
        if isinstance(error, (OSError, CheckpointError)):
            raise CheckpointError(f"{str(folder)!r} can't be written: {error}") from error
        raise
    shutil.rmtree(replaced, ignore_errors=True)  # only now is the new one on the disk


def _write_json(path: Path, value: Any) -> dict[str, Any]:
    """Write a file of JSON that is not too large to be read, and flush it to disk; return its entry in the manifest."""
    text = json.dumps(value, indent=1, allow_nan=False)
    if len(text) > MOST_BYTES_OF_JSON:
        raise CheckpointError(
            f"{path.name} would take {len(text)} bytes, and at most {MOST_BYTES_OF_JSON} can be read: let state_dict() "
            "return tensors where there are many numbers"
        )
    data = text.encode("ascii")
    path.write_bytes(data)
    sync(path)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def write_own(folder: Path, content: Checkpoint, ranks: Ranks) -> dict[str, Any]:
    """Write the files of one process; return their entries in the manifest."""
    written = {}
    for kind, tensors in _sets_of(content).items():
        file = name_of(kind, ranks.rank, ranks.size)
        if (parent := (folder / file).parent) != folder:  # which only rank 0 makes: given up, it is not to come back
            parent.mkdir(exist_ok=True)
        written[file] = save_slices(folder / file, tensors, ranks.rank)
    return written


def _sets_of(content: Checkpoint) -> dict[str, dict[str, Any]]:
    """Return the tensors by kind: what the state has of the average lies apart, under the names of the weights."""
    prefix = f"{AVERAGE}."
    averaged = {key.removeprefix(prefix): it for key, it in content.tensors.items() if key.startswith(prefix)}
    states = {f"{STATES}/{key}": it for key, it in content.tensors.items() if not key.startswith(prefix)}
    sets = {WEIGHTS: dict(content.model), STATES: states}
    return {**sets, AVERAGES: averaged} if content.manifest.get(AVERAGE) is not None else sets


def cut_content(content: Checkpoint, rank: int, size: int) -> Checkpoint:
    """Return a rank's slices of weights, averages and optimizers' tensors; the rest is rank 0's."""
    alike = (f"{AVERAGE}.", "optimizers.")
    model = {name: slice_rows(tensor, rank, size) for name, tensor in content.model.items()}
    tensors = {
        name: slice_rows(tensor, rank, size) if name.startswith(alike) else tensor
        for name, tensor in content.tensors.items()
    }
    return Checkpoint(model, content.state, tensors, content.manifest)


def _part_of(rank: int) -> str:
    return f"part-{rank + 1:05}.json"


def _write_part(begun: Path, content: Checkpoint, ranks: Ranks) -> None:
    try:
        _tell(begun, ranks.rank, {"files": write_own(begun, content, ranks)})
    except (OSError, CheckpointError) as error:
        why = error
        if not begun.is_dir():
            why = CheckpointError("rank 0 did not begin it, has given it up, or does not share this file system")
        told = f"the part of rank {ranks.rank} can't be written in {str(begun)!r}: {why}"
        try:
            for file in begun.rglob(f"*-{ranks.rank + 1:05}-of-*"):  # a full disk has room for the reason then
                file.unlink()
            _tell(begun, ranks.rank, {"error": f"{why}"[:500]})
        except OSError:
            if begun.is_dir():  # rank 0 waits in vain, until its time is up, and does not learn why
                warn(told, CheckpointWarning, of_rank=True)
        raise CheckpointError(told) from error


def _tell(begun: Path, rank: int, part: Mapping[str, Any]) -> None:
    write_whole(begun / _part_of(rank), json.dumps(part))


def _wait_for_parts(begun: Path, ranks: Ranks) -> dict[int, dict[str, Any]]:
    """Return the part of each other rank, when all are there."""
    parts: dict[int, dict[str, Any]] = {}
    until_s = time.monotonic() + ranks.timeout_s
    while True:
        was_lost = ranks.is_lost()  # before looking: a process that has ended may have written its part
        there = {entry.name for entry in os.scandir(begun)}
        absent = [rank for rank in range(1, ranks.size) if _part_of(rank) not in there]
        for rank in set(range(1, ranks.size)) - parts.keys() - set(absent):
            parts[rank] = read_json(begun / _part_of(rank))
            if "error" in parts[rank]:
                raise CheckpointError(f"rank {rank} can't write its part: {parts[rank]['error']}")
        if not absent:
            return parts
        if was_lost or time.monotonic() > until_s:
            why = "a process has ended" if was_lost else f"{ranks.timeout_s:g} s are up"
            late = f"rank{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent)):.80}"
            raise CheckpointError(f"{why}, and {late} had not written a part")
        time.sleep(_LOOK_S)


class BackgroundWriter:
    """Runs one function at a time in a thread of its own."""

    def __init__(self) -> None:
        self._pending: tuple[Future[None], threading.Thread] | None = None

    @property
    def is_busy(self) -> bool:
        """Is a write under way?"""
        return self._pending is not None and not self._pending[0].done()

    def start(self, write: Callable[[], None]) -> None:
        """Begin a write; wait for the previous one first, and raise what it raised."""
        self.wait()
        result: Future[None] = Future()

        def run() -> None:
            if not result.set_running_or_notify_cancel():
                return
            try:
                write()
            except BaseException as error:  # noqa: BLE001  raised where it can be caught
                result.set_exception(error)
            else:
                result.set_result(None)

        thread = threading.Thread(target=run, name="engine-core checkpoint")
        self._pending = result, thread  # before it starts: a signal handler may raise as soon as it runs
        try:
            thread.start()
        except BaseException:
            if result.cancel():  # it has not begun to write, and won't
                self._pending = None
            raise

    def wait_for_all(self, ranks: Ranks) -> None:
        """Wait until no rank writes, in turns: a write may take longer than a rank waits, of which rank 0 warns."""
        warns_at = time.monotonic() + ranks.timeout_s
        while ranks.size > 1:
            if self._pending is not None:
                wait([self._pending[0]], min(1.0, ranks.timeout_s / 2))
            writing = [f"rank {rank}" for rank, (writes,) in enumerate(ranks.table([self.is_busy])) if writes]
            if not writing:
                return
            if not ranks.rank and time.monotonic() > warns_at:
                warns_at = inf
                who = f"{join_words(writing)} {'are' if writing[1:] else 'is'}"
                warn(
                    f"{who} still writing a checkpoint after {ranks.timeout_s:g} s, and all ranks wait for that",
                    CheckpointWarning,
                )

    def raise_error(self) -> None:
        """Raise what the previous write raised, once; don't wait for one that is under way."""
        if not self.is_busy:
            self.wait()

    def wait(self) -> None:
        """Wait for the write and its thread to end, and raise what it raised, once."""
        if self._pending is not None:
            result, thread = self._pending
            error = result.exception()  # interrupted here, it stays pending for the next call
            thread.join()  # only now: interrupted by a signal handler, a join claims that the thread has ended
            self._pending = None
            if error is not None:
                raise error
