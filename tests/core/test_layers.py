"""The architecture, read from the tree: layers, reading order, no cycle, no torch below, no guest named."""

import ast
import re
import sys

import pytest

from .tree import (
    FOLDERS,
    MODULES,
    PACKAGE,
    REPOSITORY,
    home_of,
    imports_of,
    loaded_by,
    nodes_that_run,
    own_imports,
    room,
    taken_by,
)

# Rooms are the files and folders of engine_core. A room imports from its own layer and from lower ones, never from one
# that is listed after it in `IN_ORDER`; type hints count as imports.
LAYERS = [
    ["errors", "messages", "moved", "changes", "observed"],
    [
        *("event", "time", "needs", "metadata", "batch", "ranks", "signals", "files", "losses", "objective"),
        *("checkpoint", "surgery", "results"),
    ],
    ["state", "logger", "algorithm", "callback", "hookspecs", "arguments", "randomness"],
    ["registry"],
    ["passes"],
    ["engine"],
    ["loop", "parallel"],
    ["trainer", "config"],
    ["callbacks", "loggers", "examples"],
    ["explain", "manifest", "run"],
    ["cli", "__main__"],
]
# Layer by layer, rooms that may import each other, each only from those before it; what is not listed here imports
# nothing from its own layer.
IN_ORDER = [
    ["messages", "moved"],
    ["event", "needs", "metadata"],
    ["batch", "ranks"],
    ["time", "batch", "losses", "objective"],
    ["time", "checkpoint"],
    ["ranks", "checkpoint"],
    ["files", "checkpoint"],
    ["state", "logger", "algorithm", "callback", "hookspecs", "arguments", "randomness"],
    ["explain", "manifest", "run"],
    ["cli", "__main__"],
]
# Lower rooms that a room does without all the same.
NOT = {
    "parallel": {"registry", "passes", "engine"},
    "config": {"engine"},
    **{room: {"config"} for room in ("callbacks", "loggers", "examples")},
}
# The files of the core's folders in the order in which to read them; each imports only from those before it.
READING_ORDER = {
    "batch": ["items", "places", "batches"],
    "registry": ["installed", "checks", "registry"],
    "passes": ["member", "contract", "derivation", "pass_list"],
    "engine": ["members", "host", "pipeline", "in_place", "dispatch", "engine"],
}
# Folders without a door: their files are named one by one, by entry points, configs and users' imports. All others are
# closed, which `test_doors.py` checks.
OPEN = {"callbacks", "loggers", "examples"}
CLOSED = [folder for folder in FOLDERS if folder not in OPEN]
NEEDS_TORCH = {"objective", "losses", "checkpoint", "surgery", "randomness"}  # of layers 0 to 5
WITHOUT_TORCH = {"config", "explain", "manifest", "loggers", "cli", "__main__"}  # above
LAYER_OF = {room: number for number, layer in enumerate(LAYERS) for room in layer}
CORE = [name for name in MODULES if room(name) in LAYER_OF and LAYER_OF[room(name)] <= LAYER_OF["engine"]]
TORCH_FREE = [name for name in CORE if not {name, room(name)} & NEEDS_TORCH]
TORCH_FREE += [name for name in MODULES if room(name) in WITHOUT_TORCH]


def test_each_room_has_a_layer_and_each_layer_is_there():
    assert {room(name) for name in MODULES} == set(LAYER_OF)


def may_import(importer, imported):
    if not {importer, imported} <= LAYER_OF.keys():
        return True  # the test above names it
    if imported in NOT.get(importer, ()):
        return False
    if LAYER_OF[importer] != LAYER_OF[imported]:
        return LAYER_OF[importer] > LAYER_OF[imported]
    return any(
        {importer, imported} <= set(order) and order.index(imported) < order.index(importer) for order in IN_ORDER
    )


def test_a_module_imports_only_from_lower_layers_or_from_what_is_listed_before_it():
    pairs = [(name, room(other)) for name in MODULES for other in own_imports(name) if room(other) != room(name)]
    assert [(name, other) for name, other in pairs if not may_import(room(name), other)] == []


