"""Try a config before a long training: everything is made, one batch of each loader is run, and nothing stays."""

from __future__ import annotations

import copy
import itertools
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from ..callback import saver_folders
from ..callbacks.checkpoint_saver import CheckpointSaver
from ..callbacks.reporter import header_of
from ..checkpoint import read_content, resolve
from ..config import Config
from ..errors import ArgumentError
from ..trainer import ending_together
from .build import assemble, join_ranks, make_parts, savers_of
from .folder import choose_folder
from .result import write_model


@dataclass(frozen=True)
class Trial:
    """What a trial found: the header of the run, the evaluation loaders, the size of a checkpoint, and its time."""

    header: dict[str, Any]
    evaluated: tuple[str, ...]
    checkpoint_bytes: int
    seconds: float


@ending_together
def try_config(config: Config, folder: Path | str | None = None) -> Trial:
    """Make everything that `config` describes, run one batch of training and of each evaluation loader, save and read.

    A checkpoint and the weights are written to a temporary folder and read. Loggers are made and get nothing; savers
    and what measures the timing are made and stay out. A stream loses the batches that are read from it.

    Args:
        folder: where the run is going to write, which has to be free.

    Raises:
        ConfigError: (a ValueError) with file, line, key and remedy for what can't be made.
        EngineError: for what the engine refuses. Exceptions of the run's own code pass through.
    """
    started_s = time.perf_counter()
    ranks = join_ranks(config)
    folder = Path(ranks.decide(lambda: _free(config, folder)))
    parts = make_parts(config)
    savers = savers_of(config, folder, parts["callbacks"])
    with tempfile.TemporaryDirectory(prefix="engine-core-") as own:
        place = ranks.first(own)
        saver = CheckpointSaver(place, "1ba", on_error="stop")
        kept = [each for each in parts["callbacks"] if not hasattr(each, "timing") and not saver_folders([each])]
        whole = parts["eval_dataloader"]
        loaders = {label: one_batch(loader) for label, loader in whole.items()}
        parts |= {"callbacks": [*kept, saver], "loggers": [], "eval_dataloader": loaders, "progress_bar": False}
        with assemble(config, {**parts, "autoresume": False}, folder) as trainer:
            for real in savers:
                real.init(trainer.state, trainer.logger)  # refuses an interval that can't be counted
            trainer.state.evaluators = whole
            header = header_of(trainer.state)
            trainer.state.evaluators = loaders
            trainer.fit("1ba")
            write_model(trainer, Path(place))
            size = ranks.decide(lambda: _size_of(resolve(saver.written()[-1])))
    return Trial(header, tuple(loaders), size, time.perf_counter() - started_s)


def _free(config: Config, folder: Path | str | None) -> str:
    """Return where the run is going to write, if that folder, or the nearest one around it, can be written to."""
    chosen = choose_folder(config, folder)
    there = next(path for path in (chosen.absolute(), *chosen.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryDirectory(dir=there):
            return str(chosen)
    except OSError as error:
        raise ArgumentError(f"can't write to {str(chosen)!r}: {error.strerror} in {str(there)!r}") from error


def _size_of(checkpoint: Path) -> int:
    """Return the bytes of a checkpoint that can be read."""
    read_content(checkpoint)
    return sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file())


class OneBatch:
    """The first batch of a loader, whose workers end with it, or of a sampler of batches."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.sampler = loader, getattr(loader, "sampler", None)

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self.loader, 1)


def one_batch(loader: Any) -> Any:
    """Return a loader of the first batch alone, which several ranks deal as they deal the loader."""
    if type(loader) in (list, tuple):
        return loader[:1]
    if type(loader).__iter__ is not DataLoader.__iter__ or loader.batch_sampler is None:
        return OneBatch(loader)
    first = copy.copy(loader)
    vars(first)["batch_sampler"] = OneBatch(loader.batch_sampler)  # a DataLoader forbids setting it
    return first
