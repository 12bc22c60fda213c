"""Let a config name modules that lie beside it or in the current folder, as a script's imports do."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["import_beside"]


def import_beside(config: Path) -> None:
    """Put the config's folder, then the current one, first on the path where modules are looked for."""
    for folder in (str(Path.cwd()), str(config.resolve().parent)):
        if folder in sys.path:
            sys.path.remove(folder)
        sys.path.insert(0, folder)
