"""How the documentation is built. It needs no network: `sphinx-build -W --keep-going docs docs/_build`."""

import importlib.metadata
import inspect
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, ClassVar

import pydantic
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.inspect import stringify_signature

from engine_core import Event, hookspecs
from engine_core.registry import CORE, Registry

sys.path.insert(0, str(Path(__file__).parent))
from report_example import write_page

project = "engine-core"
release = importlib.metadata.version("engine-core")
html_title = f"engine-core {release}"
html_theme = "furo"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "  # with a prompt only what follows one is copied, not the output
copybutton_prompt_is_regexp = True
copybutton_copy_empty_lines = False
exclude_patterns = ["_build"]
html_extra_path = ["reference/metadata.schema.json"]  # at the root, under a stable name
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

default_role = "literal"  # docstrings mark code with single backticks
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 100
napoleon_numpy_docstring = False

nitpicky = True
# Without a network, the names of other projects have nothing to link to.
nitpick_ignore_regex = [("py:.*", r"(torch|collections|contextlib|typing|types|pathlib|os|pluggy|pydantic)\..*|Path")]
nitpick_ignore_regex += [  # type variables, aliases, and types that users receive but do not create
    ("py:class", r"engine_core\.(passes\.contract\.[PT]|passes\.member\.Member)|engine_core_author\.rules\.Rule"),
    ("py:class", r"engine_core\.(passes\.pass_list\.PassList|registry\.registry\.Identity|loggers\.values\.T)"),
    ("py:class", r"insight_plugin\.profiler\.Span"),
    ("py:class", r"engine_core\.registry\.distributions\.(EntryPoint|Installed)"),
    (
        "py:class",
        r"engine_core\.(config\.reading\.Place|observed\.(T|ObservedList)|state\.SpanRecorder|loop\.status\.(Phase|RunStatus))",
    ),
    ("py:class", r"engine_core\.(logger\.Destination|batch\.items\.HasBatch)"),
    ("py:class", r"engine_core(_author)?\.(ranks\.(T|_Meeting)|parallel\.wrapping\.Wrapping)|Deal"),
    ("py:class", r"engine_core\.checkpoint\.tensor_file\.TensorFile|Box|Shape|Callable\[\[\]"),
    ("py:class", r"engine_core_report\.(series\.(Thin|Stretch)|reading\.(Timing|RunData)|files\.(Saved|LoggedFile))"),
    ("py:class", r"RunData|Status"),
    ("py:class", r"\w+_plugin\.\w+\.T|surgery_plugin\.(draws\.Draws|whitening\.PatchSums)"),
    ("py:class", r"Block|Buffers|Difficulty|Keys"),
    ("py:class", r"nn\.Module|Activation|Target|BatchKey|PassArgument|Selector|ScorerArgument|Snapshot|SpanRecorder"),
]


class Hook(SphinxDirective):
    """`{hook} before_loss` shows the text of an event's specification, and the pair of the event."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the docstring, parsed like the page."""
        event = Event(self.arguments[0])
        said = inspect.getdoc(getattr(hookspecs, event.value))
        return self.parse_text_to_nodes(f"{said}\n\n{_pair(event)}")


class Fields(SphinxDirective):
    """`{fields} AlgorithmMetadata` shows the fields of a metadata model in a table, from the published JSON schema."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the table, parsed like the page."""
        file = Path(__file__).parent / "reference" / "metadata.schema.json"
        self.env.note_dependency(str(file))
        fields = json.loads(file.read_text(encoding="utf-8"))["$defs"][self.arguments[0]]["properties"]
        rows = ["| field | in JSON | default | meaning |", "|---|---|---|---|"]
        for name, field in fields.items():
            default = json.dumps(field["default"])
            rows.append(f"| `{name}` | {_in_json(field)} | `{default}` | {field['description']} |")
        return self.parse_text_to_nodes("\n".join(rows))


