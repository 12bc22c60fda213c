"""Write the files of a new plugin, all of them or none."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import Template

from packaging.version import Version

from ..errors import ArgumentError, ArgumentTypeError, EngineError
from ..event import HOOK_API
from ..registry import CORE, Registry
from .naming import PluginNames, name_plugin

FILES = {
    "pyproject.toml": "pyproject.toml",
    "tox.ini": "tox.ini",
    "README.md": "README.md",
    "CHANGELOG.md": "CHANGELOG.md",
    ".gitignore": "gitignore",
    "src/$package/__init__.py": "init.py",
    "src/$package/functional.py": "functional.py",
    "src/$package/algorithm.py": "algorithm.py",
    "src/$package/passes.py": "passes.py",
    "src/$package/py.typed": "py.typed",
    "tests/test_$package.py": "test_plugin.py",
    "tests/test_${package}_conformance.py": "test_conformance.py",
}
"""Each file of a new plugin and its template; `LICENSE` comes from the folder of licences."""

LICENSES = ("Apache-2.0", "BSD-3-Clause", "MIT")


def create_plugin(name: str, folder: str | Path = ".", license: str = "MIT") -> Path:  # noqa: A002  as on the command line
    """Write a complete distribution `folder/name` with a working algorithm, its pass and its tests; return its path.

    Args:
        name: the distribution's. In lower case and with `_` for `-` and `.` it is also the name of its package, and the
            one by which runs switch the algorithm on.
        license: an SPDX identifier; one of `LICENSES`.

    Raises:
        EngineError: if the name can't be used, the licence is not known, something is already there, or writing
            fails. Nothing is left behind then.

    Example:
        >>> create_plugin("my-algo", "not/there")
        Traceback (most recent call last):
        engine_core.errors.ArgumentError: 'not/there' is not a folder: create it first, or choose another
    """
    names = name_plugin(name)
    chosen = _license(license)
    folder = Path(folder)
    if not folder.is_dir():
        raise ArgumentError(f"{str(folder)!r} is not a folder: create it first, or choose another")
    project = folder / name
    if os.path.lexists(project):
        raise ArgumentError(f"{str(project)!r} already exists and is left as it is: choose another name or folder")
    texts = _texts(names, chosen, folder)
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


def _texts(names: PluginNames, license_id: str, folder: Path) -> dict[str, str]:
    """Return the text of each file by its path in the project."""
    version = _core_version()
    holder = _git_user(folder) or f"the {names.distribution} authors"
    values = {
        **names._asdict(),
        "license": license_id,
        "holder": holder,
        "holder_in_toml": json.dumps(holder, ensure_ascii=False),
        "year": str(dt.datetime.now(dt.timezone.utc).year),
        "core_version": str(version),
        "core_range": core_range(version),
        "core_floor": _floor(version),
        "hook_api": str(HOOK_API),
    }
    ours = resources.files(__package__)
    sources = {path: ours / "templates" / f"{file}.tmpl" for path, file in FILES.items()}
    sources["LICENSE"] = ours / "licenses" / f"{license_id}.txt"
    return {
        Template(path).substitute(values): Template(source.read_text(encoding="utf-8")).substitute(values)
        for path, source in sources.items()
    }


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
