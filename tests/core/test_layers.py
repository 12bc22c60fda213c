"""The architecture, read from the tree: layers, reading order, no cycle, doors, no torch below, no guest named."""

import ast
import functools
import re
import sys
from pathlib import Path

import pytest

import engine_core

PACKAGE = Path(engine_core.__file__).parent
REPOSITORY = Path(__file__).parents[2]

# Rooms are the files and folders of engine_core. A room imports from its own layer and from lower ones, never from one
# that is listed after it in `IN_ORDER`; type hints count as imports.
LAYERS = [
    ["errors", "messages", "observed_list"],
    ["event", "time", "metadata", "trace", "batch", "losses", "checkpoint", "surgery"],
    ["logger", "state", "algorithm", "callback", "hookspecs", "arguments", "randomness"],
    ["registry"],
    ["passes"],
    ["engine"],
    ["audit"],
    ["trainer", "config"],
    ["callbacks", "loggers", "examples", "testing"],
    ["explain", "doctor", "scaffold", "manifest", "diff", "run"],
    ["cli", "__main__"],
]
# Layer by layer, rooms that may import each other, each only from those before it; what is not listed here imports
# nothing from its own layer.
IN_ORDER = [
    ["event", "metadata"],
    ["event", "trace"],
    ["batch", "losses"],
    ["time", "checkpoint"],
    ["logger", "state", "algorithm", "callback", "hookspecs", "arguments", "randomness"],
    ["explain", "doctor", "scaffold", "manifest", "diff", "run"],
    ["cli", "__main__"],
]
# The files of the core's folders in the order in which to read them; each imports only from those before it.
READING_ORDER = {
    "batch": ["items", "rows"],
    "registry": [
        "distributions",
        "requirements",
        "entry_checks",
        "records",
        "ownership",
        "scan",
        "plugin_checks",
        "loading",
        "registry",
    ],
    "passes": ["toposort", "member", "contract", "builtin", "derivation", "pass_list"],
    "engine": [
        "host",
        "lifetime",
        "members",
        "lint",
        "listeners",
        "undo",
        "pipeline",
        "handlers",
        "engine",
    ],
}
# Nothing outside these folders may import past their `__init__`, which lists what it hands out.
FACES = ["batch", "registry", "passes", "engine", "audit", "surgery", "checkpoint", "trainer.data", "trainer.resume"]
NEEDS_TORCH = {"batch.rows", "losses", "checkpoint", "surgery", "randomness"}  # of layers 0 to 5
WITHOUT_TORCH = {"config", "explain", "doctor", "scaffold", "manifest", "diff", "loggers", "cli", "__main__"}  # above
LAYER_OF = {room: number for number, layer in enumerate(LAYERS) for room in layer}


