"""`engine-core plugins new`: see `engine_core.scaffold.create_plugin`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from ..scaffold import TEST_REQUIREMENTS, create_plugin
from .groups import GivenPath


@click.command(epilog="\b\nExample:\n  engine-core plugins new lookahead-plugin --dir projects")
@click.argument("name")
@click.option("--dir", "folder", type=GivenPath(), default=".", help="Where to write it; default: here.")
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
