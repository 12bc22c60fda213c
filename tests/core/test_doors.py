"""The doors: a closed folder is entered through its `__init__`, which hands out what is used, and no more."""

import ast
import functools
import re

import pytest

from .test_layers import CLOSED, OPEN
from .tree import FOLDERS, MODULES, REPOSITORY, ROOT, handed_out, listed, parsed, resolved, taken, taken_by

DOCS = {path: path.read_text(encoding="utf-8") for path in sorted((REPOSITORY / "docs").rglob("*.md"))}


def test_each_folder_has_a_door_or_is_open():
    assert set(FOLDERS) > OPEN
    assert [folder for folder in CLOSED if not listed(folder)] == []


def around(*kinds):
    """Return the files of some kinds around the package: of its plugins, docs, benchmarks and tests."""
    folders = [REPOSITORY / folder for folder in ("plugins", "docs", "benchmarks", "tests")]
    paths = [REPOSITORY / "pyproject.toml", *(path for folder in folders for path in sorted(folder.rglob("*")))]
    return [path for path in paths if path.suffix in kinds and not {"build", "_build"} & set(path.parts)]


@functools.cache
def takers():
    """Return what each file of the repository takes from our modules, as pairs of a module and a name in it."""
    found = {path: taken_by(name) for name, path in MODULES.items()}
    found[ROOT] = taken(parsed(ROOT), ["engine_core"])
    for path in around(".py"):
        text = path.read_text(encoding="utf-8")
        if "engine_core" in text:  # others take nothing from ours
            found[path] = taken(ast.parse(text), path.relative_to(REPOSITORY).parts[:-1])
    for path in around(".md", ".toml", ".yaml"):
        text = path.read_text(encoding="utf-8")
        found[path] = {resolved(*entry) for entry in re.findall(r"\b(engine_core[\w.]*):(\w+)", text)}
        for line in re.findall(r"^(?:>>> )?(from engine_core.*? import (?:\([^)]*\)|.*))", text, re.MULTILINE):
            found[path] |= taken(ast.parse(line))
    return found


def taken_outside(folder):
    return {path: pairs for path, pairs in takers().items() if MODULES[folder].parent not in path.parents}


def test_what_is_behind_a_door_is_imported_through_it():
    past = {
        (path.relative_to(REPOSITORY).as_posix(), module)
        for folder in CLOSED
        for path, pairs in taken_outside(folder).items()
        for module, _ in pairs
        if module in MODULES
        and module.startswith(f"{folder}.")
        and "tests" not in path.relative_to(REPOSITORY).parts  # they may look inside
        and (path.name, folder) != ("pyproject.toml", "cli")  # a command is imported when it is run
    }
    assert past == set()


def published(folder):
    """Return the names at a door that the reference describes."""
    text = "\n".join(text for path, text in DOCS.items() if path.parent.name == "reference")
    names = set(re.findall(rf"engine_core\.{folder}\.(\w+)", text))
    for options in re.findall(rf"automodule:: engine_core\.{folder}\n((?: +:.*\n)*)", text):
        for members in re.findall(r":members:(.*)", options):
            names |= set(re.findall(r"\w+", members)) or handed_out(folder)
        for members in re.findall(r":exclude-members:(.*)", options):
            names -= set(re.findall(r"\w+", members))
    return names


@pytest.mark.parametrize("folder", CLOSED)
def test_a_folder_hands_out_only_what_is_used_or_published_and_lists_it(folder):
    tree = parsed(MODULES[folder])
    imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level for a in n.names}
    needed_here = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    own = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assert imported - needed_here == handed_out(folder) - own
    used = {name for pairs in taken_outside(folder).values() for module, name in pairs if module == folder}
    assert handed_out(folder) - used - published(folder) == set()


def test_names_are_listed_only_at_doors_at_the_root_and_where_the_docs_name_the_module():
    # Of a registered callback, the page shows the class without naming it.
    docs = "\n".join([*DOCS.values(), (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")])
    inner = [name for name in MODULES if "." in name and name not in FOLDERS]
    unnamed = [name for name in inner if not re.search(rf"\bengine_core\.{re.escape(name)}\b", docs)]
    assert {name for name in unnamed if listed(name)} == set()
