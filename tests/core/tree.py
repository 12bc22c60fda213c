"""What each module of the package imports or looks up, read from the source."""

import ast
import functools
from pathlib import Path

import engine_core

PACKAGE = Path(engine_core.__file__).parent
REPOSITORY = Path(__file__).parents[2]


def name_of(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
ROOT = MODULES.pop("__init__")
FOLDERS = [name for name, path in MODULES.items() if path.name == "__init__.py"]


def room(module):
    return module.partition(".")[0]


def parents(module):
    """Return the folders that a module lies in."""
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


@functools.cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def listed(name):
    """Return what a module lists in `__all__`, or None."""
    body = parsed(MODULES[name]).body
    lists = [n.value for n in body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"]
    return frozenset(ast.literal_eval(lists[0])) if lists else None


def handed_out(folder):
    """Return what a folder hands out at its door; of another module nothing."""
    return (folder in FOLDERS and listed(folder)) or frozenset()


def nodes_that_run(tree, functions=True):
    """Yield all nodes but those that only type checkers see."""
    for node in ast.iter_child_nodes(tree):
        is_hint = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if not is_hint and (functions or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))):
            yield node
            yield from nodes_that_run(node, functions)


def nodes_at_import(tree):
    """Yield the nodes that run when the module is imported."""
    return nodes_that_run(tree, functions=False)


def imported(nodes, package):
    """Yield what imports bind: the name, the module that is named for it, and the name in that module, or ''."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname, alias.name, ""
                if not alias.asname:
                    yield room(alias.name), room(alias.name), ""
        elif isinstance(node, ast.ImportFrom):
            start = [*package, ""][: len(package) + 1 - node.level] if node.level else []
            for alias in node.names:
                yield alias.asname or alias.name, ".".join([*start, *filter(None, [node.module])]), alias.name


def imported_by_call(nodes, package):
    """Yield each module that a literal `importlib.import_module("..module", __package__)` returns."""
    for node in nodes:
        if isinstance(node, ast.Call) and chain(node.func) == ["importlib", "import_module"]:
            name = ast.literal_eval(node.args[0]) if isinstance(node.args[0], ast.Constant) else ""
            if inner := name.lstrip("."):
                level = len(name) - len(inner)
                yield ".".join([*package[: len(package) + 1 - level], inner]) if level else inner


def chain(node):
    """Return the parts of `a.b.c`; what a call or the like returns is an empty name."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id if isinstance(node, ast.Name) else "", *reversed(parts)]


def resolved(module, *parts):
    """Return the module that is meant, ours by its name here, and the name in it that follows, or ''.

    Args:
        module: its full name.
        parts: what is looked up in it. A function at a door may be called as its module is: `audit.fingerprint`.
    """
    if room(module) != "engine_core":
        return ".".join([module, *filter(None, parts)]), ""
    name, left = module.partition(".")[2], [*filter(None, parts)]
    while left and f"{name}.{left[0]}".lstrip(".") in MODULES and left[0] not in handed_out(name):
        name = f"{name}.{left.pop(0)}".lstrip(".")
    return name, left[0] if left else ""


def taken(tree, package=(), nodes=ast.walk):
    """Return what a file imports, or looks up in our modules, as pairs of a module and a name in it.

    Args:
        package: the parts of the name that relative imports start from.
    """
    nodes = list(nodes(tree))
    names = list(imported(nodes, list(package)))
    called = set(imported_by_call(nodes, list(package)))
    found = {resolved(module, name) for _, module, name in names} | {resolved(module) for module in called}
    bound = {name: (module, inner) for name, module, inner in names if room(module) == "engine_core"}
    for node in nodes:
        if isinstance(node, ast.Attribute):
            first, *rest = chain(node)
            if first in bound:
                found.add(resolved(*bound[first], *rest))
            # What a call imports may go by any name.
            found |= {resolved(module, node.attr) for module in called if room(module) == "engine_core"}
    return found


@functools.cache
def taken_by(name, nodes=ast.walk):
    """Return what a module imports or looks up, as pairs of a module and a name in it."""
    package = ["engine_core", *name.split(".")]
    if name not in FOLDERS:
        package.pop()
    return frozenset(taken(parsed(MODULES[name]), package, nodes))


def imports_of(name, nodes=ast.walk):
    """Return what a module imports: own modules by their name here, others by their full name."""
    return {module for module, _ in taken_by(name, nodes)}


def own_imports(name, nodes=ast.walk):
    return imports_of(name, nodes) & MODULES.keys()


@functools.cache
def home_of(module, name):
    """Return the module in which a name is defined that is taken from a door, maybe on first use only."""
    if name in handed_out(module):
        for home, same in taken_by(module):
            if same == name:
                return home_of(home, name)
    return module


@functools.cache
def loaded_by(name):
    """Return all that is imported when a module is: own modules by their name here, others by their full name."""
    seen, new = set(), {name}
    while new:
        seen |= new
        pairs = {pair for module in new & MODULES.keys() for pair in taken_by(module, nodes_at_import)}
        new = {module for module, _ in pairs} | {home_of(*pair) for pair in pairs}
        new = (new | {folder for module in new & MODULES.keys() for folder in parents(module)}) - seen
    return seen
