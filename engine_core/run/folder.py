"""A run's folder: which one it is, that no other run has it, and what is told in it. Makes no Trainer."""

from __future__ import annotations

import itertools
import json
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..arguments import path_of
from ..callbacks.reporter import RunReporter, as_line
from ..changes import changes, leaves
from ..checkpoint import MODEL, RUN_CHECKPOINTS, has_checkpoint, read_manifest, resolve
from ..config import Config
from ..errors import ArgumentError, SameRunError
from ..files import MOST_BYTES_OF_JSON, cannot_write, read_json, why_not, write_new, write_whole
from ..logger import Logger
from ..loggers.run_files import RunFiles
from ..manifest import NAME as MANIFEST
from ..randomness import check_seed
from ..ranks import Ranks
from ..state import State
from ..trainer import new_name
from .result import AVERAGE, Ending, as_json

_RESULTS = ("results.json", MODEL, AVERAGE)
FILES = (MANIFEST, "metrics.jsonl", "metrics.csv", *_RESULTS)
"""What a run writes into its folder, beside checkpoints and logged files."""
OWN_KINDS = ("epoch", "progress", "warning", "timing")
"""The kinds of events that the file has and `train --json` does not print."""
PROGRESS_EVERY = 1000
"""How many batches lie between two lines of progress."""
MOST_WARNINGS = 200


def choose_folder(config: Config, folder: Path | str | None = None) -> Path:
    """Return where a run's files go: `folder`, or else an unused name below `runs`.

    The name is the config's `run_name`, or else its file's with date and time.

    Raises:
        SameRunError: (an ArgumentError) if `folder` holds this very run.
        ArgumentError: (a ValueError) if `folder` holds another run, or a file that no run wrote in the place of one.
    """
    if folder is not None:
        folder = path_of(folder)
        _check_folder(config, folder)
        return folder
    file = Path(config.place().source.file).stem or "run"
    name = config.trainer.run_name or f"{file}-{new_name()}"
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(path for path in (Path("runs") / name for name in names) if not os.path.lexists(path))


def _check_folder(config: Config, folder: Path) -> None:
    """Raise unless the run may write into the folder."""
    autoresume, remedy = config.trainer.autoresume, "choose another folder, or remove that one"
    if problem := why_not(folder / MANIFEST, MOST_BYTES_OF_JSON):
        raise ArgumentError(f"{str(folder)!r} can't be a run's folder: {problem}; {remedy}")
    given = [entry.args.get("folder") for entry in config.callbacks]  # where savers save, as far as the config says it
    savers = [folder / RUN_CHECKPOINTS, *(path_of(place) for place in given if isinstance(place, (str, Path)))]
    resumes = autoresume and any(map(has_checkpoint, savers))
    if (saved := _manifest_in(folder)) is None:
        names = _RESULTS if resumes else FILES  # a program's run has checkpoints and logs, and neither of the others
        if there := [name for name in names if os.path.lexists(folder / name)]:
            what = f"is not the folder of a run, and holds {there[0]!r}, which is left as it is"
            raise ArgumentError(f"{str(folder)!r} {what}; {remedy}")
        return
    is_same, has_ended = _is_same(config, saved.get("config")), os.path.lexists(folder / "results.json")
    if resumes or (autoresume and is_same and not has_ended):  # it ended before it was saved
        return
    if is_same and not autoresume:
        way = "has finished: train it longer" if has_ended else "has not finished: resume it"
        raise SameRunError(f"{str(folder)!r} holds this very run, which {way} (autoresume), or choose another folder")
    what = "this very run, which has finished and left no checkpoint" if is_same else "another run"
    raise ArgumentError(f"{str(folder)!r} holds {what}; {remedy}{'' if autoresume else ', or resume it (autoresume)'}")


def _manifest_in(folder: Path) -> dict[str, Any] | None:
    """Return the manifest, if this is the folder of a run."""
    with suppress(ArgumentError):
        told = read_json(folder / MANIFEST)
        if isinstance(told, dict) and type(told.get("schema")) is int and "run_name" in told:
            return told
    return None


def _is_same(config: Config, saved: Any) -> bool:
    """Is a saved config this one, but for how the run is resumed, its name, and a seed that it drew?"""
    here = json.loads(as_json(config.model_dump(exclude_unset=True)))
    other = {"autoresume", "load_path", "load_weights_only", "load_strict", "load_changed", "run_name"}
    other |= {"seed"} if config.trainer.seed is None else set()
    ignored = {"trainer", *(f"trainer.{name}" for name in other)}
    return all(change.path in ignored for change in changes(dict(leaves(saved)), dict(leaves(here))))


def settle(config: Config, folder: Path) -> dict[str, Any]:
    """Return a seed and a name for the config, so that the manifest's config repeats this run.

    A resumed run makes model and data with the saved run's seed.
    """
    settings, own = config.trainer, folder / RUN_CHECKPOINTS
    path = own if settings.autoresume and has_checkpoint(own) else settings.load_path
    seed = settings.seed
    if seed is None and path is not None and not settings.load_weights_only:
        saved = read_manifest(resolve(path_of(path))).get("seed")
        seed = saved if isinstance(saved, int) else None
    return {"seed": check_seed(seed), "run_name": settings.run_name or folder.name}


