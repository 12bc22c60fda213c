"""The project on the page "Ship it as a package" is complete: installed, it is found, and its tests pass."""

import json
import os
import subprocess
import sys

import pytest

from .conftest import DOCS, blocks_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture
def project(tmp_path):
    """Return the folder of the project with the files that the page shows."""
    for block in blocks_of(DOCS / "authors" / "package.md"):
        if "caption" in block.options:
            file = tmp_path / block.options["caption"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def run(project):
    """Return a function that runs a module in a Python where the project is installed as an editable one is."""
    declared = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = project / "site" / f"{declared['name'].replace('-', '_')}-{declared['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {declared['name']}\nVersion: {declared['version']}\n")
    groups = [
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in points.items())])
        for group, points in declared["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(info.parent), str(project / "src")])}

    def run(*arguments):
        command = [sys.executable, "-W", "error", "-m", *arguments]
        return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)

    return run


@pytest.mark.full
def test_its_tests_pass(run):
    done = run("pytest", "-q", "--color=no", "-p", "no:cacheprovider", "tests")
    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_it_is_listed_and_can_be_explained(run):
    records = json.loads(run("engine_core", "plugins", "list", "--json").stdout)
    done = run("engine_core", "explain", "--algorithms", "gradient_centralization")
    own = [(r["kind"], r["name"], r["status"]) for r in records if r["distribution"] == "gradient-centralization"]
    assert own == [
        ("algorithms", "gradient_centralization", "available"),
        ("passes", "sort_gradient_centralization_last", "available"),
    ]
    assert done.stdout.splitlines() == ["after_train_batch: GradientCentralization runs alone"], done.stderr
