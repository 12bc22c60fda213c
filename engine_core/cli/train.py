"""`engine-core train`: see `engine_core.run.train`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import click
from rich.console import Console
from rich.table import Table

from ..config import Config, check_plugins, contradicting, load_config, override
from ..errors import SameRunError
from ..examples import EXAMPLES, find_example
from ..messages import enumerated
from .ending import RememberingCommand, code_of, keep_last_lines, last_lines, resume_command
from .importing import import_beside

if TYPE_CHECKING:
    from ..run import RunResults


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
    if config is not None:
        import_beside(config)
    path = config if config is not None else find_example(example or "")
    no_checkpoints = settings.pop("no_checkpoints")
    checkpoints = {name.removeprefix("checkpoint_"): settings.pop(name) for name in _CHECKPOINTS}
    if no_checkpoints and (given := [name for name, value in checkpoints.items() if value is not None]):
        options = enumerated([_CHECKPOINTS[name] for name in _CHECKPOINTS if name.removeprefix("checkpoint_") in given])
        raise click.UsageError(f"--no-checkpoints and {options} contradict each other: leave one of them out")
    loaded = load_config(path, overrides)
    _check_agreement(loaded, {"checkpoints": checkpoints, "trainer": settings}, no_checkpoints=no_checkpoints)
    checked = override(loaded, False if no_checkpoints else checkpoints, **settings)
    check_plugins(checked)
    from ..run import Run  # noqa: PLC0415 - config errors need not wait for torch

    try:
        run = Run(checked, out, profile=profile)
    except SameRunError:
        keep_last_lines(context, [f"resume: {resume_command(context, cast('Path', out))}"])
        raise
    resume = resume_command(context, run.folder)
    try:
        ending = run.train()
    except BaseException as error:
        ending = run.end(error)
        keep_last_lines(context, last_lines(ending, resume))
        raise
    assert ending.results is not None
    show_results(ending.results)
    click.echo("\n".join(last_lines(ending, resume)))
    context.exit(code_of(ending))


_CHECKPOINTS = {"checkpoint_every": "--checkpoint-every", "keep_last": "--keep-last", "keep_best": "--keep-best"}


def _check_agreement(config: Config, options: Mapping[str, Mapping[str, Any]], *, no_checkpoints: bool) -> None:
    """Refuse a `--set` that says otherwise than an option."""
    values = config.model_dump(exclude_unset=True)
    names = {option.name: option.opts[0] for option in click.get_current_context().command.params}
    given = [(section, name, value) for section in options for name, value in options[section].items()]
    for section, name, value in given:
        text = None if value is None else contradicting(values, config.place(section, name), value)
        if text is not None:
            option = names.get(name, names.get(f"checkpoint_{name}"))
            _contradict(text, str(option) if value is True else f"{option} {value}")
    is_off = config.checkpoints.every is None
    settings = [name for name, value in options["checkpoints"].items() if value is not None]
    for keys in ((), *((name,) for name in options["checkpoints"])):
        origin = config.place("checkpoints", *keys).origin
        if isinstance(origin, str) and ((no_checkpoints and not is_off) or (settings and is_off)):
            _contradict(origin, "--no-checkpoints" if no_checkpoints else f"--{settings[0].replace('_', '-')}")


def _contradict(text: str, option: str) -> NoReturn:
    raise click.UsageError(f"--set {text} contradicts {option}; leave one of them out")


def show_results(results: RunResults) -> None:
    """Print a run's results: a table on a terminal, plain lines elsewhere."""
    done = f"{results.epochs} epochs, {results.batches} batches, {results.samples} samples"
    sections = [
        [(k, f"{v:.4g}" if isinstance(v, float) else str(v)) for k, v in sorted(results.metrics.items())],
        [("trained", done), ("time", f"{results.seconds:.1f} s"), ("samples/s", f"{results.samples_per_second:.0f}")],
        [(name, f"{count}x") for name, count in results.algorithms.items()],
    ]
    if sys.stdout is not None and sys.stdout.isatty():
        table = Table("what", "value", show_header=False)
        for rows in sections:
            for row in rows:
                table.add_row(*row)
            table.add_section()
        Console().print(table)
    else:
        width = max(len(name) for rows in sections for name, _ in rows)
        click.echo("\n".join(f"{name.ljust(width)}  {value}" for rows in sections for name, value in rows))
