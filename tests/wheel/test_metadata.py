"""What the distributions declare, against the pins that CI installs, and what is in the wheels and sdists."""

import re
import tarfile
from pathlib import Path
from zipfile import ZipFile

import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from .conftest import PARTS, PLUGINS, ROOT


def declared(project):
    """Return what a distribution requires; our own, which extras of the core bring, have no pins."""
    required = [Requirement(line) for line in project.metadata.get_all("Requires-Dist", [])]
    return [requirement for requirement in required if requirement.name not in (*PARTS, *PLUGINS)]


def of_the_parts(plugins):
    """Return what the parts of the core require beside it."""
    return [r for name in PARTS for r in declared(plugins[name]) if r.name != "engine-core"]


def versions(specifiers):
    return {Version(specifier.version) for specifier in specifiers}


def pins(file):
    """Return the versions that a constraints file pins for each name: several where Pythons or systems differ."""
    found = {}
    for line in re.findall(r"^[^#\n].*", (ROOT / file).read_text(), re.MULTILINE):
        requirement = Requirement(line)
        found.setdefault(canonicalize_name(requirement.name), set()).update(versions(requirement.specifier))
    return found


def test_all_are_built_as_the_core_is(project, core):
    system, of_the_core = (
        tomllib.loads((one.folder / "pyproject.toml").read_text())["build-system"] for one in (project, core)
    )
    assert system == of_the_core


def test_nothing_has_an_upper_bound_but_a_plugins_core(project, core):
    bounded = [str(r) for r in declared(project) if {s.operator for s in r.specifier} != {">="}]
    assert bounded == ([] if project is core else ["engine-core<1,>=0.1"])


def test_the_lowest_set_is_the_declared_floors(core, plugins):
    floors = {canonicalize_name(r.name): versions(r.specifier) for r in (*declared(core), *of_the_parts(plugins))}
    lowest = pins("constraints-lowest.txt")
    assert {name for name in floors if lowest[name] != floors[name]} == {"torch"}  # why: see constraints-lowest.txt


def test_the_latest_set_pins_all_that_is_declared(core, plugins):
    declared_here = {canonicalize_name(r.name) for r in (*declared(core), *of_the_parts(plugins))}
    assert declared_here <= set(pins("constraints.txt"))


def test_one_torch_is_pinned_everywhere():
    (torch,) = pins("constraints.txt")["torch"]
    assert pins("constraints-lowest.txt")["torch"] == {torch}
    assert pins(".ci/torch-cpu.txt")["torch"] == {torch, Version(f"{torch}+cpu")}


def files_of(package):
    """Return the files of a package, less the caches that tools leave in it."""
    files = (file.relative_to(package.parent) for file in package.rglob("*") if file.is_file())
    return {file.as_posix() for file in files if not re.search(r"(^|/)(__pycache__|\.\w+_cache)/", file.as_posix())}


def test_a_wheel_holds_its_package_and_nothing_else(project):
    names = set(ZipFile(project.wheel).namelist())
    information = {name for name in names if ".dist-info/" in name}
    assert names - information == files_of(project.package)
    assert f"{project.package.name}/py.typed" in names
    assert {Path(name).name for name in information} >= {"METADATA", "entry_points.txt", "LICENSE"}


def test_an_sdist_holds_what_its_wheel_is_built_from_and_nothing_else(project):
    with tarfile.open(project.sdist) as archive:
        names = {Path(member.name).relative_to(project.sdist.name.removesuffix(".tar.gz")) for member in archive}
    beside = {name.as_posix() for name in names if len(name.parts) == 1}
    inside = {(project.package.parent / name).relative_to(project.folder) for name in files_of(project.package)}
    assert beside == {".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
    assert {name for name in names if len(name.parts) > 1} == inside


def test_the_wheel_from_the_sdist_is_the_wheel_from_the_tree(project):
    assert project.wheel.name == project.wheel_from_tree.name
    assert project.wheel.read_bytes() == project.wheel_from_tree.read_bytes()
