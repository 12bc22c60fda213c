"""The last lines of a training: what happened, what was saved and where, and the command that resumes it."""

from __future__ import annotations

import os
import shlex
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import RankError

if TYPE_CHECKING:
    from ..run import Ending

NOT_WHOLE, PAUSED = 74, 75
"""EX_IOERR and EX_TEMPFAIL of sysexits.h: something could not be written; try again later."""

_GIVEN, _LINES, _SILENT = "engine_core.given", "engine_core.last_lines", "engine_core.silent"
_PLACES = ("--out", "--load")


class RememberingCommand(click.Command):
    """Keeps its arguments as they were given, in `context.meta`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep them, and parse them."""
        ctx.meta[_GIVEN] = list(args)
        return super().parse_args(ctx, args)


def resume_command(context: click.Context, folder: Path) -> str:
    """Return the command as it was given, quoted for a shell, with what makes it resume the run in the folder."""
    given: list[str] = context.meta[_GIVEN]
    end = given.index("--") if "--" in given else len(given)  # what follows are not options
    words = [*_without_places(given[:end]), "--out", str(folder), "--autoresume", *given[end:]]
    return f"{_launcher(context)} {shlex.join(words)}"


def _launcher(context: click.Context) -> str:
    """Return how the command was started: by torchrun, or as it is."""
    size, here = (os.environ.get(name, "1") for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if "TORCHELASTIC_RUN_ID" not in os.environ or size == "1":
        return context.command_path
    nodes = "" if size == here else f"--nnodes {int(size) // int(here)} "
    return f"torchrun {nodes}--nproc-per-node {here} -m engine_core {context.info_name}"


def is_first() -> bool:
    """Is this rank 0, which prints and writes for all?"""
    return os.environ.get("RANK", "0") == "0"


def _without_places(given: Sequence[str]) -> Iterator[str]:
    words = iter(given)
    for word in words:
        if word in _PLACES:
            next(words, None)
        elif word != "--autoresume" and not word.startswith(tuple(f"{name}=" for name in _PLACES)):
            yield word


def is_first_here() -> bool:
    """Is this the first of the run's processes on this machine?"""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def is_told_elsewhere(error: Exception) -> bool:
    """Is an error that ends this process shown although it does not print it?

    The first process prints its own error, which mostly is the same, or that it ends because of this one. What this
    one alone has before the processes know of each other is in torchrun's summary: it is written down for that here.
    """
    if isinstance(error, RankError):  # a rank that is gone can't tell, and the first one may be that rank
        return " failed: " in str(error)
    if (file := os.environ.get("TORCHELASTIC_ERROR_FILE")) is None:
        return False
    if not Path(file).exists():
        from ..parallel import record  # noqa: PLC0415  it needs torch

        record(error, "".join(traceback.format_exception(type(error), error, error.__traceback__)), time.time())
    return True


def in_words(error: Exception) -> str:
    """Return an error's text, with the rank if this is not the first process."""
    names_rank = is_first() or isinstance(error, RankError)
    return str(error) if names_rank else f"rank {os.environ['RANK']}: {error}"


def keep_last_lines(context: click.Context, lines: Sequence[str]) -> None:
    """Let the command end with these lines, after the error that it was ended by."""
    context.meta[_LINES] = lines


def silence_last_lines(context: click.Context) -> None:
    """Print no last lines, since stdout is for something else."""
    context.meta[_SILENT] = True


def has_last_lines(context: click.Context) -> bool:
    """Is anything kept for the end?"""
    return bool(context.meta.get(_LINES))


def say_last_lines(context: click.Context) -> None:
    """Print what was kept for the end, if there is anything."""
    for line in () if _SILENT in context.meta else context.meta.get(_LINES, ()):
        click.echo(line)


def code_of(ending: Ending) -> int:
    """Return the exit code of a run that finished or paused."""
    if ending.lost:
        return NOT_WHOLE
    return PAUSED if ending.status == "paused" else 0


def last_lines(ending: Ending, resume: str) -> list[str]:
    """Return what to print last."""
    if ending.status == "failed" and not ending.batch:  # refused before it trained: the error says it all
        return []
    whole = ending.status == "finished"
    why = f": {ending.why}" if ending.why else ""
    what = "stopped" if whole else ending.status
    lines = [] if whole and not why else [f"{what} at batch {ending.batch}{why}"]
    lines += [f"not saved: {message}" for message in ending.lost]
    if ending.folder is None:
        return lines
    lines += _on_weights(ending)
    if ending.checkpoint is not None:
        lines += [
            f"latest checkpoint: {ending.checkpoint}",
            *([] if whole else [f"resume: {resume}"]),
        ]
    elif not whole:
        lines.append("no checkpoint was saved, so the run can't be resumed")
    return [*lines, f"results in {ending.folder}"] if whole else lines


def _on_weights(ending: Ending) -> list[str]:
    load = f"load it: engine_core.load_model({str(ending.folder)!r}, trust=True)"
    if ending.model is None:
        causes = {"failed": "the run failed", "interrupted": "the run was cut off"}
        is_told = any(message.startswith("no model") for message in ending.lost)
        cause = None if is_told else causes.get(ending.status)
        why = [] if cause is None else [f"no model was written, since {cause}"]
        return [*why, *([load] if ending.checkpoint is not None else [])]
    average = [] if ending.average is None else [f"averaged weights, which were evaluated: {ending.average}"]
    return [f"model: {ending.model}", *average, load]