class RegisteredCallback(SphinxDirective):
    """`{callback} early_stopper` shows the class that is registered by a name, and the events it runs at."""

    required_arguments = 1
    option_spec: ClassVar = {"members": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """Return its documentation, parsed like the page."""
        registry, name = Registry.scan(), self.arguments[0]
        callback = registry.load("callbacks", name)
        members = f"   :members: {self.options['members']}\n" if "members" in self.options else ""
        shown = f".. autoclass:: {callback.__module__}.{callback.__qualname__}\n{members}"
        events = [event for event in Event if hasattr(callback, event)]
        at = ", ".join(f"[{event}](/reference/events.md#{event})" for event in events)
        return self.parse_text_to_nodes(f"```{{eval-rst}}\n{shown}```\n\nIt runs at: {at}.")


class RegisteredCallbacks(SphinxDirective):
    """`{callbacks}` lists the callbacks and loggers of the core, each with the first sentence about it."""

    def run(self) -> list[nodes.Node]:
        """Return the table, parsed like the page."""
        registry = Registry.scan()
        rows = ["| name | what it does |", "|---|---|"]
        for record in registry.records:
            if (record.kind, record.distribution) == ("callbacks", CORE):
                said = inspect.getdoc(registry.load(record.kind, record.name)) or ""
                sentence = " ".join(said.partition("\n\n")[0].split())
                rows.append(f"| [`{record.name}`]({record.name}.md) | {sentence} |")
        return self.parse_text_to_nodes("\n".join(rows))


def _in_json(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(map(_in_json, schema["anyOf"]))
    if schema.get("type") == "array":
        plural = "" if "enum" in schema["items"] else "s"
        return f"list of {_in_json(schema['items'])}{plural}"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    return "event" if "$ref" in schema else str(schema["type"])


def _pair(event: Event) -> str:
    if event.partner is None:
        return "It is not part of a pair."
    partner = f"[{event.partner}](#{event.partner})"
    if event.is_before_event:
        return f"Opens the pair `{event.canonical_name}`, which {partner} closes."
    order = "algorithms run in reverse order here" if event.is_undo else "algorithms keep their order here"
    return f"Closes the pair `{event.canonical_name}`, which {partner} opens; {order}."


def _readable(app: Sphinx, what: str, name: str, thing: object, *given: Any) -> tuple[str, str] | None:
    """Leave pydantic's validators and the default factories of dataclasses out of signatures."""
    if what == "class" and issubclass(thing, pydantic.BaseModel):
        return stringify_signature(inspect.signature(thing), show_annotation=False), ""
    _, signature, returned = given
    return (signature.replace("<factory>", "{}"), returned) if signature else None


def _link_to_pages(app: Sphinx, path: Path, page: str, content: list[str]) -> None:
    """Let the links in an included file lead to the page that includes their target, or to the file itself."""
    pages = {}
    for file in app.srcdir.rglob("*.md"):
        if included := re.match(r"```\{include\} (\S+)\n```", file.read_text(encoding="utf-8")):
            pages[(file.parent / included[1]).resolve()] = file

    def to_page(link: re.Match[str]) -> str:
        target = (app.srcdir / path).resolve().parent / link[0]
        if not target.exists():
            return link[0]
        return f"/{os.path.relpath(pages.get(target.resolve(), target), app.srcdir)}"

    content[0] = re.sub(r"(?<=\]\()[^)#:\s]+(?=[#)])", to_page, content[0])


def _write_report(app: Sphinx, error: Exception | None) -> None:
    """Put the page of two runs, made now, beside the pages."""
    if error is None and app.builder.format == "html":
        write_page(Path(app.outdir))


def setup(app: Sphinx) -> None:
    """Add the directives, make signatures readable, and show what a run leaves."""
    app.add_directive("hook", Hook)
    app.add_directive("fields", Fields)
    app.add_directive("callback", RegisteredCallback)
    app.add_directive("callbacks", RegisteredCallbacks)
    app.connect("autodoc-process-signature", _readable)
    app.connect("include-read", _link_to_pages)
    app.connect("build-finished", _write_report)
