"""Is an algorithm's metadata valid, and is its name the registered one?"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from ...algorithm import snake_case
from ...metadata import AlgorithmMetadata
from ...registry import Registry
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


def invalid(metadata: BaseModel) -> str | None:
    """Return what is wrong with metadata if it is validated again, strictly; pydantic can be told to skip that."""
    try:
        content = {name: getattr(metadata, name) for name in type(metadata).model_fields}
        again = type(metadata).model_validate(content, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or 'metadata'}: {first['msg']}"
    except (AttributeError, TypeError, ValueError) as error:
        return str(error)
    return None if again == metadata else f"it reads back as {again!r}"
