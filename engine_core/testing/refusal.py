"""Does an algorithm refuse what the kit trains with, before anything can be judged?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .faults import Fault
from .runs import attempt, described

if TYPE_CHECKING:
    from .conformance import AlgorithmConformance

__all__ = ["refusal_of"]


def refusal_of(kit: AlgorithmConformance) -> Fault | None:
    """Train a batch; the fault says what the algorithm refuses. None if it works, or if the parts do not without it."""
    run = attempt(kit, [kit.make_algorithm()], max_duration="1ba")
    if not run.refused or attempt(kit, [], max_duration="1ba").error is not None:
        return None
    return Fault(
        f"it refuses the kit's own parts: {described(run.error)}; override make_model, make_batches, make_loss, "
        "make_optimizers or make_others so that they are what it takes",
        run.error,
    )