def test_the_files_of_a_folder_of_the_core_are_listed_in_the_order_in_which_to_read_them():
    for folder, files in READING_ORDER.items():
        assert sorted(files) == sorted(n.partition(".")[2] for n in MODULES if n.startswith(f"{folder}."))
        for place, file in enumerate(files):
            assert own_imports(f"{folder}.{file}") & {f"{folder}.{later}" for later in files[place:]} == set()


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


def test_what_needs_no_torch_imports_nothing_that_imports_it():
    for name in TORCH_FREE:
        assert "torch" not in {room(module) for module in loaded_by(name)}, name
        assert "torch" not in {room(module) for module in imports_of(name, nodes_that_run)}, name


@pytest.mark.parametrize("name", [name for name in CORE if name in TORCH_FREE])
def test_the_core_needs_few_others_and_nothing_that_needs_torch_not_even_in_functions(name):
    allowed = {"pydantic", "pydantic_core", "pluggy", "importlib_metadata", "packaging"}
    foreign = {room(module) for module in imports_of(name, nodes_that_run) - MODULES.keys()} - {""}
    assert foreign - allowed <= sys.stdlib_module_names
    homes = {home_of(*pair) for pair in taken_by(name, nodes_that_run)}
    if name == "state":  # imported on the first use
        homes -= {"objective", "objective.objective", "objective.precision", "objective.rows"}
    assert {home for home in homes if {home, room(home)} & NEEDS_TORCH} == set()


def test_importlib_metadata_is_imported_where_entry_points_are_read():
    imports = {name: {f"{module}." for module in imports_of(name)} for name in MODULES}
    named = {
        start: [name for name in MODULES if any(module.startswith(start) for module in imports[name])]
        for start in ("importlib_metadata.", "importlib.metadata.")
    }
    assert named == {"importlib_metadata.": ["moved", "registry.installed"], "importlib.metadata.": []}


def test_of_pluggy_only_the_public_names_are_used():
    text = {name: path.read_text(encoding="utf-8") for name, path in MODULES.items()}
    assert [
        name for name in text if re.search(r"pluggy\._|\._(inner_)?hookexec|\._nonwrappers|\._hookimpls", text[name])
    ] == []


# Names of guests that are ordinary words, or a field's: where they are meant, in quotes.
WORDS = {"compile", "confusion", "gradient_norm", "memory", "norms"}


# What fills a field of State: the core asks for it by the field's name, and its metadata says what brings it.
ASKED_FOR = {"profiler", "Profiler"}


def guests():
    """Return each name by which a plugin beside the core is known: distribution, package, entries, classes."""
    names = set()
    for project in sorted((REPOSITORY / "plugins").glob("*/pyproject.toml")):
        text = project.read_text(encoding="utf-8")
        names |= set(re.findall(r'^name = "(.+)"', text, re.MULTILINE))
        for section in re.findall(r'entry-points\."engine_core\.(?!commands)\w+"\]\n((?:\w+ = .+\n)+)', text):
            for entry, package, thing in re.findall(r'(\w+) = "(\w+)[\w.]*:(\w+)"', section):
                names |= {entry, package, thing}
    return names - ASKED_FOR


def test_the_core_names_no_guest():
    names = guests()
    assert {"sb-plugin", "sb_plugin", "selective_backprop", "SelectiveBackprop"} <= names
    texts = [path for path in sorted(PACKAGE.rglob("*")) if path.suffix in (".py", ".yaml", ".md", ".toml", ".json")]
    texts = [path for path in texts if not (path.parent.name == "examples" and path.suffix == ".yaml")]
    texts = [path for path in texts if path.name != "moved.py"]  # it has the modules' former names
    named = []
    for path in texts:
        text = path.read_text(encoding="utf-8").lower()
        for name in [name for name in map(str.lower, names) if name in text]:
            pattern = rf"""["'`]{name}["'`]""" if name in WORDS else rf"\b{re.escape(name)}\b"
            named += [(path.name, name)] if re.search(pattern, text) else []
    assert named == []