class FolderReporter(RunReporter):
    """Begins an attempt in a run's folder, and writes its events among what it logs; those of earlier attempts stay.

    The file has further kinds: `epoch` at each EPOCH_END and `progress` every 1,000 batches, with `runs`, how often
    each algorithm ran at each event since the line before; `warning`, with `category` and `message`; and `timing`, with
    the sums of a run that did not finish.

    Args:
        files: what writes the events, counts the runs, has the clock, and says where the folder is.
        hand_on: receives the lines that `train --json` prints.
    """

    def __init__(self, files: RunFiles, hand_on: Callable[[str], object] = lambda _: None) -> None:
        super().__init__(hand_on)
        self._files, self._folder = files, files.folder
        self._described: str | None = None
        self._counted = Counter[str]()
        self._warned = set[str]()
        self._state = State()
        self.has_begun = False

    @property
    def seconds(self) -> float:
        """Return the time since the first attempt's INIT, in seconds, without the time between attempts."""
        return self._files.clock_s

    @contextmanager
    def claiming(self, ranks: Ranks, described: str, *, again: bool) -> Iterator[None]:
        """Claim the folder for this run with its manifest, and tell of each warning that is shown in the block.

        Rank 0 claims it for all. With `again` it may already be this run's. If the run fails before it has logged, a
        manifest that is new goes again.
        """
        is_new, shown = ranks.decide(lambda: _claim(self._folder, described, again=again)), warnings.showwarning
        self._described = None if is_new else described

        def show(message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
            self._note(category.__name__, str(message))
            shown(message, category, *place, **more)

        warnings.showwarning = show
        try:
            yield
        except BaseException:
            if is_new and not ranks.rank and not (self._folder / "metrics.jsonl").exists():
                with suppress(OSError):  # others have files in it
                    (self._folder / MANIFEST).unlink(missing_ok=True)
                    self._folder.rmdir()
            raise
        finally:
            if warnings.showwarning is show:
                warnings.showwarning = shown

    def begin(self) -> None:
        """Let the manifest take the place of a former one, and remove what that attempt left: training goes past it."""
        self.has_begun = True
        try:
            if self._described is not None:  # the former one stays, as `manifest-0.json`, `manifest-1.json`, ...
                names = (self._folder / f"manifest-{number}.json" for number in itertools.count())
                former = next(file for file in names if not os.path.lexists(file))
                write_whole(former, (self._folder / MANIFEST).read_bytes())
                write_whole(self._folder / MANIFEST, self._described)
            for name in _RESULTS:
                (self._folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise cannot_write(error, f"can't write to {str(self._folder)!r}: {error}") from error

    def fit_start(self, state: State, logger: Logger) -> None:
        """Begin, tell what the run is, once, and count the algorithms' runs from here."""
        self.begin()  # savers have made sure that no other run is here
        self._state, self._counted = state, Counter(self._files.runs)
        super().fit_start(state, logger)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Take the loss of the batch, and tell now and then how far the run is."""
        super().batch_end(state, logger)
        if not state.timestamp.batch % PROGRESS_EVERY:
            self._emit_runs("progress", state)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Tell that an epoch is complete."""
        self._emit_runs("epoch", state)

    def emit(self, event: dict[str, Any]) -> None:
        """Write the event, and hand it on if it is not the file's own."""
        line = as_line(event)
        if self._started_s is not None:  # else the folder may be another run's
            self._files.write_event(line, is_last="status" in event)
        if event["kind"] not in OWN_KINDS:
            self._write(line)

    def end_with(self, ending: Ending, exit_code: int | None = None, resume: str | None = None) -> None:
        """Write how the run ended, once, after the engine is closed.

        Args:
            exit_code: of the command; None: there is none.
            resume: the command that resumes the run.
        """
        left = {"model": ending.model, "average": ending.average, "checkpoint": ending.checkpoint}
        is_over = ending.status == "finished" or ending.checkpoint is None
        self.end(ending.status, exit_code, folder=ending.folder, **left, resume=None if is_over else resume)

    def _note(self, category: str, message: str) -> None:
        if self._started_s is None or message in self._warned or len(self._warned) > MOST_WARNINGS:
            return
        if len(self._warned) == MOST_WARNINGS:
            category, message = "Warning", f"there were more than {MOST_WARNINGS} warnings; the others are left out"
        self._warned.add(message)
        self.emit({**self.event("warning", self._state), "category": category, "message": message})

    def _emit_runs(self, kind: str, state: State) -> None:
        runs = self._files.runs
        self.emit({**self.event(kind, state), "runs": dict(runs - self._counted)})
        self._counted = Counter(runs)


def _claim(folder: Path, described: str, *, again: bool) -> bool:
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if again and os.path.lexists(folder / MANIFEST):
            return False
        write_new(folder / MANIFEST, described)
    except FileExistsError as error:
        raise ArgumentError(f"{str(folder)!r} was taken by another run; choose another folder") from error
    except OSError as error:
        with suppress(OSError):
            if is_new:
                folder.rmdir()
        message = f"can't write to {str(folder)!r}: {error.strerror}; choose another folder"
        raise cannot_write(error, message) from error
    return True
