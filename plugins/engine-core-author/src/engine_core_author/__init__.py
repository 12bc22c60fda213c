"""For authors of plugins: the conformance kit, and honest fakes with real signatures that remember what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine_core.moved import on_first_use

if TYPE_CHECKING:
    from .conformance import AlgorithmConformance as AlgorithmConformance
    from .conformance import PassConformance as PassConformance
    from .declared import invalid as invalid
    from .declared import misspelt_events as misspelt_events
    from .ranks import ThreadRanks as ThreadRanks
    from .recording import RecordingDestination as RecordingDestination
    from .rules import BrokenRule as BrokenRule

_HOMES = {
    "conformance": ("AlgorithmConformance", "PassConformance"),
    "declared": ("invalid", "misspelt_events"),
    "ranks": ("ThreadRanks",),
    "recording": ("RecordingDestination",),
    "rules": ("BrokenRule",),
}
# On first use: pytest imports this package in projects that do not use it.
__all__, __getattr__, __dir__ = on_first_use(__name__, _HOMES)
