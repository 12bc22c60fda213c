"""The seam between an engine and a training loop: one method for each moment of the loop. Knows no loop."""

from .loop import EmbeddedLoop
from .status import Phase, RunStatus

__all__ = ["EmbeddedLoop", "Phase", "RunStatus"]
