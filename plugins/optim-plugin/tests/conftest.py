"""Lets the tests of optim-plugin import `optim_parts`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
