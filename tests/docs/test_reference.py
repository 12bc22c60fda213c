"""The reference leaves nothing out, and tables and schemas in the docs say what the code does."""

import inspect
import json
import re
import runpy

import click

import engine_core
from engine_core import AlgorithmMetadata, Event, PassMetadata, State, Trainer, errors
from engine_core.callback import is_used_on
from engine_core.cli import main
from engine_core.config import Config
from engine_core.config.schema import TrainerSettings
from engine_core.needs import NEEDS, WRITABLE
from engine_core.ranks import Ranks
from engine_core.registry import CORE, Registry

from .conftest import DOCS

REFERENCE = {page.stem: page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md")}


def test_each_public_name_is_in_the_api_reference():
    described = re.findall(r"^\.\. auto\w+:: engine_core(?:\.\w+)?\.(\w+)$", REFERENCE["api"], re.MULTILINE)
    assert sorted({*engine_core.__all__} - {*described}) == []


def test_what_ranks_tell_each_other_is_on_the_page_for_authors():
    cells = re.findall(r"^\| (`.*?) \|", (DOCS / "authors" / "scale.md").read_text(encoding="utf-8"), re.MULTILINE)
    names = [name for name in dir(Ranks) if not name.startswith("_")]
    assert [name for name in names if not re.search(rf"`{name}\b", " ".join(cells))] == []


def test_the_errors_are_in_the_reference():
    assert ".. automodule:: engine_core.errors\n   :members:\n" in REFERENCE["modules"]
    types = [
        thing for thing in vars(errors).values() if isinstance(thing, type) and thing.__module__ == errors.__name__
    ]
    assert [error.__name__ for error in types if not error.__doc__] == []


def test_each_key_of_the_config_and_setting_of_the_trainer_is_in_the_table():
    table = ", ".join(re.findall(r"^\| (`.*?`) \|", REFERENCE["config"], re.MULTILINE))
    settings = REFERENCE["config"][REFERENCE["config"].index("## trainer") :]
    assert [key for key in Config.model_fields if f"`{key}`" not in table] == []
    assert [setting for setting in TrainerSettings.model_fields if f"`{setting}`" not in settings] == []


def test_the_commands_have_a_heading_each():
    assert sorted(re.findall(r"^## ([a-z ]+)$", REFERENCE["cli"], re.MULTILINE)) == commands(main)


def commands(group, before=""):
    """Return the names of commands that do something, as they are written."""
    context = click.Context(group)
    found = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        full = f"{before} {name}".strip()
        found += commands(command, full) if isinstance(command, click.Group) else [full]
    return found


CALLBACKS = DOCS / "callbacks"
REGISTERED = [
    record.name for record in Registry.scan().records if (record.kind, record.distribution) == ("callbacks", CORE)
]


def test_each_callback_and_logger_of_the_core_has_a_page_named_as_registered_and_no_other_has():
    pages = {page.stem: page.read_text(encoding="utf-8") for page in CALLBACKS.glob("*.md")}
    assert sorted(pages) == sorted([*REGISTERED, "index"])
    assert [name for name in REGISTERED if not pages[name].startswith(f"# {name}\n\n```{{callback}} {name}\n")] == []


def test_the_environment_variables_are_explained():
    page = (DOCS / "howto" / "plugins.md").read_text(encoding="utf-8")
    assert [f"| `ENGINE_CORE_{name}` |" in page for name in ("PLUGINS", "DISABLE_PLUGINS")] == [True, True]


EVENTS_PAGE = (DOCS / "reference" / "events.md").read_text(encoding="utf-8")
VALUES = [event.value for event in Event]


def test_the_events_are_headings_in_the_order_in_which_they_fire_each_with_its_own_specification():
    shown = re.findall(r"^## (\w+)\n\n```\{hook\} (\w+)\n```$", EVENTS_PAGE, re.MULTILINE)
    assert [heading for heading in re.findall(r"^## (\w+)$", EVENTS_PAGE, re.MULTILINE) if heading != "Pairs"] == VALUES
    assert shown == list(zip(VALUES, VALUES, strict=True))


def test_the_loop_shows_each_event_once_and_no_other():
    loop = EVENTS_PAGE[EVENTS_PAGE.index("```text") : EVENTS_PAGE.index("## What runs")]
    figure = re.sub(r"\(.*?\)", "", loop[: loop.index("\n```\n")])
    assert sorted(re.findall(r"[a-z]+_[a-z_]+|\binit\b", figure)) == sorted(VALUES)


GENERATOR = DOCS / "metadata_schema.py"
METADATA_PAGE = (DOCS / "reference" / "metadata.md").read_text(encoding="utf-8")
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
    pattern = fields["writes"]["anyOf"][0]["items"]["pattern"]
    for name in (*WRITABLE, "model.a", "model.LayerNorm.weight", "model.", "model..a", "model.1", "batch.a", "los", ""):
        assert bool(re.search(pattern, name)) == is_allowed(AlgorithmMetadata, writes=(name,)), name
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
    paragraph = METADATA_PAGE[METADATA_PAGE.index("`writes` names") : METADATA_PAGE.index(". Parameters")]
    assert re.findall(r"^```\{fields\} (\w+)\n```$", METADATA_PAGE, re.MULTILINE) == [
        model.__name__ for model in MODELS
    ]
    assert re.findall(r"^\| `(\w+)` \| (.*) \|$", METADATA_PAGE, re.MULTILINE) == list(NEEDS.items())
    assert re.findall(r"`(\w+)`", paragraph)[1:] == list(WRITABLE)


COMPARISON = (DOCS / "howto" / "coming-from.md").read_text(encoding="utf-8")
_, WORDS, MOMENTS, _ = re.split(r"^## .*$", COMPARISON, flags=re.MULTILINE)
PLUGINS = {record.name for record in Registry.scan().records}


def column(text, number):
    """Return a column of the table in a section."""
    rows = [line.split(" |") for line in text.splitlines() if line.startswith("|")]
    return " ".join(row[number] for row in rows[2:])


def test_the_arguments_are_those_of_the_trainer():
    named = re.findall(r"`(\w+)=", column(WORDS, 3))
    assert len(named) > 10
    assert sorted({*named} - {*inspect.signature(Trainer).parameters}) == []


def test_the_other_words_in_lower_case_are_plugins_or_declared_in_metadata():
    named = re.findall(r"`([a-z_]+)`", column(WORDS, 3))
    assert sorted({*named} - PLUGINS) == ["after", "around", "before", "loss", "within"]


def test_the_moments_are_events_in_their_order_but_for_evaluation():
    named = re.findall(r"`(\w+)`", column(MOMENTS, 3))
    assert [name for name in named if name not in set(Event)] == []
    training = [event.value for event in Event if not event.is_eval]
    assert [name for name in named if name in training] == [name for name in training if name in named]


def test_the_methods_of_state_exist():
    assert [name for name in re.findall(r"`state\.(\w+)\(\)`", COMPARISON) if not callable(getattr(State, name))] == []


def test_the_page_says_on_which_ranks_each_callback_is_used():
    page = (DOCS / "howto" / "callbacks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (every rank|rank 0) \| (.*) \|$", page, re.MULTILINE)
    said = {place: re.findall(r"`(\w+)`", names) for place, names in rows}
    everywhere = [name for name in sorted(REGISTERED) if is_used_on(1, Registry.scan().load("callbacks", name))]
    assert said == {"every rank": everywhere, "rank 0": sorted({*REGISTERED} - {*everywhere})}
