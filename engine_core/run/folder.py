"""A run's folder: which one it is, and that no other run has it. Makes no Trainer."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..arguments import path_of
from ..checkpoint import RUN_CHECKPOINTS, has_checkpoint, read_manifest, resolve
from ..config import Config
from ..errors import ArgumentError, SameRunError
from ..manifest import NAME as MANIFEST
from ..manifest import read_json
from ..randomness import check_seed
from ..ranks import Ranks
from ..trainer import new_name
from .outcome import as_json


def choose_folder(config: Config, folder: Path | str | None = None) -> Path:
    """Return where a run's files go: `folder`, or else an unused name below `runs`.

    The name is the config's `run_name`, or else its file's with date and time.

    Raises:
        SameRunError: (an ArgumentError) if `folder` holds this very run.
        ArgumentError: (a ValueError) if `folder` holds another run, or is a file.
    """
    if folder is not None:
        folder = path_of(folder)
        if not config.trainer.autoresume and any(
            os.path.lexists(folder / name) for name in ("manifest.json", "metrics.jsonl", "results.json")
        ):
            if _is_same_run(config, folder):
                has_ended = (folder / "results.json").exists()
                remedy = "has finished: train it longer" if has_ended else "has not finished: resume it"
                raise SameRunError(
                    f"{str(folder)!r} holds this very run, which {remedy} (autoresume), or choose another folder"
                )
            raise ArgumentError(
                f"{str(folder)!r} holds another run; choose another folder, remove that one, or resume it (autoresume)"
            )
        return folder
    file = Path(config.place().source.file).stem or "run"
    name = config.trainer.run_name or f"{file}-{new_name()}"
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(path for path in (Path("runs") / name for name in names) if not os.path.lexists(path))


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
def claimed(folder: Path, ranks: Ranks, *, again: bool) -> Iterator[Path | None]:
    """Claim the folder for this run and yield the manifest's path; release it if the run fails before logging.

    Rank 0 does so for all, and the others get no path. With `again` it may already be this run's.
    """
    manifest = folder / "manifest.json"
    ranks.decide(lambda: _claim(manifest, again=again))
    if ranks.rank:
        yield None
        return
    try:
        yield manifest
    except BaseException:
        if not (folder / "metrics.jsonl").exists():
            manifest.unlink(missing_ok=True)
            with suppress(OSError):  # others have files in it
                folder.rmdir()
        raise


def _claim(manifest: Path, *, again: bool) -> None:
    folder = manifest.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        manifest.open("a" if again else "x").close()
    except FileExistsError as error:
        raise ArgumentError(f"{str(folder)!r} was taken by another run; choose another folder") from error
    except OSError as error:
        raise ArgumentError(f"can't write to {str(folder)!r}: {error.strerror}; choose another folder") from error


def write_whole(file: Path, text: str) -> None:
    """Write a file that is whole, or as it was before.

    Raises:
        OSError: if it can't be written.
    """
    beside = file.with_name(f".{file.name}.new")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(file)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
