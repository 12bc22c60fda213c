"""`engine-core train`: see `engine_core.run.train`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from ..callbacks.json_lines import JsonLines
from ..callbacks.progress import ProgressBar
from ..callbacks.wording import header_lines
from ..config import Config, check_plugins, load_config, override
from ..errors import EngineError, SameRunError
from ..examples import EXAMPLES, find_example
from ..messages import enumerated
from .agreement import check_agreement, take_checkpoints
from .ending import RememberingCommand, code_of, keep_last_lines, last_lines, resume_command
from .importing import import_beside
from .results import show_results
from .showing import LEVELS, Showing

if TYPE_CHECKING:
    from ..run import Ending


@click.command(
    cls=RememberingCommand,
    epilog="\b\nExamples:\n"
    "  engine-core train --example digits --max-duration 1ep\n"
    "  engine-core train run.yaml --out runs/baseline --seed 1\n"
    "  engine-core train run.yaml --set optimizer.args.lr=1e-3 --set algorithms+=flip",
)
@click.argument("config", required=False, metavar="CONFIG.yaml", type=click.Path(path_type=Path))
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
@click.option("--out", type=click.Path(path_type=Path), help="The run's folder; default: a new one under runs/.")
@click.option("--checkpoint-every", metavar="TIME", help="How often to save the run, in OUT/checkpoints; default: 1ep.")
@click.option("--keep-last", type=int, metavar="N", help="How many of the latest checkpoints stay; default: 1.")
@click.option("--keep-best", metavar="METRIC", help="Keep the checkpoint with the best such result too: eval/loss.")
@click.option("--no-checkpoints", is_flag=True, help="Save no checkpoints; the run can't be resumed then.")
@click.option(
    "--autoresume", is_flag=True, default=None, help="Resume from the latest checkpoint in OUT, if there is one."
)
@click.option("--load", "load_path", metavar="PATH", help="Resume from this checkpoint, or the latest in this folder.")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    help="What stderr shows: header, evaluations and progress (info, the default), warnings, or errors only. Also the "
    "level of Python's logging.",
)
@click.option("--quiet", is_flag=True, help="Print nothing to stdout, and only warnings and errors to stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines, and nothing else, to stdout.")
@click.option("--check", is_flag=True, help="Try it: make everything, run a batch of each loader, leave no trace.")
@click.option("--profile", type=click.Path(path_type=Path), help="Write a Chrome trace of the run to this file.")
@click.pass_context
def train(
    context: click.Context,
    /,
    config: Path | None,
    example: str | None,
    out: Path | None,
    profile: Path | None,
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
    showing = Showing(settings.pop("quiet"), settings.pop("as_json"), settings.pop("log_level"))
    if config is not None:
        import_beside(config)
    path = config if config is not None else find_example(example or "")
    checkpoints = take_checkpoints(settings)
    loaded = load_config(path, overrides)
    check_agreement(loaded, checkpoints, settings)
    checked = override(loaded, checkpoints, **settings)
    check_plugins(checked)
    if check:
        _check(checked, showing, out)
        return
    ending, resume = _run(context, checked, showing, out, profile)
    if showing.has_text:
        assert ending.results is not None
        show_results(ending.results)
        click.echo("\n".join(last_lines(ending, resume)))
    context.exit(code_of(ending))


def _check(config: Config, showing: Showing, out: Path | None) -> None:
    """Try the config, and print the header of the run and what was tried."""
    from ..run import try_config  # noqa: PLC0415 - as above

    with showing.applied():
        trial = try_config(config, out)
    if showing.has_progress:
        click.echo("\n".join(header_lines(trial.header)), err=True)
    loaders = f", a batch of {enumerated([*trial.evaluated])}" if trial.evaluated else ""
    if showing.has_text:
        click.echo(
            f"ok: a batch of training{loaders}, and a checkpoint of {trial.checkpoint_bytes / 1e6:.1f} MB, in "
            f"{trial.seconds:.1f} s; nothing was kept"
        )


def _run(
    context: click.Context, config: Config, showing: Showing, out: Path | None, profile: Path | None
) -> tuple[Ending, str]:
    """Train, and return how it ended and the command that resumes it; an exception passes, with its last lines kept."""
    from ..run import Run  # noqa: PLC0415 - config errors need not wait for torch

    with showing.applied() as writer:
        try:
            run = Run(config, out, profile=profile, watch=_watch(config, showing, writer))
        except SameRunError:
            keep_last_lines(context, [f"resume: {resume_command(context, cast('Path', out))}"])
            raise
        resume = resume_command(context, run.folder)
        try:
            ending = run.train()
        except BaseException as error:
            ending = run.end(error)
            _write_end(writer, ending, _code_of(error), resume)
            if showing.has_text:
                keep_last_lines(context, last_lines(ending, resume))
            raise
        _write_end(writer, ending, code_of(ending), resume)
    return ending, resume


def _watch(config: Config, showing: Showing, writer: JsonLines | None) -> list[Any] | None:
    """Return the callbacks that show the run; None leaves it to the config's `progress_bar`."""
    if not showing.has_progress:
        return [] if writer is None else [writer]
    return [ProgressBar(show=True)] if config.trainer.progress_bar == "auto" else None


def _write_end(writer: JsonLines | None, ending: Ending, code: int, resume: str) -> None:
    """Write the last JSON line, if there are any."""
    if writer is not None:
        writer.end(
            ending.status,
            exit_code=code,
            folder=ending.folder,
            model=ending.model,
            average=ending.average,
            checkpoint=ending.checkpoint,
            resume=None if ending.status == "finished" or ending.checkpoint is None else resume,
        )


def _code_of(error: BaseException) -> int:
    """Return the exit code that an exception leads to."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    return 2 if isinstance(error, EngineError) else 1
