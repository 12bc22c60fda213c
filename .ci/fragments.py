"""Let towncrier read the changelog fragments of the core and of each plugin, so that a wrong one is an error."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# All plugins, those that need a third party's library too: nothing of them is installed here.
PROJECTS = [ROOT, *sorted(file.parent for file in ROOT.glob("plugins/*/pyproject.toml"))]

for project in PROJECTS:
    config = project / "pyproject.toml"
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "next", "--dir", project]
    subprocess.run([*command, "--config", config], check=True)
