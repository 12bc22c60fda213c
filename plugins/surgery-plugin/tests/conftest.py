"""Lets the tests of surgery-plugin import `surgery_parts`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
