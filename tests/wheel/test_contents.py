"""What is in the wheels and sdists."""

import re
import tarfile
from pathlib import Path
from zipfile import ZipFile


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


def test_wheel_and_sdist_hold_the_page_of_a_report_and_what_draws_it(plugins):
    project = plugins["engine-core-report"]
    drawn = ["template.html", "content.html", "report.css", "report.js", "follow.js"]
    files = [*map(project.package.joinpath, drawn), *(project.package / "vendor").iterdir()]
    needed = {file.relative_to(project.package.parent).as_posix() for file in files}
    with tarfile.open(project.sdist) as archive:
        in_sdist = {member.name.partition("/")[2].removeprefix("src/") for member in archive}
    assert len(needed) == 9
    assert needed <= set(ZipFile(project.wheel).namelist())
    assert needed <= in_sdist
