"""A run's folder: which one it is, and that no other run has it. Makes no Trainer."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..arguments import path_of
from ..checkpoint import RUN_CHECKPOINTS, has_checkpoint, read_manifest, resolve
from ..config import Config
from ..errors import ArgumentError, SameRunError
from ..files import MOST_BYTES_OF_JSON, cannot_write, read_json, why_not, write_new, write_whole
from ..manifest import NAME as MANIFEST
from ..randomness import check_seed
from ..ranks import Ranks
from ..trainer import new_name
from .outcome import as_json

_RESULTS = ("results.json", "model.safetensors", "model-average.safetensors")
FILES = (MANIFEST, "metrics.jsonl", "metrics.csv", *_RESULTS)
"""What a run writes into its folder, beside checkpoints and logged files."""


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
    resumes = config.trainer.autoresume and any(map(has_checkpoint, _saver_folders(config, folder)))
    if problem := why_not(folder / MANIFEST, MOST_BYTES_OF_JSON):
        raise ArgumentError(f"{str(folder)!r} can't be a run's folder: {problem}; choose another folder, or remove it")
    if not _is_run(folder):
        names = _RESULTS if resumes else FILES  # a program's run has checkpoints and logs, and neither of the others
        there = next((folder / name for name in names if os.path.lexists(folder / name)), None)
        if there is not None:
            raise ArgumentError(
                f"{str(there)!r} is there, and {str(folder)!r} is not the folder of a run: the file is left as it is; "
                "choose another folder, or remove it"
            )
        return
    is_same, has_ended = _is_same_run(config, folder), os.path.lexists(folder / "results.json")
    if resumes or (config.trainer.autoresume and is_same and not has_ended):  # it ended before it was saved
        return
    if not is_same or config.trainer.autoresume:
        why = "this very run, which has finished and left no checkpoint" if is_same else "another run"
        remedy = "" if config.trainer.autoresume else ", or resume it (autoresume)"
        raise ArgumentError(f"{str(folder)!r} holds {why}; choose another folder, remove that one{remedy}")
    remedy = "has finished: train it longer" if has_ended else "has not finished: resume it"
    raise SameRunError(f"{str(folder)!r} holds this very run, which {remedy} (autoresume), or choose another folder")


def _is_run(folder: Path) -> bool:
    """Is this the folder of a run, as its manifest says?"""
    try:
        told = read_json(folder / MANIFEST)
    except ArgumentError:
        return False
    return isinstance(told, dict) and type(told.get("schema")) is int and "run_name" in told


def _saver_folders(config: Config, folder: Path) -> list[Path]:
    """Return where the run's savers save, as far as the config says it."""
    given = [entry.args.get("folder") for entry in config.callbacks]
    return [folder / RUN_CHECKPOINTS, *(path_of(place) for place in given if isinstance(place, (str, Path)))]


def _is_same_run(config: Config, folder: Path) -> bool:
    """Does the folder's manifest have this config, but for how the run is resumed, its name, and a seed it drew?"""
    try:
        saved = read_json(folder / MANIFEST)["config"]
        there, here = (dict(values) for values in (saved, json.loads(as_json(config.model_dump(exclude_unset=True)))))
        other = {"seed"} if config.trainer.seed is None else set()
        for values in (there, here):
            kept = values.pop("trainer", {}).items()
            values["trainer"] = {k: v for k, v in kept if k not in _RESUMES | other}
    except (ArgumentError, LookupError, TypeError, ValueError, AttributeError):  # a damaged one is another run's
        return False
    return there == here


_RESUMES = {"autoresume", "load_path", "load_weights_only", "load_strict", "load_changed", "run_name"}


def settle(config: Config, folder: Path) -> Config:
    """Return the config with a name and a seed, so that the manifest's config repeats this run.

    A resumed run makes model and data with the saved run's seed.
    """
    settings, own = config.trainer, folder / RUN_CHECKPOINTS
    path = own if settings.autoresume and has_checkpoint(own) else settings.load_path
    seed = settings.seed
    if seed is None and path is not None and not settings.load_weights_only:
        saved = read_manifest(resolve(path_of(path))).get("seed")
        seed = saved if isinstance(saved, int) else None
    settled = {"seed": check_seed(seed), "run_name": settings.run_name or folder.name}
    return config.model_copy(update={"trainer": settings.model_copy(update=settled)})


@contextmanager
def claimed(folder: Path, ranks: Ranks, described: str, *, again: bool) -> Iterator[Callable[[], None]]:
    """Claim the folder for this run, and yield what begins the attempt there: it writes the manifest over a former one.

    Rank 0 does so for all. With `again` the folder may already be this run's. If the run fails before it has logged, a
    manifest that is new goes again.
    """
    is_new = ranks.decide(lambda: _claim(folder, described, again=again))
    try:
        yield (lambda: None) if is_new else (lambda: _describe_attempt(folder, described))
    except BaseException:
        if is_new and not ranks.rank and not (folder / "metrics.jsonl").exists():
            with suppress(OSError):  # others have files in it
                (folder / MANIFEST).unlink(missing_ok=True)
                folder.rmdir()
        raise


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


def _describe_attempt(folder: Path, described: str) -> None:
    """Write the manifest of a further attempt, and keep the one before as `manifest-0.json`, `manifest-1.json`, ..."""
    names = (folder / f"manifest-{number}.json" for number in itertools.count())
    former = next(file for file in names if not os.path.lexists(file))
    write_whole(former, (folder / MANIFEST).read_bytes())
    write_whole(folder / MANIFEST, described)
