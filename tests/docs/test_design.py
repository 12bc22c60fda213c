"""What the design page says of the files: they are there, each is listed, and in the order of the layers."""

import re
from pathlib import Path

import pytest

from ..core import test_layers as tested
from ..core.tree import FOLDERS, MODULES, own_imports, parents
from .conftest import DOCS, ROOT, blocks_of

PAGE = DOCS / "explanation" / "design.md"
TEXT = PAGE.read_text(encoding="utf-8")
PACKAGE, AROUND = (block.text for block in blocks_of(PAGE) if block.language == "text")
LEFT_BY_TOOLS = {"__pycache__", "_build", "build", "dist", "runs"}


def listed(tree):
    """Return the paths in a tree in its order; a line is two spaces further right than the folder it lies in."""
    paths = []
    folders = []
    for line in tree.splitlines():
        indent, name = re.match(r"( *)(\S+)", line).groups()
        del folders[len(indent) // 2 :]
        paths.append("/".join([*folders, name.rstrip("/")]))
        folders.append(name.rstrip("/"))
    return paths


def test_the_tree_lists_each_file_of_the_package_and_nothing_else():
    package = ROOT / "engine_core"
    there = {path.relative_to(package).as_posix() for path in package.rglob("*") if "__pycache__" not in path.parts}
    there = {path for path in there if not path.endswith((".pyc", "__init__.py", "py.typed"))}
    assert sorted(listed(PACKAGE)) == sorted({"engine_core"} | {f"engine_core/{path}" for path in there})


@pytest.mark.parametrize("folder", sorted({Path(path).parent.as_posix() for path in listed(AROUND)}))
def test_a_folder_around_the_package_is_listed_completely(folder):
    shown = {Path(path).name for path in listed(AROUND) if Path(path).parent == Path(folder)}
    there = {path.name for path in (ROOT / folder).iterdir() if path.name not in LEFT_BY_TOOLS}
    there -= {"README.md", *(["engine_core"] if folder == "." else [])}
    assert shown == {name for name in there if not name.startswith(".") and not name.endswith(".egg-info")}


def test_each_line_of_a_tree_says_what_it_is():
    # Of engine_core and of the folders around it, what lies in them says it.
    lines = [line for line in f"{PACKAGE}{AROUND}".splitlines() if line.startswith(" ") or "/" not in line]
    assert [line for line in lines if len(line.split(maxsplit=1)) < 2] == []


def test_the_rooms_of_the_tree_are_in_the_order_of_the_layers_and_their_files_in_that_of_reading():
    paths = listed(PACKAGE)
    assert [Path(path).stem for path in paths if path.count("/") == 1] == [r for layer in tested.LAYERS for r in layer]
    for folder, files in tested.READING_ORDER.items():
        assert [Path(path).stem for path in paths if path.startswith(f"engine_core/{folder}/")] == files


def test_each_file_imports_only_from_files_above_it():
    modules = [path.partition("/")[2].removesuffix(".py").replace("/", ".") for path in listed(PACKAGE)]
    # What a folder's __init__ hands out lies in its files, so it is there below the last of them.
    ready = {name: place for place, path in enumerate(modules) for name in [path, *parents(path)]}
    late = [
        (name, other)
        for place, name in enumerate(modules)
        if name in MODULES and name not in FOLDERS
        for other in own_imports(name)
        if ready[other] >= place
    ]
    assert late == []


def test_the_house_has_the_layers_that_are_tested():
    rows = rows_of_the_house()
    assert [(int(number), rooms) for number, rooms, _ in rows] == list(reversed(list(enumerate(tested.LAYERS))))


def test_the_house_says_which_lower_rooms_a_room_does_without():
    without = {}
    for _, rooms, cell in rows_of_the_house():
        for part in filter(None, cell.split(";")):
            importers, colon, imported = part.rpartition(":")
            for room in quoted(importers) if colon else rooms:
                without[room] = set(quoted(imported))
    assert without == tested.NOT


def rows_of_the_house():
    """Return the number, the rooms and the last cell of each layer, from the top."""
    rows = re.findall(r"^\| (\d+) \| (.*?) \| \S.* \| (.*?) ?\|$", section("The house"), re.MULTILINE)
    return [(number, quoted(rooms), without) for number, rooms, without in rows]


def quoted(text):
    return re.findall(r"`(.*?)`", text)


def test_the_house_names_the_open_folders_and_what_needs_torch():
    house = " ".join(section("The house").split())
    for begin, end, named in [
        ("without a door: ", " Their", tested.OPEN),
        ("5 only ", " import", tested.NEEDS_TORCH),
        ("it ", " don't", tested.WITHOUT_TORCH),
    ]:
        assert sorted(quoted(re.search(rf"\b{begin}(`.*?){end}", house)[1])) == sorted(named)


def test_a_file_that_the_page_names_is_in_the_tree():
    for title in ("Three ways through the files", "The heart, cut by subject", "Decisions"):
        named = set(re.findall(r"`([\w/]+(?:\.py|/))`", section(title))) - {"__init__.py"}
        paths = [f"/{path}" for path in listed(PACKAGE)]
        assert named
        assert [name for name in named if not any(path.endswith(f"/{name.rstrip('/')}") for path in paths)] == []


def test_the_files_of_the_engine_each_have_their_subject_named():
    named = re.findall(r"^\| `engine/(\w+)\.py` \|", section("The heart, cut by subject"), re.MULTILINE)
    assert [*named, "engine"] == tested.READING_ORDER["engine"]


def section(title):
    """Return the text of a section of the page."""
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)[1]
