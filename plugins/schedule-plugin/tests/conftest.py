"""Lets the tests of schedule-plugin import `schedule_parts`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
