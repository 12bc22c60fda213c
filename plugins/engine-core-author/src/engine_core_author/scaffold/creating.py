"""Write the files of a new plugin, all of them or none."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import Template

from packaging.version import Version

from engine_core.arguments import path_of
from engine_core.errors import ArgumentError, ArgumentTypeError, EngineError
from engine_core.event import HOOK_API
from engine_core.registry import CORE, Registry

from .naming import name_plugin

FILES = {
    "pyproject.toml": "pyproject.toml",
    "tox.ini": "tox.ini",
    "README.md": "README.md",
    "CHANGELOG.md": "CHANGELOG.md",
    ".gitignore": "gitignore",
    ".github/workflows/tests.yml": "tests.yml",
    "src/$package/py.typed": "py.typed",
    "tests/test_${package}_conformance.py": "test_conformance.py",
}
"""Each file of a new plugin and its template; `LICENSE` comes from the folder of licences."""

SKELETON = {
    "src/$package/__init__.py": "skeleton/init.py",
    "src/$package/algorithm.py": "skeleton/algorithm.py",
    "tests/test_$package.py": "skeleton/test_plugin.py",
}

EXAMPLE = {
    "src/$package/__init__.py": "example/init.py",
    "src/$package/functional.py": "example/functional.py",
    "src/$package/algorithm.py": "example/algorithm.py",
    "tests/test_$package.py": "example/test_plugin.py",
}

PASS = {
    "src/$package/passes.py": "pass/passes.py",
    "tests/test_${package}_pass.py": "pass/test_pass.py",
}

LICENSES = ("Apache-2.0", "BSD-3-Clause", "MIT")

TEST_REQUIREMENTS = 'engine-core-author numpy "pytest>=9"'
"""The group `test` of a plugin's pyproject.toml, for any pip and any shell: `--group` needs pip 25.1."""

LONGEST_DESCRIPTION, EXAMPLE_DESCRIPTION = 90, "Gaussian noise on the gradients, less in each step"


def create_plugin(  # noqa: PLR0913  as on the command line
    name: str,
    folder: str | Path = ".",
    license: str = "MIT",  # noqa: A002  as in pyproject.toml
    *,
    algorithm: str | None = None,
    description: str | None = None,
    author: str | None = None,
    with_pass: bool = False,
    example: bool = False,
) -> Path:
    """Write a complete distribution `folder/name` with an algorithm and its tests; return its path.

    The algorithm changes nothing until you write it, and one test fails until then.

    Args:
        name: the distribution's. In lower case and with `_` for `-` and `.` it is also the name of its package.
        license: an SPDX identifier; one of `LICENSES`.
        algorithm: the name by which runs switch the algorithm on; default: the package's without `_plugin` at its end.
        description: what the plugin does, in one line.
        author: a name, or `NAME <EMAIL>`; default: the user's name in git's settings.
        with_pass: write a pass too, for an order that metadata can't express.
        example: write a worked example, gradient noise, instead of an algorithm to fill in.

    Raises:
        EngineError: if a name can't be used, another argument makes no sense, something is already there, or writing
            fails. Nothing is left behind then.

    Example:
        >>> create_plugin("my-algo", "not/there")
        Traceback (most recent call last):
        engine_core.errors.ArgumentError: 'not/there' is not a folder: create it first, or choose another
    """
    names = name_plugin(name, algorithm)
    described = _line("description", description, LONGEST_DESCRIPTION)
    if not described:
        described = EXAMPLE_DESCRIPTION if example else f"The algorithm {names.algorithm}"
    values = {**names._asdict(), "license": _license(license), **_described(described)}
    signed = _line("author", author)
    folder = path_of(folder)
    if not folder.is_dir():
        raise ArgumentError(f"{str(folder)!r} is not a folder: create it first, or choose another")
    project = folder / name
    if os.path.lexists(project):
        raise ArgumentError(f"{str(project)!r} already exists and is left as it is: choose another name or folder")
    values |= _signed(signed or _git_user(folder) or f"the {names.distribution} authors")
    texts = _texts(values, example=example, with_pass=with_pass)
    try:
        _write(project, texts)
    except OSError as error:
        why = error.strerror or error
        raise EngineError(f"{str(project)!r} can't be written; nothing is left of it: {why}") from error
    return project


