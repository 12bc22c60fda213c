"""What `train` ends with: results, what was saved and where, the command that resumes it, and an exit code."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..callbacks.reporter import clock
from ..errors import EngineError, RankError, UnwritableError
from ..messages import aligned, counted

if TYPE_CHECKING:
    from ..run import Ending, RunResults

NOT_WHOLE, PAUSED = 74, 75
"""EX_IOERR and EX_TEMPFAIL of sysexits.h: something could not be written; try again later."""

LAST_LINES = "engine_core.last_lines"
"""Where `context.meta` holds what is printed after the error that ended a run."""

_GIVEN = "engine_core.given"
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

        record(error)
    return True


def in_words(error: Exception) -> str:
    """Return an error's text, with the rank if this is not the first process."""
    names_rank = is_first() or isinstance(error, RankError)
    return str(error) if names_rank else f"rank {os.environ['RANK']}: {error}"


def code_of(ended: Ending | BaseException) -> int:
    """Return the exit code of a run that finished or paused, or that an exception leads to."""
    if isinstance(ended, BaseException):
        if isinstance(ended, SystemExit):
            return ended.code if isinstance(ended.code, int) else 1
        if isinstance(ended, UnwritableError):
            return NOT_WHOLE
        if isinstance(ended, KeyboardInterrupt):
            return 130
        return 2 if isinstance(ended, (EngineError, click.ClickException)) else 1
    return NOT_WHOLE if ended.lost else PAUSED if ended.status == "paused" else 0


def result_lines(results: RunResults) -> list[str]:
    """Return a run's results, how often each algorithm ran, and its time."""
    averaged = [] if results.weights == "trained" else [("weights evaluated", results.weights)]
    runs, events = Counter[str](), Counter[str]()
    for key, count in results.algorithms.items():
        name, _, event = key.partition("/")
        runs[name] += count
        events[name] += bool(event)
    done = [
        counted(results.epochs, "epoch", "epochs"),
        counted(results.batches, "batch", "batches"),
        counted(results.samples, "sample", "samples"),
    ]
    values = ((name, _number(v), *_best(results.best.get(name))) for name, v in sorted(results.metrics.items()))
    sections: dict[str, list[tuple[str, ...]]] = {
        "results": [*values, *averaged],
        "algorithms": [(name, counted(events[name], "event", "events"), f"{n}x") for name, n in runs.items()],
        "time": [
            ("trained", ", ".join(done)),
            ("time", f"{results.seconds:.1f} s" if results.seconds < 60 else clock(results.seconds)),
            ("samples/s", f"{results.samples_per_second:,.0f}"),
        ],
    }
    return [line for title, rows in sections.items() if rows for line in (title, *(f"  {r}" for r in aligned(rows)))]


def _best(best: Mapping[str, Any] | None) -> tuple[str, ...]:
    if best is None:
        return ()
    return f"best {_number(best['value'])}", f"epoch {best['epoch']:,}, batch {best['step']:,}"


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


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
