"""The published JSON schema is that of the metadata models, and the reference page shows their fields."""

from __future__ import annotations

import json
import re
import runpy

from engine_core import AlgorithmMetadata, Event, PassMetadata
from engine_core.needs import NEEDS, WRITABLE

from .conftest import DOCS

GENERATOR = DOCS / "metadata_schema.py"
PAGE = (DOCS / "reference" / "metadata.md").read_text(encoding="utf-8")
SCHEMA = json.loads((DOCS / "reference" / "metadata.schema.json").read_text(encoding="utf-8"))
MODELS = [AlgorithmMetadata, PassMetadata]


def test_the_published_schema_is_that_of_the_models():
    generated = runpy.run_path(str(GENERATOR))["as_text"]()

    assert generated == (DOCS / "reference" / "metadata.schema.json").read_text(encoding="utf-8"), (
        "run: python docs/metadata_schema.py"
    )


def test_each_field_has_a_description_which_is_that_of_the_docstring_and_a_default():
    for model in MODELS:
        fields = SCHEMA["$defs"][model.__name__]["properties"]
        assert list(fields) == list(model.model_fields)
        assert [name for name, field in fields.items() if not field["description"] or "default" not in field] == []
    assert SCHEMA["$defs"]["AlgorithmMetadata"]["properties"]["before"]["description"] == (
        "names or `@tags` of algorithms that run later, at every event that both list; absent ones are ignored."
    )


def test_the_schema_lists_the_events_and_the_fields_of_state():
    fields = SCHEMA["$defs"]["AlgorithmMetadata"]["properties"]

    assert SCHEMA["$defs"]["Event"]["enum"] == [event.value for event in Event]
    assert fields["writes"]["anyOf"][0]["items"]["enum"] == list(WRITABLE)
    assert fields["needs"]["items"]["enum"] == list(NEEDS)


def test_the_schema_allows_the_names_and_references_that_the_models_allow():
    fields = {model: SCHEMA["$defs"][model.__name__]["properties"] for model in MODELS}
    for name in ("", "two words", "@tag", "a:b", "a,b", "a/b", "tab\tbed", "new\nline", "sam", "SAM-2"):
        pattern = fields[PassMetadata]["name"]["anyOf"][0]["pattern"]
        assert bool(re.search(pattern, name)) == is_allowed(PassMetadata, name=name), name
    for reference in ("", "@", "@@tag", "@two words", "@tag", "sam"):
        for field in ("tags", "before", "after", "requires", "conflicts"):
            pattern = fields[AlgorithmMetadata][field]["items"]["pattern"]
            assert bool(re.search(pattern, reference)) == is_allowed(AlgorithmMetadata, **{field: (reference,)})


def is_allowed(model, **fields):
    """Say whether a model takes these fields."""
    try:
        model(**fields)
    except ValueError:
        return False
    return True


def test_the_page_shows_the_fields_of_each_model_the_needs_and_the_fields_of_state_that_are_written():
    paragraph = PAGE[PAGE.index("`writes` names") : PAGE.index(". Parameters")]

    assert re.findall(r"^```\{fields\} (\w+)\n```$", PAGE, re.MULTILINE) == [model.__name__ for model in MODELS]
    assert re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE) == list(NEEDS.items())
    assert re.findall(r"`(\w+)`", paragraph)[1:] == list(WRITABLE)
