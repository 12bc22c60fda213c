"""The core's own passes, and `explicit_order`, which makes one from a table of names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..algorithm import Algorithm, algorithm_metadata
from ..event import Event
from ..messages import enumerated, warn
from ..metadata import PassMetadata
from .contract import AlgorithmPass, algorithm_pass, metadata_of
from .member import declared_edges, members_of
from .toposort import stable_sort


# Ours is not validated: building a pydantic model at import would call pydantic's plugins.
@algorithm_pass(
    PassMetadata.model_construct(
        stage="direction", description="reverse the list on AFTER events, so that what was done is undone"
    )
)
def set_filo_order(algorithms: Sequence[Algorithm], event: Event) -> Sequence[Algorithm]:
    """Reverse the list on the AFTER half of a before/after pair: first in, last out."""
    return list(reversed(algorithms)) if event.is_undo else algorithms


@algorithm_pass(
    PassMetadata.model_construct(
        stage="placement", description="put algorithms where their metadata declares before, after, around and within"
    )
)
def apply_declared_order(algorithms: Sequence[Algorithm], event: Event) -> Sequence[Algorithm]:
    """Sort by `before`, `after`, `around` and `within` of the metadata, and otherwise keep the order."""
    members = members_of(algorithms)
    named = {member.name: member.algorithm for member in members}
    return [named[name] for name in stable_sort(list(named), declared_edges(members, event))]


@algorithm_pass(
    PassMetadata.model_construct(stage="check", description="warn where several algorithms interpolate the loss")
)
def warn_if_multiple_loss_interpolation(algorithms: Sequence[Algorithm], event: Event) -> Sequence[Algorithm]:
    """Warn if more than one algorithm with the tag `@loss_interpolation` runs at AFTER_LOSS, when there is a loss."""
    if event is not Event.AFTER_LOSS:
        return algorithms
    mixing = [type(a).__name__ for a in algorithms if "loss_interpolation" in algorithm_metadata(a).tags]
    if len(mixing) > 1:
        warn(
            f"{enumerated(mixing)} all interpolate the loss: each adds the loss for its own second targets, "
            "and none adds it for another's; let all but one interpolate targets instead",
            UserWarning,
        )
    return algorithms


def explicit_order(table: Mapping[Event | str, Sequence[str]]) -> AlgorithmPass:
    """Make a pass from a table of events and names, registered or of classes; other algorithms keep their places.

    The named algorithms are rearranged within the places they had. An engine warns about a name that none of its
    algorithms has.

    Example:
        >>> explicit_order({"after_dataloader": ["freeze_layers", "Noise"]}).__name__
        'explicit_order'
    """
    wanted = {Event(event): [names] if isinstance(names, str) else list(names) for event, names in table.items()}

    @algorithm_pass(name="explicit_order", stage="placement", events=tuple(wanted))
    def explicit_order(algorithms: Sequence[Algorithm], event: Event) -> Sequence[Algorithm]:
        members = members_of(algorithms)
        places = enumerate(wanted[event])
        rank = {id(m.algorithm): place for place, name in places for m in members if m.is_called(name)}
        named = iter(sorted((a for a in algorithms if id(a) in rank), key=lambda a: rank[id(a)]))
        return [next(named) if id(a) in rank else a for a in algorithms]

    tabled: Any = explicit_order
    tabled.table = wanted
    return explicit_order


def table_of(function: AlgorithmPass) -> Mapping[Event, Sequence[str]]:
    """Return the table that `explicit_order` made a pass from; empty for any other pass."""
    table: Mapping[Event, Sequence[str]] = getattr(function, "table", {})
    return table if metadata_of(function).name == explicit_order.__name__ else {}