def _write(project: Path, texts: Mapping[str, str]) -> None:
    """Write the files into a folder beside it, and give that its name at the end."""
    with tempfile.TemporaryDirectory(prefix=".engine-core-", dir=project.parent) as beside:
        draft = Path(beside, project.name)
        for path, text in texts.items():
            file = draft / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="\n")
        draft.rename(project)


def _texts(given: Mapping[str, str], *, example: bool, with_pass: bool) -> dict[str, str]:
    """Return the text of each file by its path in the project."""
    version = _core_version()
    values = {
        **given,
        "year": str(dt.datetime.now(dt.timezone.utc).year),
        "core_version": str(version),
        "author_version": Registry.scan().version_of("engine-core-author"),
        "core_range": core_range(version),
        "core_floor": _floor(version),
        "hook_api": str(HOOK_API),
        "test_requirements": TEST_REQUIREMENTS,
    }
    ours = resources.files(__package__)

    def fill(source: str) -> str:
        return Template((ours / source).read_text(encoding="utf-8")).substitute(values)

    values["about"] = fill("templates/example/about.md.tmpl") if example else ""
    values["pass_in_toml"] = fill("templates/pass/pyproject.toml.tmpl") if with_pass else ""
    templates = {**FILES, **(EXAMPLE if example else SKELETON), **(PASS if with_pass else {})}
    sources = {path: f"templates/{template}.tmpl" for path, template in templates.items()}
    sources["LICENSE"] = f"licenses/{values['license']}.txt"
    return {Template(path).substitute(values): fill(source) for path, source in sources.items()}


def _line(what: str, given: str | None, longest: int | None = None) -> str:
    """Return what the user says in one line, or nothing."""
    if given is None:
        return ""
    if not isinstance(given, str):
        raise ArgumentTypeError(f"the {what} of a plugin is a string, not {given!r}")
    line = given.strip()
    if not line or not line.isprintable():
        raise ArgumentError(f"{given!r} can't be the {what} of a plugin: it is one line of printable characters")
    if longest and len(line) > longest:
        raise ArgumentError(f"the {what} {line!r} has {len(line)} characters, at most {longest} fit in a line of code")
    return line


def _described(text: str) -> dict[str, str]:
    """Return a description for each language that it is written in; Python's as ruff formats it."""
    quote = "'" if text.count('"') > text.count("'") else '"'
    in_python = text.replace("\\", r"\\").replace(quote, f"\\{quote}")
    return {
        "description": text,
        "description_in_python": f"{quote}{in_python}{quote}",
        "description_in_toml": json.dumps(text, ensure_ascii=False),
    }


def _signed(author: str) -> dict[str, str]:
    """Return the copyright holder, and the author as pyproject.toml names one."""
    split = re.fullmatch(r"(.+?)\s*<([^<>\s]+@[^<>\s]+)>", author)
    parts = {"name": split[1], "email": split[2]} if split else {"name": author}
    fields = ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in parts.items())
    return {"holder": parts["name"], "author_in_toml": f"{{ {fields} }}"}


def core_range(version: Version) -> str:
    """Return the versions of engine-core that a plugin created with this one requires.

    Example:
        >>> core_range(Version("1.2.3"))
        '>=1.2.3,<2'
    """
    return f">={_floor(version)},<{version.major + 1}"


def _floor(version: Version) -> str:
    return version.public if version.is_prerelease else version.base_version


def _license(given: str) -> str:
    if not isinstance(given, str):
        raise ArgumentTypeError(f"the licence of a plugin is a string, one of {', '.join(LICENSES)}, not {given!r}")
    for known in LICENSES:
        if known.lower() == given.lower():
            return known
    raise ArgumentError(
        f"{given!r} is not an available licence: choose one of {', '.join(LICENSES)}, and change LICENSE and "
        "pyproject.toml afterwards"
    )


def _core_version() -> Version:
    text = Registry.scan().version_of(CORE)
    if text == "?":
        raise EngineError("engine-core's own version is unknown: it is on the path but not installed; pip install it")
    return Version(text)


def _git_user(folder: Path) -> str:
    """Return the user's name in git's settings, or nothing."""
    git = shutil.which("git")
    if git is None:
        return ""
    done = subprocess.run(  # noqa: S603  it reads one setting
        [git, "config", "user.name"], cwd=folder, capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    return "".join(filter(str.isprintable, done.stdout)).strip()
