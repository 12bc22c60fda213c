"""A plugin's wheel in a clean environment: found, checked, explained, trained with, and gone without a trace."""

import json
import re
import sys
from types import SimpleNamespace
from zipfile import ZipFile

import pytest

from .conftest import ROOT

EXAMPLE = (ROOT / "engine_core" / "examples" / "digits.yaml").read_text()
NAME, PACKAGE = "Awkward.round_plugin", "awkward_round_plugin"
ALGORITHM, PASS = "awkward_round", "sort_awkward_round_last"


@pytest.fixture(scope="module")
def journey(workplace):
    project = workplace.begin(NAME, "--example", "--with-pass")
    workplace.run(sys.executable, "-m", "build", "--wheel", "--no-isolation", str(project))
    (wheel,) = (project / "dist").glob("*.whl")
    write_configs(project)
    before = workplace.files()
    workplace.pip("install", str(wheel))
    listed = json.loads(workplace.engine_core("plugins", "list", "--json"))
    patient = ("--timeout", "300")  # torch's first import, without bytecode
    doctored = json.loads(workplace.engine_core("plugins", "doctor", "--json", *patient))
    explained = json.loads(workplace.engine_core("explain", str(project / "required.yaml"), "--json"))
    run = ("train", str(project / "required.yaml"), "--max-duration", "3ep", "--out", str(project / "run"))
    workplace.engine_core(*run)
    results = json.loads((project / "run" / "results.json").read_text())
    workplace.run(*workplace.installed("python"), "-W", "error", "-c", readme_example(project))
    workplace.pip("uninstall", NAME)
    after = workplace.files()
    train = [*workplace.installed("engine-core"), "train"]
    required, named = (workplace.attempt(*train, f"{config}.yaml", cwd=project) for config in ("required", "named"))
    told = {"listed": listed, "doctored": doctored, "explained": explained, "results": results}
    kept = {"wheel": wheel, "left": after - before, "lost": before - after, "core_version": workplace.core_version}
    return SimpleNamespace(**told, **kept, required=required, named=named)


def write_configs(project):
    """Write the config of the core's example with another algorithm, and the same without `require_plugins`."""
    text, plugins = re.subn(r"require_plugins: .*", f"require_plugins: [{NAME}]", EXAMPLE)
    text, algorithms = re.subn(r"  - name: .*\n    args: .*", f"  - name: {ALGORITHM}\n    args: {{eta: 1.0e-6}}", text)
    assert (plugins, algorithms) == (1, 1)
    (project / "required.yaml").write_text(text)
    (project / "named.yaml").write_text(re.sub("require_plugins: .*", "", text))


def readme_example(project):
    (example,) = re.findall(r"^```python\n(.*?)^```$", (project / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return example


def test_the_wheel_holds_the_package_and_nothing_else(journey):
    names = set(ZipFile(journey.wheel).namelist())
    info = {name.partition(".dist-info/")[2] for name in names if ".dist-info/" in name}
    assert {name for name in names if ".dist-info/" not in name} == {
        f"{PACKAGE}/{file}" for file in ("__init__.py", "algorithm.py", "functional.py", "passes.py", "py.typed")
    }
    assert info == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}


def test_it_is_listed(journey):
    own = [r for r in journey.listed if not r["distribution"].startswith("engine-core")]
    distribution = PACKAGE.replace("_", "-")
    assert [(r["kind"], r["name"], r["distribution"], r["version"], r["status"]) for r in own] == [
        ("algorithms", ALGORITHM, distribution, "0.1.0", "available"),
        ("passes", PASS, distribution, "0.1.0", "available"),
    ]


def test_the_doctor_finds_nothing_wrong(journey):
    names = {record["name"] for record in journey.doctored}
    assert {ALGORITHM, PASS} <= names
    assert [record for record in journey.doctored if record["problems"] or record["status"] != "available"] == []


def test_it_is_explained(journey):
    own = ("AwkwardRound", ALGORITHM, "runs alone")
    assert {
        event: [(entry["algorithm"], entry["name"], entry["why"]) for entry in entries]
        for event, entries in journey.explained.items()
    } == {"after_train_batch": [own]}


def test_the_example_trains_with_it(journey):
    assert journey.results["eval/accuracy"] > 0.9
    assert journey.results["algorithms"] == {"AwkwardRound/AFTER_TRAIN_BATCH": journey.results["batches"]}


def test_uninstalled_it_leaves_nothing_and_takes_nothing(journey):
    assert (journey.left, journey.lost) == (set(), set())


def test_a_run_that_requires_it_then_says_what_is_missing(journey):
    assert journey.required.returncode == 2
    assert without_line(journey.required.stderr) == (
        f"Error: required.yaml: require_plugins[0]: {NAME} is required and no plugin of "
        f"{PACKAGE.replace('_', '-')} is installed (installed: engine-core {journey.core_version}, "
        f"engine-core-author {journey.core_version}); install "
        f"it: from engine-core's sources if it is part of them, else run: pip install '{NAME}'\n"
    )


def test_a_run_that_names_it_then_says_that_it_is_not_there(journey):
    assert journey.named.returncode == 2
    assert without_line(journey.named.stderr) == (
        f"Error: named.yaml: algorithms[0]: {ALGORITHM!r} is not among the installed algorithms; none is "
        "known; see `engine-core plugins list`; install more with pip\n"
    )


def without_line(message):
    """Return a message without the number of the line in the config."""
    return re.sub(r"^(Error: \w+\.yaml):\d+:", r"\1:", message)
