"""The architecture, read from the tree: layers, reading order, no cycle, no torch below, no guest named."""

import ast
import re
import sys
from pathlib import Path

import pytest

import engine_core

PACKAGE = Path(engine_core.__file__).parent
REPOSITORY = Path(__file__).parents[2]

# A module imports only from its own layer and the lower ones; in layers 0 to 4 also only from what is listed before it,
# so that this is the order in which to read them.
REGISTRY = [
    f"registry.{name}"
    for name in (
        "distributions",
        "requirements",
        "entry_checks",
        "records",
        "ownership",
        "scan",
        "plugin_checks",
        "loading",
        "registry",
    )
] + ["registry"]
PASSES = [f"passes.{name}" for name in ("toposort", "declared", "contract", "builtin", "derivation", "pass_list")] + [
    "passes"
]
ENGINE = [
    f"engine.{name}"
    for name in (
        "host",
        "lifetime",
        "members",
        "combination",
        "lint",
        "listeners",
        "undo",
        "pipeline",
        "handlers",
        "engine",
    )
] + ["engine"]
LAYERS = [
    ["errors", "messages", "observed_list", "event", "time", "metadata"],
    ["hookspecs", "trace", "batch.items", "batch"],
    ["logger", "callback", "algorithm", "state", "arguments"],
    [*REGISTRY, *PASSES],
    [*ENGINE],
    ["losses", "randomness", "audit", "surgery", "checkpoint"],
    ["trainer"],
    ["callbacks", "loggers", "testing", "examples", "config"],
    ["scaffold", "doctor", "explain", "manifest", "diff", "run", "cli", "__main__"],
]
CORE = [name for layer in LAYERS[:5] for name in layer]  # without torch
LAYER_OF = {name: number for number, layer in enumerate(LAYERS) for name in layer}


def name_of(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
MODULES.pop("__init__")


def nodes_that_run(tree):
    """Yield all nodes but those that only type checkers see, functions included."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from nodes_that_run(node)


def imports_of(name, nodes=nodes_that_run):
    """Return what a module imports: own modules by their name here, others by their full name."""
    path = MODULES[name]
    package = ["engine_core", *name.split(".")]
    if path.name != "__init__.py":
        package.pop()
    found = set()
    for node in nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{origin}.{alias.name}".removeprefix("engine_core.")
                found.add(inner if inner in MODULES else origin)
    return {module.removeprefix("engine_core.") for module in found}


def top(module):
    return module.partition(".")[0]


def test_each_module_has_a_layer():
    assert sorted({top(name) for name in MODULES} - set(LAYER_OF)) == []


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_from_its_own_layer_and_lower_ones(name):
    upwards = {other for other in imports_of(name) & set(MODULES) if LAYER_OF[top(other)] > LAYER_OF[top(name)]}
    assert upwards == set()


@pytest.mark.parametrize("name", CORE)
def test_in_the_core_a_module_imports_only_what_was_read_before_it(name):
    later = {other for other in imports_of(name) & set(MODULES) if CORE.index(other) >= CORE.index(name)}
    assert later == set()


@pytest.mark.parametrize("nodes", [nodes_that_run, ast.walk], ids=["at run time", "type hints included"])
def test_no_import_cycle_not_even_through_imports_in_functions(nodes):
    imports = {name: imports_of(name, nodes) & set(MODULES) for name in MODULES}
    while free := {name for name, others in imports.items() if not others}:
        imports = {name: others - free for name, others in imports.items() if name not in free}
    assert imports == {}


@pytest.mark.parametrize("name", CORE)
def test_the_core_imports_no_torch_and_nothing_that_does(name):
    allowed = {"pydantic", "pluggy", "importlib_metadata", "packaging"}
    foreign = {top(module) for module in imports_of(name) - set(MODULES)}
    assert foreign - allowed <= sys.stdlib_module_names
    assert "torch" not in foreign


def test_importlib_metadata_is_imported_in_one_module_only():
    assert [name for name in MODULES if "importlib_metadata" in imports_of(name)] == ["registry.distributions"]
    assert [name for name in MODULES if any(m.startswith("importlib.metadata") for m in imports_of(name))] == []


def test_of_pluggy_only_the_public_names_are_used():
    text = {name: path.read_text(encoding="utf-8") for name, path in MODULES.items()}
    assert [
        name for name in text if re.search(r"pluggy\._|\._(inner_)?hookexec|\._nonwrappers|\._hookimpls", text[name])
    ] == []


def guests():
    """Return each name by which a plugin beside the core is known: distribution, package, entries, classes."""
    names = set()
    for project in sorted((REPOSITORY / "plugins").glob("*/pyproject.toml")):
        text = project.read_text(encoding="utf-8")
        names |= set(re.findall(r'^name = "(.+)"', text, re.MULTILINE))
        for section in re.findall(r'entry-points\."engine_core\.\w+"\]\n((?:\w+ = .+\n)+)', text):
            for entry, package, thing in re.findall(r'(\w+) = "(\w+)[\w.]*:(\w+)"', section):
                names |= {entry, package, thing}
    return names


def test_the_core_names_no_guest():
    names = guests()
    assert {"sb-plugin", "sb_plugin", "selective_backprop", "SelectiveBackprop"} <= names
    texts = [path for path in sorted(PACKAGE.rglob("*")) if path.suffix in (".py", ".yaml", ".md", ".toml", ".json")]
    texts = [path for path in texts if not (path.parent.name == "examples" and path.suffix == ".yaml")]
    pattern = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in sorted(names)), re.IGNORECASE)
    named = {str(p.relative_to(PACKAGE)): set(pattern.findall(p.read_text(encoding="utf-8"))) for p in texts}
    assert {path: found for path, found in named.items() if found} == {}
