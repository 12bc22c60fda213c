"""`engine-core plugins new`: what it writes, what it says, and that it writes all or nothing."""

import datetime as dt
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaging.version import Version

from engine_core.cli import main
from engine_core.errors import ArgumentError
from engine_core.registry import Registry
from engine_core_author.scaffold import create_plugin
from engine_core_author.scaffold.creating import core_range

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def calm(tmp_path, monkeypatch):
    """Leave git without a user, and start relative paths in an empty folder."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def run(*arguments):
    return CliRunner().invoke(main, ["plugins", "new", *arguments])


def files(project):
    return sorted(path.relative_to(project).as_posix() for path in project.rglob("*") if path.is_file())


def declared(project):
    return tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]


SKELETON = [
    ".github/workflows/tests.yml",
    ".gitignore",
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "pyproject.toml",
    "src/my_algo_plugin/__init__.py",
    "src/my_algo_plugin/algorithm.py",
    "src/my_algo_plugin/py.typed",
    "tests/test_my_algo_plugin.py",
    "tests/test_my_algo_plugin_conformance.py",
    "tox.ini",
]
EXAMPLE = ["src/my_algo_plugin/functional.py"]
PASS = ["src/my_algo_plugin/passes.py", "tests/test_my_algo_plugin_pass.py"]


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({}, []),
        ({"example": True}, EXAMPLE),
        ({"with_pass": True}, PASS),
        ({"example": True, "with_pass": True}, EXAMPLE + PASS),
    ],
)
def test_the_files_of_a_plugin(options, more):
    assert files(create_plugin("My-Algo.plugin", **options)) == sorted(SKELETON + more)


def test_what_the_command_says():
    assert run("my-algo", "--example").output.endswith("  engine-core plugins doctor\n")  # and nothing fails
    result = run("My-Algo.plugin", "--dir", "../here")
    assert (result.exit_code, result.output) == (
        0,
        "wrote ../here/My-Algo.plugin\n"
        + "".join(f"  {file}\n" for file in SKELETON)
        + """\
next, where engine-core is installed:
  cd ../here/My-Algo.plugin
  python3 -m pip install -e . engine-core-author numpy "pytest>=9"
  python3 -m pytest
  engine-core plugins doctor
One test fails until you write src/my_algo_plugin/algorithm.py: see TODO there.
""",
    )


def test_what_the_distribution_declares():
    project = declared(create_plugin("My-Algo.plugin", license="apache-2.0", with_pass=True))
    assert (project["name"], project["version"], project["license"]) == ("My-Algo.plugin", "0.1.0", "Apache-2.0")
    range_now = core_range(Version(Registry.scan().version_of("engine-core")))
    assert project["dependencies"] == [f"engine-core{range_now}", "torch>=2.4"]
    assert project["urls"] == {
        "Source": "https://example.org/My-Algo.plugin",
        "Changelog": "https://example.org/My-Algo.plugin/blob/main/CHANGELOG.md",
    }
    assert project["entry-points"] == {
        "engine_core.algorithms": {"my_algo": "my_algo_plugin:MyAlgo"},
        "engine_core.passes": {"sort_my_algo_last": "my_algo_plugin.passes:sort_my_algo_last"},
    }


@pytest.mark.parametrize("example", [False, True])
def test_without_a_pass_it_declares_none(example):
    project = create_plugin("my-algo", example=example)
    assert declared(project)["entry-points"] == {"engine_core.algorithms": {"my_algo": "my_algo:MyAlgo"}}
    assert [file for file in files(project) if "sort_my_algo" in (project / file).read_text(encoding="utf-8")] == []


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.9.7.post1", ">=0.9.7,<1"),
        ("1.2.3", ">=1.2.3,<2"),
        ("0.3.0rc1", ">=0.3.0rc1,<1"),  # >=0.3.0 would not let it in
    ],
)
def test_the_range_of_engine_core_begins_at_the_installed_version(version, expected):
    assert core_range(Version(version)) == expected


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not there to be asked")
def test_the_licence_names_the_user_that_git_knows(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    (tmp_path / "gitconfig").write_text('[user]\n\tname = "Zoë \\"Z\\" \\\\ Müller"\n', encoding="utf-8")
    project = create_plugin("my-algo")
    (line,) = [x for x in (project / "LICENSE").read_text(encoding="utf-8").splitlines() if x.startswith("Copyright")]
    assert line == f'Copyright (c) {dt.datetime.now(dt.timezone.utc).year} Zoë "Z" \\ Müller'
    assert declared(project)["authors"] == [{"name": 'Zoë "Z" \\ Müller'}]


def test_without_a_user_the_licence_names_the_authors_of_the_plugin():
    written = (create_plugin("my-algo", license="BSD-3-Clause") / "LICENSE").read_text(encoding="utf-8")
    assert f"Copyright (c) {dt.datetime.now(dt.timezone.utc).year}, the my-algo authors\n" in written


def test_the_apache_licence_is_the_repositorys():
    assert (create_plugin("my-algo", license="Apache-2.0") / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["my-algo", "--license", "GPL-3.0"], "'GPL-3.0' is not an available licence: choose one of Apache-2.0, BSD-3"),
        (["3d"], "'3d' can't be the name of a plugin: its package would be '3d', which is not an identifier; begin "),
    ],
)
def test_an_unknown_licence_and_an_impossible_name_are_refused_with_code_2_and_nothing_is_written(arguments, said):
    result = run(*arguments)
    assert (result.exit_code, result.output.startswith(f"Error: {said}")) == (2, True)
    assert list(Path().iterdir()) == []


def make_folder(path):
    path.mkdir()
    (path / "mine").write_text("mine")


def identity(path):
    status = path.lstat()
    return status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns


@pytest.mark.parametrize("make", [make_folder, lambda path: path.symlink_to("nowhere")], ids=["folder", "link"])
def test_whatever_is_there_already_is_left_as_it_is(make):
    path = Path("my-algo")
    make(path)
    before = (identity(path), files(path), list(Path().iterdir()))
    result = run("my-algo")
    said = "Error: 'my-algo' already exists and is left as it is: choose another name or folder\n"
    assert (result.exit_code, result.output) == (2, said)
    assert (identity(path), files(path), list(Path().iterdir())) == before


def test_the_folder_has_to_be_there_and_that_of_the_plugin_has_the_rights_of_any_new_one():
    with pytest.raises(ArgumentError, match=r"^'not/there' is not a folder: create it first, or choose another$"):
        create_plugin("my-algo", "not/there")
    assert list(Path().iterdir()) == []
    Path("other").mkdir()
    assert create_plugin("my-algo").stat().st_mode == Path("other").stat().st_mode


def test_a_write_that_fails_half_way_leaves_nothing():
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))"  # a small disk
    script = f"{limit}\nfrom engine_core.cli import main\nmain(['plugins', 'new', 'my-algo'])"
    command = [sys.executable, "-B", "-c", script]  # -B: the limit would cut the bytecode of what is imported
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = "Error: 'my-algo' can't be written; nothing is left of it: File too large\n"
    assert (done.returncode, done.stderr) == (2, said)
    assert list(Path().iterdir()) == []


def test_beginning_a_plugin_imports_nothing_heavy():
    heavy = "{'torch', 'numpy', 'yaml', 'rich', 'engine_core.engine', 'engine_core.config', 'engine_core.run'}"
    script = (
        "import sys; from engine_core.cli import main; main(['plugins', 'new', 'my-algo'], standalone_mode=False);"
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
