"""What its metadata alone shows to be wrong with an installed plugin, and what to do about it. Imports no plugin."""

from __future__ import annotations

import re

from .installed import Installed, module_exists
from .requirements import unmet

__all__ = ["what_is_doubtful", "why_broken"]


def why_broken(installed: Installed, value: str) -> str:
    """Return why an entry point with this value can't be loaded, as far as metadata shows it, or nothing."""
    if installed.twins and installed.folder is not None:
        return (
            f"{' and '.join(installed.twins)} of {installed.name} lie side by side in {installed.folder.parent}, and "
            f"nothing tells which of them the modules are; run `pip uninstall {installed.name}` until none is left, "
            "then install one"
        )
    if not re.fullmatch(r"\w+(?:\.\w+)*\s*:\s*\w+(?:\.\w+)*", value):
        return f"{value!r} names nothing, an entry point is 'module:attribute'; tell the authors of {installed.name}"
    module = value.partition(":")[0].strip()
    if module_exists(module):
        return ""
    if installed.origin:
        return (
            f"there is no module {module!r}: {installed.name} is an editable install of {installed.origin}; bring that "
            f"back and install it again, or run: pip uninstall {installed.name}"
        )
    return (
        f"there is no module {module!r}: of {installed.name} only {installed.folder} is left, which is stale; "
        f"{_removal(installed)}"
    )


def what_is_doubtful(installed: Installed) -> str:
    """Return what may make the plugins of a distribution fail although they can be loaded, or nothing."""
    doubts = []
    if installed.version == "?":
        doubts.append(
            f"its version is not known, since {installed.folder} has lost its METADATA; delete that folder and "
            f"install {installed.name} again"
        )
    for requirement, instead in unmet(installed.requires):
        doubts.append(f"it requires {requirement}, which is {instead}; run: pip install '{requirement}'")
    return "; ".join(doubts)


def _removal(installed: Installed) -> str:
    if installed.has_record:
        return f"install it again, or run: pip uninstall {installed.name}"
    return "install it again, or delete that folder"
