"""Lets the tests of augmentation-plugin import `augmentation_parts`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
