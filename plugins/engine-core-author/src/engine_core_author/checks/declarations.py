"""Is an algorithm's metadata valid, and is its name the registered one?"""

from __future__ import annotations

from typing import Any

from engine_core.algorithm import snake_case
from engine_core.metadata import AlgorithmMetadata
from engine_core.registry import Registry

from ..declared import invalid
from ..kit import AlgorithmKit, Fault


def test_metadata(kit: AlgorithmKit) -> Fault | None:
    """Validate the metadata strictly and compare its name."""
    algorithm = kit.make_algorithm()
    metadata: Any = getattr(algorithm, "metadata", None)
    if not isinstance(metadata, AlgorithmMetadata):
        return Fault(f"metadata is {metadata!r}")
    if problem := invalid(metadata):
        return Fault(f"metadata is not valid: {problem}")
    record = Registry.scan().identify(algorithm).record
    if record is None:
        expected, whose = snake_case(type(algorithm).__name__), "the class's name in snake case"
    else:
        expected, whose = record.name, f"the entry point of {record.origin}"
    if metadata.name not in (None, expected):
        return Fault(f"metadata.name is {metadata.name!r}, but {whose} is {expected!r}")
    return None
