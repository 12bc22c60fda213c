"""`engine-core plugins new`: see `engine_core.scaffold.create_plugin`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from ..scaffold import create_plugin


@click.command(epilog="\b\nExample:\n  engine-core plugins new lookahead-plugin --dir projects")
@click.argument("name")
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=".", help="Where to write it; default: here.")
@click.option("--license", "license_id", default="MIT", help="Apache-2.0, BSD-3-Clause or MIT; default: MIT.")
def new(name: str, folder: Path, license_id: str) -> None:
    """Write a complete plugin distribution NAME.

    It has a working algorithm, its tests and a tox file. Nothing is asked, and nothing that exists is overwritten.
    """
    project = create_plugin(name, folder, license_id)
    files = sorted(file.relative_to(project).as_posix() for file in project.rglob("*") if file.is_file())
    click.echo("\n".join([f"wrote {project}", *(f"  {file}" for file in files)]))
    click.echo(f"""\
next:
  cd {shlex.quote(str(project))}
  python3 -m pip install --group test -e .
  python3 -m pytest
  engine-core plugins doctor
  python3 -m tox, once it can find engine-core: see README.md""")
