"""The commands `engine-core plugins new` and `plugins doctor`: thin, over `create_plugin` and `examine`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from engine_core.cli import format_table, warn_of_doubts
from engine_core.registry import Registry

from .doctor import MOST_S, Diagnosis, examine
from .scaffold import TEST_REQUIREMENTS, create_plugin


@click.command(epilog="\b\nExample:\n  engine-core plugins new lookahead-plugin --dir projects")
@click.argument("name")
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=".", help="Where to write it; default: here.")
@click.option("--algorithm", metavar="NAME", help="The algorithm's name; default: NAME without -plugin at its end.")
@click.option("--description", metavar="TEXT", help="What it does, in one line.")
@click.option("--author", metavar="TEXT", help="NAME or 'NAME <EMAIL>'; default: git's user.name.")
@click.option("--license", metavar="ID", default="MIT", help="Apache-2.0, BSD-3-Clause or MIT; default: MIT.")
@click.option("--with-pass", is_flag=True, help="Write a pass too, for an order that metadata can't express.")
@click.option("--example", is_flag=True, help="Write a worked example instead: gradient noise.")
def new(name: str, folder: Path, **options: Any) -> None:
    """Write a complete distribution NAME: an algorithm to fill in, its tests, tox.

    Nothing is asked, and nothing that exists is overwritten.
    """
    project = create_plugin(name, folder, **options)
    files = sorted(file.relative_to(project).as_posix() for file in project.rglob("*") if file.is_file())
    click.echo("\n".join([f"wrote {project}", *(f"  {file}" for file in files)]))
    click.echo(f"""\
next, where engine-core is installed:
  cd {shlex.quote(str(project))}
  python3 -m pip install -e . {TEST_REQUIREMENTS}
  python3 -m pytest
  engine-core plugins doctor""")
    if not options["example"]:
        (algorithm,) = (file for file in files if file.endswith("/algorithm.py"))
        click.echo(f"One test fails until you write {algorithm}: see TODO there.")


@click.command(epilog="\b\nExample:\n  engine-core plugins doctor --timeout 60")
@click.option("--json", "as_json", is_flag=True, help="Print an array of records with problems.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, max=MOST_S, min_open=True),
    default=20,
    show_default=True,
    metavar="SECONDS",
    help="Stop an import after this time.",
)
@click.pass_context
def doctor(ctx: click.Context, as_json: bool, timeout: float) -> None:
    """Import each plugin in its own process and report what is wrong.

    The exit code is 1 if there is a problem. What is disabled is not imported.
    """
    registry = Registry.scan()
    warn_of_doubts(registry)
    found = examine(registry.records, timeout)
    if as_json:
        click.echo(json.dumps([diagnosis.as_dict() for diagnosis in found], indent=2))
    else:
        click.echo(format_diagnoses(found))
    if registry.findings or any(diagnosis.problems for diagnosis in found):
        ctx.exit(1)


def format_diagnoses(found: Sequence[Diagnosis]) -> str:
    """Return a table with the problems below each plugin that has some, and a line that counts."""
    rows = [_row(diagnosis) for diagnosis in found]
    header = ("KIND", "NAME", "DISTRIBUTION", "VERSION", "STATUS", "IMPORT", "TORCH")
    ailing, disabled = sum(bool(d.problems) for d in found), sum(d.record.status == "disabled" for d in found)
    count = f"{len(found)} plugins, {ailing or 'none'} with problems"
    below = [d.problems or ([d.record.reason] if d.record.reason else []) for d in found]
    return format_table(header, rows, below) + f"\n{count}" + (f", {disabled} disabled" if disabled else "")


def _row(diagnosis: Diagnosis) -> Sequence[str]:
    record, seconds, torch = diagnosis.record, diagnosis.seconds, diagnosis.imports_torch
    took = "" if seconds is None else f"{seconds:.2f} s"
    brings = "" if torch is None else "yes" if torch else "no"
    return record.kind, record.name, record.distribution, record.version, record.status, took, brings
