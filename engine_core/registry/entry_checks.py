"""What metadata alone shows to be wrong with an installed plugin, and the remedy. Imports no plugin."""

from __future__ import annotations

import re

from ..messages import enumerated
from .distributions import EntryPoint, Installed, module_exists
from .requirements import unmet


def why_broken(installed: Installed, entry_point: EntryPoint) -> str:
    """Return why an entry point can't be loaded, as far as metadata shows, or nothing."""
    if reason := _why_not_trusted(installed) or _why_unusable(installed, entry_point):
        return reason
    module = entry_point.value.partition(":")[0]
    if module_exists(module):
        return ""
    if installed.origin:
        what = f"{installed.name} is an editable install of {installed.origin}"
        remedy = f"bring that back and install it again, or run: pip uninstall {installed.name}"
    else:
        what = f"only a stale {installed.folder} is left of {installed.name}"
        listed = installed.folder is not None and (installed.folder / "RECORD").exists()  # so that pip can remove it
        remedy = f"install it again, or {f'run: pip uninstall {installed.name}' if listed else 'delete that folder'}"
    return f"there is no module {module!r}: {what}; {remedy}"


def _why_not_trusted(installed: Installed) -> str:
    if installed.other_name:
        return (
            f"{installed.folder} is named after {installed.name}, but its METADATA says Name: {installed.other_name}, "
            "so its owner is unknown; delete that folder, and reinstall what you want"
        )
    if installed.twins and installed.folder is not None:
        return (
            f"{enumerated(installed.twins)} of {installed.name} lie side by side in {installed.folder.parent}, and "
            f"it is unclear which of them owns the modules; run `pip uninstall {installed.name}` until none is left, "
            "then install one"
        )
    return ""


def _why_unusable(installed: Installed, entry_point: EntryPoint) -> str:
    _, name, value = entry_point
    report = f"report it to the authors of {installed.name}"
    if not re.fullmatch(r"\w+(?:\.\w+)*\s*:\s*\w+(?:\.\w+)*", value):
        return f"{value!r} is not of the form 'module:attribute'; {report}"
    if not name or not name.isprintable() or set(name) & set(":,"):
        return f"{name!r} can't be a name: it is empty, or has ':' or ',' in it; {report}"
    values = sorted({p.value for p in installed.entry_points if p[:2] == entry_point[:2]})
    if len(values) > 1:
        both = " and as ".join(map(repr, values))
        return f"registered twice under this name, as {both}; {report}"
    return ""


def what_is_doubtful(installed: Installed) -> str:
    """Return what may make a distribution's plugins fail after loading, or nothing."""
    doubts = []
    if installed.version == "?":
        doubts.append(
            f"its version is not known, since {installed.folder} has lost its METADATA; delete that folder and "
            f"install {installed.name} again"
        )
    for requirement, instead in unmet(installed.requires):
        doubts.append(f"it requires {requirement}, which is {instead}; run: pip install '{requirement}'")
    return "; ".join(doubts)