def name_of(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
MODULES.pop("__init__")
CORE = [name for name in MODULES if LAYER_OF[name.partition(".")[0]] <= LAYER_OF["engine"]]


def nodes_that_run(tree):
    """Yield all nodes but those that only type checkers see, functions included."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from nodes_that_run(node)


def nodes_at_import(tree):
    """Yield the nodes that run when the module is imported."""
    for node in nodes_that_run(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        yield node


@functools.cache
def tree_of(name):
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


@functools.cache
def handed_out(face):
    """Return what the `__init__` of a folder lists in `__all__`."""
    body = tree_of(face).body
    return next(ast.literal_eval(n.value) for n in body if isinstance(n, ast.Assign) and "__all__" in ast.unparse(n))


@functools.cache
def imports_of(name, nodes=ast.walk):
    """Return what a module imports: own modules by their name here, others by their full name."""
    path = MODULES[name]
    package = ["engine_core", *name.split(".")]
    if path.name != "__init__.py":
        package.pop()
    found = set()
    for node in nodes(tree_of(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inner, face = f"{origin}.{alias.name}".removeprefix("engine_core."), origin.removeprefix("engine_core.")
                is_name = face in FACES and alias.name in handed_out(face)  # a function may be called as its module is
                found.add(inner if inner in MODULES and not is_name else origin)
    return frozenset(module.removeprefix("engine_core.") for module in found)


def room(module):
    return module.partition(".")[0]


def own_imports(name, nodes=ast.walk):
    return imports_of(name, nodes) & set(MODULES)


def test_each_room_has_a_layer_and_each_layer_is_there():
    assert {room(name) for name in MODULES} == set(LAYER_OF)


def may_import(importer, imported):
    if LAYER_OF[importer] != LAYER_OF[imported]:
        return LAYER_OF[importer] > LAYER_OF[imported]
    return any(
        {importer, imported} <= set(order) and order.index(imported) < order.index(importer) for order in IN_ORDER
    )


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_from_lower_layers_or_from_what_is_listed_before_it(name):
    others = {room(other) for other in own_imports(name)} - {room(name)}
    assert {other for other in others if not may_import(room(name), other)} == set()


@pytest.mark.parametrize(("folder", "files"), READING_ORDER.items(), ids=list(READING_ORDER))
def test_the_files_of_a_folder_of_the_core_are_listed_in_the_order_in_which_to_read_them(folder, files):
    assert sorted(files) == sorted(n.partition(".")[2] for n in MODULES if n.startswith(f"{folder}."))
    later = {
        (file, other)
        for place, file in enumerate(files)
        for other in own_imports(f"{folder}.{file}")
        if other.startswith(f"{folder}.") and other.partition(".")[2] in files[place:]
    }
    assert later == set()


@pytest.mark.parametrize("nodes", [nodes_that_run, ast.walk], ids=["at run time", "type hints included"])
def test_no_import_cycle_not_even_through_imports_in_functions(nodes):
    # An import of a.b runs a/__init__.py too, which the modules of a do not wait for.
    imports = {name: own_imports(name, nodes) for name in MODULES}
    assert left_in_circles(imports) == {}


def test_no_circle_between_rooms():
    rooms = {room(name): set() for name in MODULES}
    for name in MODULES:
        rooms[room(name)] |= {room(other) for other in own_imports(name)} - {room(name)}
    assert left_in_circles(rooms) == {}


def left_in_circles(imports):
    """Return what is left of a graph when everything that imports nothing more has been taken away, again and again."""
    while free := {name for name, others in imports.items() if not others}:
        imports = {name: others - free for name, others in imports.items() if name not in free}
    return imports


@pytest.mark.parametrize("face", FACES)
def test_what_is_behind_a_door_is_imported_through_it(face):
    inside = [name for name in MODULES if name == face or name.startswith(f"{face}.")]
    past = {
        (name, other)
        for name in MODULES
        if name not in inside
        for other in own_imports(name)
        if other.startswith(f"{face}.")
    }
    assert past == set()


@pytest.mark.parametrize("face", FACES)
def test_a_folder_hands_out_only_what_is_used_and_lists_it(face):
    path = MODULES[face]
    tree = tree_of(face)
    listed = handed_out(face)
    imported = {alias.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level for alias in n.names}
    assert sorted(imported) == sorted(listed)
    text = "\n".join(
        p.read_text(encoding="utf-8")
        for folder in ("engine_core", "plugins", "docs", "benchmarks", "tests")
        for p in sorted((REPOSITORY / folder).rglob("*"))
        if p.suffix in (".py", ".md", ".toml", ".yaml") and not (path.parent in p.parents and p.name == "__init__.py")
    )
    text += (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert [name for name in listed if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize("name", CORE)
def test_the_core_imports_no_torch_and_nothing_that_does(name):
    allowed = {"pydantic", "pydantic_core", "pluggy", "importlib_metadata", "packaging"}
    if name in NEEDS_TORCH or room(name) in NEEDS_TORCH:
        return
    foreign = {room(module) for module in imports_of(name, nodes_that_run) - set(MODULES)}
    assert foreign - allowed <= sys.stdlib_module_names
    assert {other for other in own_imports(name, nodes_at_import) if {other, room(other)} & NEEDS_TORCH} == set()


@pytest.mark.parametrize("name", [name for name in MODULES if room(name) in WITHOUT_TORCH])
def test_what_shows_and_examines_imports_no_torch(name):
    assert "torch" not in {room(module) for module in imports_of(name, nodes_that_run)}


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
