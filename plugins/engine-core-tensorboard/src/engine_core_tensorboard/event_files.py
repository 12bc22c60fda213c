"""TensorBoard's event files in one folder: cut, and written all or nothing. Knows no run; imports on first use."""

from __future__ import annotations

import importlib
import itertools
import operator
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

ENDING = ".engine-core"
"""Only files with this ending are ever cut or deleted."""
PNG = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
"""How many channels a PNG's colour type has."""


class Item(NamedTuple):
    """A number or a file, logged at a step and at a time in seconds."""

    step: int
    at: float
    name: str
    content: float | bytes


class EventFiles:
    """The files of this engine's runs in a folder, and the one that is written now.

    Raises:
        OSError: if nothing can be written there.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        self.folder = folder
        self._writer: Any = None
        self._file, self._size = Path(), 0

    def sizes(self) -> dict[str, int]:
        """Return the size of each file by its name."""
        files = self.folder.glob(f"*{ENDING}")
        return {file.name: file.stat().st_size for file in files if file.is_file() and not file.is_symlink()}

    def cut(self, saved: Mapping[str, int], *, else_delete: bool) -> bool:
        """Cut the files to these sizes and delete the others; return if any of them is there."""
        there = self.sizes()
        has_saved = not saved.keys().isdisjoint(there)
        for name, size in there.items() if has_saved or else_delete else ():
            if name not in saved:
                (self.folder / name).unlink()
            elif size > saved[name]:
                os.truncate(self.folder / name, saved[name])
        return has_saved

    def describe(self, parameters: Mapping[str, Any], orders: Mapping[str, str], step: int) -> None:
        """Write hyperparameters, and the order of the algorithms at each event as text."""
        summary: Any = importlib.import_module("torch.utils.tensorboard.summary")
        given = {_text(name): value for name, value in parameters.items() if value is not None}
        plain = {name: value if _is_plain(value) else _text(value) for name, value in given.items()}
        writer = self._open()
        for part in summary.hparams(plain, {}):
            writer.file_writer.add_summary(part)
        for event, order in orders.items():
            writer.add_text(f"order/{event}", _text(order), step)

    def write(self, items: list[Item]) -> None:
        """Write these: all, or else the file stays as it was."""
        protocol: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        try:
            writer = self._open()
            self._file.stat()  # where the file is gone, its thread would print a traceback
            for (step, at), together in itertools.groupby(items, key=operator.itemgetter(0, 1)):
                summary = protocol.Summary()
                for item in together:
                    _put(summary, _text(item.name), item.content)
                writer.file_writer.add_summary(summary, step, at)
            writer.flush()
            self._size = self._file.stat().st_size
        except BaseException:  # Ctrl-C too: a part may be in the file
            self.close()
            with suppress(OSError):
                os.truncate(self._file, self._size)
            raise

    def close(self) -> None:
        """Close the file; what is written later goes into another one."""
        if self._writer is not None:
            with suppress(Exception):
                self._writer.close()
        self._writer = None

    def _open(self) -> Any:
        if self._writer is None:
            tensorboard: Any = importlib.import_module("torch.utils.tensorboard")  # takes long
            before = self.sizes()
            try:
                self._writer = tensorboard.SummaryWriter(str(self.folder), max_queue=1_000, filename_suffix=ENDING)
            finally:
                for name in self.sizes().keys() - before.keys():
                    self._file, self._size = self.folder / name, self.sizes()[name]
                    if self._writer is None:  # the disk is full
                        self._file.unlink()
        return self._writer


def _put(summary: Any, name: str, content: float | bytes) -> None:
    """Add a number, an image or a text to a summary; an image as it is, without PIL."""
    if isinstance(content, float):
        summary.value.add(tag=name, simple_value=content)
    elif content.startswith(PNG):
        width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
        image = {"width": width, "height": height, "colorspace": CHANNELS.get(content[25], 4)}
        summary.value.add(tag=name, image={**image, "encoded_image_string": content})
    else:
        lines = content.decode(errors="replace").splitlines(keepends=True)
        made: Any = importlib.import_module("torch.utils.tensorboard.summary")
        summary.MergeFrom(made.text(name, "".join(f"    {line}" for line in lines)))  # code, in Markdown


def _is_plain(value: Any) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**53)


def _text(value: Any) -> str:
    return str(value).encode("utf-8", "replace").decode()  # half of a surrogate pair can't be written
