"""The JSON schema of the metadata models: `python docs/metadata_schema.py` writes it where the docs publish it.

It is pydantic's own schema, with the descriptions from the docstrings.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from engine_core import AlgorithmMetadata, Event, PassMetadata

FILE = Path(__file__).parent / "reference" / "metadata.schema.json"
MODELS: tuple[type[BaseModel], ...] = (AlgorithmMetadata, PassMetadata)


def metadata_schema() -> dict[str, Any]:
    """Return the schema; each model and the events are definitions in it."""
    _, schema = models_json_schema([(model, "validation") for model in MODELS])
    definitions = {thing.__name__: schema["$defs"][thing.__name__] for thing in (*MODELS, Event)}
    for thing in (*MODELS, Event):
        definitions[thing.__name__]["description"] = summary_of(thing)
    for model in MODELS:
        described = descriptions_of(model)
        for name, field in definitions[model.__name__]["properties"].items():
            field["title"] = name
            field["description"] = described[name]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Metadata of engine-core's plugins",
        "description": "What an algorithm or a pass declares about itself; refer to the definition that you need.",
        "$defs": definitions,
    }


def summary_of(thing: type) -> str:
    """Return the first sentence of a docstring."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def descriptions_of(model: type[BaseModel]) -> dict[str, str]:
    """Return what the docstring says about each field."""
    section = re.search(r"^Args:\n(.*?)(?:\n\n|\Z)", inspect.getdoc(model) or "", re.MULTILINE | re.DOTALL)
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section[1] if section else "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def as_text() -> str:
    """Return the schema as it is published."""
    return json.dumps(metadata_schema(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(as_text(), encoding="utf-8")
