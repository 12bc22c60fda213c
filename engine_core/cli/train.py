"""`engine-core train`: see `engine_core.run.train`."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import click

from ..callbacks.reporter import RunReporter, as_line, clock, header_lines
from ..config import Config, ParallelSettings, check_plugins, load_config, override
from ..errors import SameRunError
from ..examples import EXAMPLES, find_example
from ..messages import aligned, escaped, join_words, plural
from ..signals import SignalGuard
from .groups import LAST_LINES, NOT_WHOLE, PAUSED, GivenPath, code_of, import_beside, is_first, stdout_at_stderr

if TYPE_CHECKING:
    from ..run import Ending, Run, RunResults

_GIVEN = "engine_core.given"
LEVELS = ("debug", "info", "warning", "error")


class _RememberingCommand(click.Command):
    """Keeps its arguments as they were given, in `context.meta`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep them, and parse them."""
        ctx.meta[_GIVEN] = list(args)
        return super().parse_args(ctx, args)


@click.command(
    cls=_RememberingCommand,
    epilog="\b\nExamples:\n"
    "  engine-core train --example digits --max-duration 1ep\n"
    "  engine-core train run.yaml --out runs/baseline --seed 1\n"
    "  engine-core train run.yaml --set optimizer.args.lr=1e-3 --set algorithms+=flip",
)
@click.argument("config", required=False, metavar="CONFIG.yaml", type=GivenPath())
@click.option("--example", metavar="NAME", help=f"Train a built-in example instead: {', '.join(EXAMPLES)}.")
@click.option(
    "--recipe", metavar="NAME", help="Add an installed recipe to the config, before --set; recipes list names them."
)
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
@click.option("--timing", is_flag=True, help="Add to results.json how long each part of the run took in all.")
@click.option("--profile", type=GivenPath(), help="Write a Chrome trace of the run to this file; implies --timing.")
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
    path = config if config is not None else find_example(example or "")
    run: Run | None = None
    with showing.applied() as write, SignalGuard(lambda number: sys.exit(128 + number), signal.SIGTERM):  # as Ctrl-C
        try:
            if config is not None:
                import_beside(config)
            checked = _read(path, overrides, settings, showing)
            if check:
                _check(checked, showing, write, out)
                return
            from ..run import Run  # noqa: PLC0415 - config errors need not wait for torch

            run = Run(checked, out, progress_bar=showing.has_progress, hand_on=write or (lambda _: None), **measure)
            ending = run.train()
        except BaseException as error:
            lines = _fail(context, run, error, write)
            context.meta[LAST_LINES] = lines if showing.has_text else []
            raise
        code = NOT_WHOLE if ending.lost else PAUSED if ending.status == "paused" else 0
        lines = _end(context, run, ending, code)
    if showing.has_text:
        click.echo("\n".join(lines))
    context.exit(code)


def _read(path: Path, overrides: Sequence[str], settings: dict[str, Any], showing: Showing) -> Config:
    """Return the config of a file with what the command line changes in it; show what a recipe adds."""
    recipe = settings.pop("recipe")
    checkpoints: dict[str, Any] | Literal[False] = {
        "every": settings.pop("checkpoint_every"),
        **{name: settings.pop(name) for name in ("keep_last", "keep_best")},
    }
    if settings.pop("no_checkpoints"):
        checkpoints = False
    loaded = load_config(path, [*([] if recipe is None else [f"recipe={recipe}"]), *overrides])
    if isinstance(loaded.trainer.parallel, ParallelSettings) and settings["parallel"] == loaded.trainer.parallel.name:
        settings["parallel"] = None  # the config says more about it
    checked = override(loaded, checkpoints, **settings)
    check_plugins(checked)
    for line in loaded.place().source.added if showing.has_progress else ():
        click.echo(escaped(line), err=True)
    return checked


def _check(config: Config, showing: Showing, write: Callable[[str], None] | None, out: Path | None) -> None:
    """Try the config, and print the header of the run and what was tried."""
    from ..run import try_config  # noqa: PLC0415 - as above

    trial = try_config(config, out)
    if write is not None:
        told = {"checkpoint_bytes": trial.checkpoint_bytes, "seconds": round(trial.seconds, 3)}
        write(as_line({"kind": "check", **trial.header, **told}))
    if showing.has_progress:
        click.echo("\n".join(header_lines(trial.header)), err=True)
    loaders = f", a batch of {join_words([*trial.evaluated])}" if trial.evaluated else ""
    if showing.has_text:
        size = f"{max(1, round(trial.checkpoint_bytes / 1e3)):,} kB"
        click.echo(
            f"ok: a batch of training{loaders}, and a checkpoint of {size}, in {trial.seconds:.1f} s; nothing was kept"
        )


def _fail(
    context: click.Context, run: Run | None, error: BaseException, write: Callable[[str], None] | None
) -> list[str]:
    """Write how the run ended, or a JSON line that none began; return the last lines for the screen."""
    if run is not None:
        return _end(context, run, run.end(error), code_of(error))
    if write is not None:
        RunReporter(write).end("failed", code_of(error))
    return [f"resume: {_resume_command(context, context.params['out'])}"] if isinstance(error, SameRunError) else []


def _end(context: click.Context, run: Run, ending: Ending, code: int) -> list[str]:
    """Write how the run ended; return the last lines for the screen."""
    resume = _resume_command(context, run.folder)
    run.reporter.end_with(ending, code, resume)
    return [*([] if ending.results is None else result_lines(ending.results)), *_last_lines(ending, resume)]


def _resume_command(context: click.Context, folder: Path) -> str:
    """Return the command as it was given, quoted for a shell, with what makes it resume the run in the folder."""
    given: list[str] = context.meta[_GIVEN]
    end = given.index("--") if "--" in given else len(given)  # what follows are not options
    more = [] if context.params["out"] is not None else ["--out", str(folder)]
    more += [] if context.params["autoresume"] else ["--autoresume"]
    size, here = (os.environ.get(name, "1") for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    launcher = context.command_path
    if "TORCHELASTIC_RUN_ID" in os.environ and size != "1":
        nodes = "" if size == here else f"--nnodes {int(size) // int(here)} "
        launcher = f"torchrun {nodes}--nproc-per-node {here} -m engine_core {context.info_name}"
    return f"{launcher} {shlex.join([*given[:end], *more, *given[end:]])}"


def result_lines(results: RunResults) -> list[str]:
    """Return a run's results, how often each algorithm ran, and its time."""
    averaged = [] if results.weights == "trained" else [("weights evaluated", results.weights)]
    runs, events = Counter[str](), Counter[str]()
    for key, count in results.algorithms.items():
        name, _, event = key.partition("/")
        runs[name] += count
        events[name] += bool(event)
    values = ((name, _number(v), *_best(results.best.get(name))) for name, v in sorted(results.metrics.items()))
    units = (("epoch", "epochs"), ("batch", "batches"), ("sample", "samples"))
    done = [plural(getattr(results, several), one, several) for one, several in units]
    sections: dict[str, list[tuple[str, ...]]] = {
        "results": [*values, *averaged],
        "algorithms": [
            (name, plural(events[name], "event", "events"), f"{n}x", *["finished"] * (name in results.finished))
            for name, n in runs.items()
        ],
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


def _last_lines(ending: Ending, resume: str) -> list[str]:
    """Return what to print last."""
    if ending.status == "failed" and not ending.batch:  # refused before it trained: the error says it all
        return []
    whole = ending.status == "finished"
    why = f": {ending.why}" if ending.why else ""
    lines = [] if whole and not why else [f"{'stopped' if whole else ending.status} at batch {ending.batch}{why}"]
    lines += [f"not saved: {message}" for message in ending.lost]
    if ending.folder is None:
        return lines
    if ending.model is not None:
        lines.append(f"model: {ending.model}")
    elif not whole and not any(message.startswith("no model") for message in ending.lost):
        lines.append(f"no model was written, since the run {'failed' if ending.status == 'failed' else 'was cut off'}")
    if ending.average is not None:
        lines.append(f"averaged weights, which were evaluated: {ending.average}")
    if ending.model is not None or ending.checkpoint is not None:
        lines.append(f"load it: engine_core.load_model({str(ending.folder)!r}, trust=True)")
    if ending.checkpoint is not None:
        lines += [f"latest checkpoint: {ending.checkpoint}", *([] if whole else [f"resume: {resume}"])]
    elif not whole:
        lines.append("no checkpoint was saved, so the run can't be resumed")
    return [*lines, f"results in {ending.folder}"] if whole else lines


@dataclass(frozen=True)
class Showing:
    """How much of a run the command line asks for; `level` is that of `--log-level`, None if not given."""

    quiet: bool
    as_json: bool
    level: str | None

    def __post_init__(self) -> None:
        if self.quiet and self.as_json:
            raise click.UsageError("give either --quiet, which leaves stdout empty, or --json, not both")

    @property
    def has_text(self) -> bool:
        """Are the results printed to stdout as text?"""
        return not self.quiet and not self.as_json

    @property
    def has_progress(self) -> bool:
        """Are header, evaluations and progress shown on stderr?"""
        return not self.as_json and (self.level or ("warning" if self.quiet else "info")) in ("debug", "info")

    @contextlib.contextmanager
    def applied(self) -> Iterator[Callable[[str], None] | None]:
        """Keep stdout for what was asked for, and yield what writes a JSON line to it, if that was."""
        with contextlib.ExitStack() as stack:
            if self.level is not None:
                stack.enter_context(_logging_at(self.level))
            if self.level == "error":
                stack.enter_context(warnings.catch_warnings())
                warnings.showwarning = lambda *_, **__: None  # filters stay: one may turn a warning into an error
            stdout = None if self.has_text else stack.enter_context(stdout_at_stderr())
            yield (lambda line: _write(line, stdout)) if self.as_json else None


def _write(line: str, stdout: TextIO | None) -> None:
    if stdout is not None:
        with contextlib.suppress(OSError):  # its reader is gone, or a disk is full: training matters more
            stdout.write(f"{line}\n")
            stdout.flush()


@contextlib.contextmanager
def _logging_at(level: str) -> Iterator[None]:
    """Show the records of Python's logging on stderr from this level on."""
    root, handler = logging.getLogger(), _Stderr()
    former = root.level
    root.addHandler(handler)
    root.setLevel(level.upper())
    try:
        yield
    finally:
        root.setLevel(former)
        root.removeHandler(handler)


class _Stderr(logging.Handler):
    """Writes records like the command's warnings, `info: my_module: ...`, to what stderr is at that time."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        try:
            text = f"{record.levelname.lower()}: {record.name}: {self.format(record)}"
            click.echo(escaped(text, keep="\n"), err=True)
        except Exception:  # noqa: BLE001  as all handlers do
            self.handleError(record)
