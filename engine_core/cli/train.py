"""`engine-core train`: see `engine_core.run.train`."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from ..callbacks.json_lines import JsonLines, as_line
from ..callbacks.progress import ProgressBar
from ..callbacks.wording import header_lines
from ..config import Config, ParallelSettings, check_plugins, load_config, override
from ..errors import EngineError, SameRunError, UnwritableError
from ..examples import EXAMPLES, find_example
from ..messages import enumerated
from ..signals import SignalGuard
from .agreement import check_agreement, take_checkpoints
from .ending import (
    NOT_WHOLE,
    RememberingCommand,
    code_of,
    is_first,
    keep_last_lines,
    last_lines,
    resume_command,
    silence_last_lines,
)
from .importing import import_beside
from .paths import GivenPath
from .results import result_lines, show_results
from .showing import LEVELS, Showing

if TYPE_CHECKING:
    from ..run import Ending, Run


@click.command(
    cls=RememberingCommand,
    epilog="\b\nExamples:\n"
    "  engine-core train --example digits --max-duration 1ep\n"
    "  engine-core train run.yaml --out runs/baseline --seed 1\n"
    "  engine-core train run.yaml --set optimizer.args.lr=1e-3 --set algorithms+=flip",
)
@click.argument("config", required=False, metavar="CONFIG.yaml", type=GivenPath())
@click.option("--example", metavar="NAME", help=f"Train a built-in example instead: {', '.join(EXAMPLES)}.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a value of the config, as in optimizer.args.lr=1e-3, algorithms[flip].args.p=0.4, algorithms+=crop "
    "or algorithms-=flip; may be repeated.",
)
@click.option("--max-duration", metavar="TIME", help="How long to train, as in 10ep, 500ba or 1h30m.")
@click.option("--seed", type=int, help="Seed of every random draw.")
@click.option("--device", metavar="NAME", help="auto, cpu, cuda or mps.")
@click.option("--out", type=GivenPath(), help="The run's folder; default: a new one under runs/.")
@click.option(
    "--parallel",
    type=click.Choice(["auto", "ddp", "fsdp", "none"]),
    help="How several processes train, started by: torchrun --nproc-per-node 4 -m engine_core train CONFIG.yaml.",
)
@click.option("--checkpoint-every", metavar="TIME", help="How often to save the run, in OUT/checkpoints; default: 1ep.")
@click.option("--keep-last", type=int, metavar="N", help="How many of the latest checkpoints stay; default: 1.")
@click.option("--keep-best", metavar="METRIC", help="Also keep the checkpoint that is best by this: eval/loss.")
@click.option("--no-checkpoints", is_flag=True, help="Save no checkpoints; the run can't be resumed then.")
@click.option(
    "--autoresume", is_flag=True, default=None, help="Resume from the latest checkpoint in OUT, if there is one."
)
@click.option("--load", "load_path", metavar="PATH", help="Resume from this checkpoint, or the latest in this folder.")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    metavar="LEVEL",
    help="What stderr shows, and the level of Python's logging: debug, info (the default), warning or error.",
)
@click.option("--quiet", is_flag=True, help="Print nothing to stdout, and only warnings and errors to stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines, and nothing else, to stdout.")
@click.option("--check", is_flag=True, help="Try it: make everything, run a batch of each loader, leave no trace.")
@click.option("--timing", is_flag=True, help="Write to timing.json in OUT how long each part of the run took in all.")
@click.option("--profile", type=GivenPath(), help="Write a Chrome trace of the run to this file, and timing.json.")
@click.pass_context
def train(
    context: click.Context,
    /,
    config: Path | None,
    example: str | None,
    out: Path | None,
    overrides: Sequence[str],
    **settings: Any,
) -> None:
    """Train what CONFIG.yaml describes, or a built-in example.

    Options override the config. The run's folder gets manifest.json, metrics.jsonl, metrics.csv, results.json,
    checkpoints and, at the end, model.safetensors. The last lines say how to load the model, or how to resume the run.
    A run paused by a time limit exits with 75, and a run that could not write all of this with 74.
    """
    if (config is None) == (example is None):
        raise click.UsageError(f"give either a CONFIG.yaml or --example NAME ({', '.join(EXAMPLES)})")
    check = settings.pop("check")
    measure: dict[str, Any] = {"profile": settings.pop("profile"), "timing": settings.pop("timing")}
    showing = Showing(settings.pop("quiet"), settings.pop("as_json"), settings.pop("log_level"))
    if not is_first():  # rank 0 tells for all
        showing = Showing(quiet=True, as_json=False, level="warning")
    if not showing.has_text:
        silence_last_lines(context)
    path = config if config is not None else find_example(example or "")
    with showing.applied() as write, _ended(write) as end, SignalGuard(_terminate, signal.SIGTERM):
        if config is not None:
            import_beside(config)
        checked = _read(path, overrides, settings)
        if check:
            _check(checked, showing, write, out)
            return
        if write is not None:
            measure["hand_on"] = write
        ending, resume = _run(context, checked, out, {"watch": _watch(checked, showing), **measure}, end)
    if showing.has_text:
        assert ending.results is not None
        show_results(ending.results)
        click.echo("\n".join(last_lines(ending, resume)))
    context.exit(code_of(ending))


def _read(path: Path, overrides: Sequence[str], settings: dict[str, Any]) -> Config:
    """Return the config of a file with what the command line changes in it."""
    checkpoints = take_checkpoints(settings)
    loaded = load_config(path, overrides)
    if isinstance(loaded.trainer.parallel, ParallelSettings) and settings["parallel"] == loaded.trainer.parallel.name:
        settings["parallel"] = None  # the config says more about it
    check_agreement(loaded, checkpoints, settings)
    checked = override(loaded, checkpoints, **settings)
    check_plugins(checked)
    return checked


def _check(config: Config, showing: Showing, write: Callable[[str], None] | None, out: Path | None) -> None:
    """Try the config, and print the header of the run and what was tried."""
    from ..run import try_config  # noqa: PLC0415 - config errors need not wait for torch

    trial = try_config(config, out)
    if write is not None:
        told = {"checkpoint_bytes": trial.checkpoint_bytes, "seconds": round(trial.seconds, 3)}
        write(as_line({"kind": "check", **trial.header, **told}))
    if showing.has_progress:
        click.echo("\n".join(header_lines(trial.header)), err=True)
    loaders = f", a batch of {enumerated([*trial.evaluated])}" if trial.evaluated else ""
    if showing.has_text:
        size = f"{max(1, round(trial.checkpoint_bytes / 1e3)):,} kB"
        click.echo(
            f"ok: a batch of training{loaders}, and a checkpoint of {size}, in {trial.seconds:.1f} s; nothing was kept"
        )


def _run(
    context: click.Context,
    config: Config,
    out: Path | None,
    more: dict[str, Any],
    end: Callable[[Run, Ending, int, str], None],
) -> tuple[Ending, str]:
    """Train, and return how it ended and the command that resumes it; an exception passes, with its last lines kept."""
    from ..run import Run  # noqa: PLC0415 - as above

    try:
        run = Run(config, out, **more)
    except SameRunError:
        keep_last_lines(context, [f"resume: {resume_command(context, cast('Path', out))}"])
        raise
    resume = resume_command(context, run.folder)
    try:
        ending = run.train()
    except BaseException as error:
        ending = run.end(error)
        end(run, ending, _code_of(error), resume)
        results = [] if ending.results is None else result_lines(ending.results)
        keep_last_lines(context, [*results, *last_lines(ending, resume)])
        raise
    end(run, ending, code_of(ending), resume)
    return ending, resume


@contextlib.contextmanager
def _ended(write: Callable[[str], None] | None) -> Iterator[Callable[[Run, Ending, int, str], None]]:
    """Yield what writes the last line of a run; if no run ended and an exception comes, a JSON line says so."""
    told = write is None

    def end(run: Run, ending: Ending, code: int, resume: str) -> None:
        nonlocal told
        told = True
        run.diary.end_with(ending, code, resume)

    try:
        yield end
    except BaseException as error:
        if not told and write is not None:
            JsonLines(write).end("failed", _code_of(error))
        raise


def _terminate(number: int) -> None:
    """End the command as Ctrl-C does, with its last lines, where the run does not wait for a batch."""
    raise SystemExit(128 + number)


def _watch(config: Config, showing: Showing) -> list[Any] | None:
    """Return the callbacks that show the run; None leaves it to the config's `progress_bar`."""
    if not showing.has_progress:
        return []
    return [ProgressBar(show=True)] if config.trainer.progress_bar == "auto" else None


def _code_of(error: BaseException) -> int:
    """Return the exit code that an exception leads to."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if isinstance(error, click.ClickException):
        return error.exit_code
    if isinstance(error, UnwritableError):
        return NOT_WHOLE
    return 2 if isinstance(error, EngineError) else 1
