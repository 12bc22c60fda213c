"""`engine-core study`: which of several changes to a run help, see `engine_core_study`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from engine_core.cli import GivenPath, import_beside
from engine_core.config import Place, find_target
from engine_core.errors import ArgumentError, add_note
from engine_core.examples import EXAMPLES, find_example
from engine_core.messages import escaped

from .design import Design
from .file import is_study, read_study, short_study
from .folder import StudyResults, StudyRun, read_results
from .progress import Screen
from .running import Workers, executor_of, processes

FOLDER = Path("studies")


@click.command(
    epilog="\b\nExamples:\n"
    "  engine-core study study.yaml\n"
    "  engine-core study run.yaml --with mixup --with ema --seeds 3\n"
    "  engine-core study run.yaml --leave-one-out --jobs 4\n"
    "  engine-core study studies/study --markdown"
)
@click.argument("what", required=False, metavar="STUDY.yaml | CONFIG.yaml | FOLDER", type=GivenPath())
@click.option("--example", metavar="NAME", help=f"Study a built-in example instead: {', '.join(EXAMPLES)}.")
@click.option("--with", "with_", multiple=True, metavar="NAME", help="An arm with this algorithm; may be repeated.")
@click.option("--without", multiple=True, metavar="NAME", help="An arm without this algorithm; may be repeated.")
@click.option("--set", "changes", multiple=True, metavar="KEY=A,B", help="An arm for each of these values of a key.")
@click.option("--leave-one-out", is_flag=True, help="An arm without each of the config's algorithms.")
@click.option("--seeds", type=click.IntRange(1), help="How many seeds each arm trains with; default: 5.")
@click.option("--out", type=GivenPath(), help="The study's folder; default: studies/ and the file's name.")
@click.option("--jobs", type=click.IntRange(1), help="How many runs train at once: here, with one thread or GPU each.")
@click.option("--executor", metavar="MODULE:CALLABLE", help="Train on the executor that this makes, as of Dask or MPI.")
@click.option("--plan", is_flag=True, help="Print the runs, their order and the estimated time, and train nothing.")
@click.option("--markdown", "form", flag_value="markdown", help="Print the tables as Markdown.")
@click.option("--json", "form", flag_value="json", help="Print what study.json holds.")
@click.option("--csv", "form", flag_value="csv", help="Print a line for each run.")
@click.pass_context
def study(context: click.Context, /, what: Path | None, **given: Any) -> None:
    """Find out which changes to a run help: each arm trains with the same seeds, and differences get intervals.

    Give the file of a study, or a run's CONFIG and what to change in it. The runs and the tables go to the study's
    folder; the same command continues a study that was ended. With the FOLDER of a study, print its tables.

    Exits with 1 if a run failed or could not begin, and with 75 if the budget left some out.
    """
    if (what is None) == (given["example"] is None):
        raise click.UsageError(f"give a file, a folder, or --example NAME ({', '.join(EXAMPLES)})")
    form = given["form"]
    if what is not None and what.is_dir():
        _refuse_options(context, what)
        click.echo(read_results(what).shown(form, shutil.get_terminal_size().columns), nl=False)
        return
    path = what or find_example(given["example"])
    design = _design(path, given)
    if given["executor"] is not None and given["jobs"] is None and design.budget_s is not None:
        raise click.UsageError("the study has a budget: say how many runs the executor may have at once (--jobs N)")
    run = StudyRun(design, given["out"] or FOLDER / path.stem)
    if given["plan"]:
        click.echo("\n".join(map(escaped, run.plan(given["jobs"] or 1))))
        return
    try:
        results, code = _run(run, given)
    except KeyboardInterrupt as interrupt:
        add_note(interrupt, f"the same command resumes the study in {run.folder}")
        raise
    click.echo(results.shown(form, shutil.get_terminal_size().columns), nl=False)
    if form is None:
        click.echo(escaped(f"study in {run.folder}"))
    context.exit(code)


def _refuse_options(context: click.Context, folder: Path) -> None:
    """Raise if the command asks for more than to show what is in a folder."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name not in ("what", "form") and source is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"the tables in {folder} are made already: give {option.opts[0]} with the study's file"
            )


def _design(path: Path, given: dict[str, Any]) -> Design:
    """Return the study that the command line describes."""
    short = {name: given[name] for name in ("with_", "without", "changes", "leave_one_out", "seeds")}
    if is_study(path):
        if any(short.values()):
            raise click.UsageError(f"{path} is the file of a study: it says which arms and seeds there are")
        return read_study(path)
    if not any(value for name, value in short.items() if name != "seeds"):
        raise click.UsageError(
            f"{path} is a run's config: say what to compare, by --with NAME, --without NAME, --set KEY=A,B or "
            "--leave-one-out, or write a study's file with base: and arms:"
        )
    return short_study(path, **short)


def _run(run: StudyRun, given: dict[str, Any]) -> tuple[StudyResults, int]:
    with Screen(run, given["jobs"] or 1) as screen:
        run.prepare(screen.trying)
        if given["executor"] is None:
            with processes(given["jobs"] or 1, None if given["jobs"] is None else 1) as pool:
                results = run.train(pool, screen.told)
        else:
            import_beside(Path(run.design.base))
            with executor_of(given["executor"], _target) as executor:
                results = run.train(Workers(executor, given["jobs"] or sys.maxsize), screen.told)
    if not results.has_failed and run.left_out:
        return results, 75
    done, known = run.counted()
    return results, int(results.has_failed or done < known)


def _target(target: str) -> Any:
    try:
        return find_target(target, Place())
    except ValueError as error:
        raise ArgumentError(f"--executor: {error}") from error
