"""Send what a run logs to TensorBoard, which is imported when a fit starts. Knows no Trainer."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine_core import Logger, LoggerDestination, State
from engine_core.arguments import check_whole, path_of
from engine_core.callback import continues_itself
from engine_core.errors import ArgumentError
from engine_core.loggers import Waiting, numbers, orders

from .event_files import PNG, EventFiles, Item


class TensorBoard(LoggerDestination):
    """Writes each logged number to TensorBoard's event files, once at its step, however often the run is resumed.

    They are written every few seconds, before each checkpoint and at the end; while they can't be, the latest wait.

    Args:
        folder: None: `tensorboard` in the run's folder, or `tensorboard/<run_name>` if the run has none.
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        if "://" in str(folder):
            raise ArgumentError(f"folder={folder!r} has to be on a disk, since a resumed run cuts the files in it")
        self.folder = None if folder is None else path_of(folder)
        self._begin_run()

    def _begin_run(self) -> None:
        self._waiting = Waiting[Item]("TensorBoard", self._write)
        self._files: EventFiles | None = None
        self._parameters: dict[str, Any] = {}
        self._saved: Mapping[str, Any] = {}
        self._starts_over = False

    def init(self, state: State, logger: Logger) -> None:
        """Begin with nothing, as each run does."""
        self._begin_run()

    def fit_start(self, state: State, logger: Logger) -> None:
        """Open the folder, and cut the files of a resumed run, so that nothing is in them twice.

        Raises:
            ArgumentError: (a ValueError) if the folder can't be written to.
        """
        if self._files is not None:
            return
        folder = self._folder_in(state).absolute()  # the working directory may change
        try:
            files = EventFiles(folder)
            continues = files.cut(self._saved.get("files", {}), else_delete=self._starts_over)
            if not continues:
                files.describe(self._parameters, orders(logger), state.timestamp.batch)
            files.write([])
        except OSError as error:
            raise ArgumentError(
                f"TensorBoard can't write in {str(folder)!r} ({error}); give it a folder that you can write to"
            ) from error
        self._files = files
        self._waiting.open(Item(*item) for item in (self._saved.get("due", ()) if continues else ()))
        self._waiting.flush()

    def _folder_in(self, state: State) -> Path:
        if self.folder is not None or state.folder is not None:
            return self.folder or Path(state.folder or "", "tensorboard")
        saved = self._saved.get("run_name") if continues_itself(state) else None
        self._parameters["run_name"] = name = saved or state.run_name or "run"
        return Path("tensorboard", re.sub(r"[^\w.-]|^\.", "_", name))

    def start_over(self) -> None:
        """Let the next fit delete what an earlier attempt wrote, as it is logged again."""
        self._starts_over = True

    def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Keep them until the fit starts."""
        self._parameters.update(hyperparameters)

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Let the numbers wait; NaN and infinities are numbers too."""
        step, now = _checked(step), time.time()
        self._waiting.add(*[Item(step, now, name, float(value)) for name, value in numbers(metrics).items()])

    def log_file(self, name: str, content: bytes | str, step: int) -> None:
        """Let a PNG wait to be an image, and anything else to be text that TensorBoard shows as it is."""
        whole = content.encode() if isinstance(content, str) else content
        if name.endswith(".png") and not whole.startswith(PNG):
            raise ArgumentError(f"{name!r} is not a PNG")
        self._waiting.add(Item(_checked(step), time.time(), name, whole), weight=500)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Write what waits."""
        self._waiting.flush()

    def state_dict(self) -> dict[str, Any]:
        """Write what waits, and return how far the files are; numbers that can't be written are kept with that."""
        if self._files is None:
            return dict(self._saved)
        due = [[*item] for item in self._waiting.kept() if isinstance(item.content, float)]
        return {"files": self._files.sizes(), "due": due, "run_name": self._parameters.get("run_name")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next fit cut the files, as the resumed run logs again what came after the checkpoint."""
        files = state.get("files", {})
        if not isinstance(files, Mapping) or not all(type(size) is int and size >= 0 for size in files.values()):
            raise ArgumentError(f"files={files!r:.80} in the state of TensorBoard is not something it saved")
        self._saved = state

    def close(self, state: State | None = None, logger: Logger | None = None) -> None:
        """Write what waits; a warning says how much can't be written and is lost."""
        self._waiting.close()
        if self._files is not None:
            self._files.close()
        self._begin_run()

    def _write(self, items: list[Item]) -> None:
        assert self._files is not None
        self._files.write(items)


def _checked(step: int) -> int:
    return check_whole("step", step, "[-9e18, 9e18]", "the number of complete batches")  # of 64 bits
