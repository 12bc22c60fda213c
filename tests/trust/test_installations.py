"""Installations that are stale, double, editable, gone between two runs, or lack torch."""

import importlib
import shutil
from dataclasses import dataclass

import pytest

from .conftest import Done, Run
from .sources import HONEST, Plugin, algorithm

BACKEND = ("hatchling", "pathspec", "trove_classifiers", "pluggy", "packaging")
GONE = (
    "ModuleNotFoundError: No module named '<name>_plugin'; <name>-plugin lacks a module of its own; install it again, "
    "or run: pip uninstall <name>-plugin"
)
LOST = "<site>/lost_plugin-1.0.dist-info has lost its METADATA; delete that folder, and install the distribution again"
DOUBLE = (
    "double_plugin-1.0.dist-info and double_plugin-1.1.dist-info lie side by side in <site>, and it is unclear which "
    "of them owns the modules; run `pip uninstall double-plugin` until none is left, then install one"
)


def plugin(name, version="1.0", text=None):
    entry_points = {"algorithms": {name: "Acme"}}
    return Plugin(f"{name}-plugin", algorithm("Acme") if text is None else text, version, entry_points)


@dataclass(frozen=True)
class Case:
    """An installation that is at fault, and why: does it show only when the plugin is imported?"""

    name: str
    because: str
    when_imported: bool = False

    @property
    def reason(self):
        return self.because.replace("<name>", self.name)


CASES = [Case("stale", GONE, True), Case("vanished", GONE, True), Case("lost", LOST), Case("double", DOUBLE)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return where the sources of editable installations are."""
    return tmp_path_factory.mktemp("sources")


@pytest.fixture(scope="module")
def environment(make_environment, folder):
    """Install plugins, editable ones among them with the build backend that is here, and damage what was installed."""
    deep = Plugin("deep-plugin", "import torch\n" + algorithm("Deep"), "1.0", {"algorithms": {"deep": "Deep"}})
    environment = make_environment([plugin("stale"), plugin("lost"), plugin("double"), deep, HONEST])
    (folder / "backend").mkdir()
    for name in BACKEND:
        (package,) = importlib.import_module(name).__path__
        (folder / "backend" / name).symlink_to(package)
    sources = [plugin(name).write(folder / name) for name in ("vanished", "tree")]
    editable = [word for source in sources for word in ("--editable", str(source))]
    given = ("--no-deps", "--no-index", "--no-build-isolation", *editable)
    environment.pip("install", *given, PYTHONPATH=str(folder / "backend"))
    shutil.rmtree(folder / "vanished")
    (environment.site / "stale_plugin.py").unlink()
    (environment.site / "lost_plugin-1.0.dist-info" / "METADATA").unlink()
    first = environment.site / "double_plugin-1.0.dist-info"
    shutil.copytree(first, folder / "kept")
    environment.install(plugin("double", "1.1"))
    shutil.copytree(folder / "kept", first)
    return environment


@pytest.fixture(scope="module")
def listed(environment):
    return environment.engine_core("plugins", "list")


@pytest.fixture(scope="module")
def examined(environment):
    return environment.engine_core("plugins", "doctor", "--timeout", "300")  # torch's first import, without bytecode


@pytest.fixture(scope="module")
def asked_for(environment):
    """Return by name what came of the run that asks for this plugin, and whether it has trained."""
    return environment.train_each(honest=Run(("honest", "tree")), **{case.name: Run((case.name,)) for case in CASES})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_damaged_is_refused_with_the_remedy(case, environment, listed, examined, asked_for):
    distribution = f"{case.name}-plugin"
    version = environment.about(listed, case.name)[0].split()[3]
    row, known = f"algorithms {case.name} {distribution} {version}", [] if case.when_imported else [case.reason]
    status = "available" if case.when_imported else "broken"
    assert environment.about(listed, case.name) == [f"{row} {status}", *known]
    assert environment.about(examined, case.name) == [
        f"{row} broken{' # s no' if case.when_imported else ''}",
        case.reason,
    ]
    refusal = (
        f"algorithm {case.name!r} of {distribution} {version} can't be loaded from '{case.name}_plugin:Acme': "
        f"{case.reason}"
    )
    assert asked_for[case.name] == (Done(2, "", f"Error: run.yaml:6: algorithms[0]: {refusal}\n"), False)
    assert (listed.code, listed.stderr, examined.code, examined.stderr) == (0, "", 1, "")


def test_what_is_not_damaged_works_beside_it_and_an_editable_install_is_a_plugin_like_others(
    environment, listed, examined, asked_for
):
    done, has_trained = asked_for["honest"]
    assert (done.code, done.stderr, has_trained) == (0, "", True)
    assert environment.about(listed, "tree") == ["algorithms tree tree-plugin 1.0 available"]
    assert environment.about(examined, "tree", "deep") == [
        "algorithms deep deep-plugin 1.0 available # s yes",
        "algorithms tree tree-plugin 1.0 available # s no",
    ]


def test_an_editable_install_that_breaks_later_names_its_source_file(environment, folder, asked_for):
    source = folder / "tree" / "tree_plugin.py"
    with source.open("a") as module:
        module.write("\n1 / 0\n")
    length = len(source.read_text().splitlines())
    reason = (
        f"ZeroDivisionError: division by zero (at {source}:{length}); fix or uninstall tree-plugin, or "
        "disable it with ENGINE_CORE_DISABLE_PLUGINS=tree-plugin:tree"
    )
    refusal = f"algorithm 'tree' of tree-plugin 1.0 can't be loaded from 'tree_plugin:Acme': {reason}"
    error = f"Error: run.yaml:6: algorithms[0]: {refusal}\n"
    assert environment.train_each(broken=Run(("tree",)))["broken"] == (Done(2, "", error), False)


def test_the_remedies_work(environment, asked_for):
    environment.pip("uninstall", "--yes", "stale-plugin", "vanished-plugin", "double-plugin")
    environment.pip("uninstall", "--yes", "double-plugin")
    assert list(environment.site.glob("double*")) == []
    shutil.rmtree(environment.site / "lost_plugin-1.0.dist-info")
    environment.install(plugin("lost"), plugin("double"))
    assert environment.about(environment.engine_core("plugins", "list"), "stale", "vanished") == []
    done, has_trained = environment.train_each(remedied=Run(("lost", "double")))["remedied"]
    assert (done.code, done.stderr, has_trained) == (0, "", True)


def test_a_run_whose_plugin_changes_or_goes_says_how_to_get_it_before_anything_is_imported(make_environment):
    environment = make_environment([plugin("acme"), HONEST])
    acme = Run(("acme",), more='require_plugins: ["acme-plugin>=1,<2"]\n')
    before = sorted(path.name for path in environment.site.glob("acme*"))
    assert environment.train_each(first=acme)["first"][1]
    environment.install(plugin("acme", "2.0", "raise AssertionError"))
    assert environment.train_each(second=acme)["second"] == (
        Done(
            2,
            "",
            "Error: run.yaml:7: require_plugins[0]: acme-plugin<2,>=1 is required, but acme-plugin 2.0 is installed; "
            "run: pip install 'acme-plugin<2,>=1'\n",
        ),
        False,
    )
    environment.pip("uninstall", "--yes", "acme-plugin")
    assert (before, list(environment.site.glob("**/*acme*"))) == (["acme_plugin-1.0.dist-info", "acme_plugin.py"], [])
    ran = environment.train_each(required=acme, named=Run(("acme",)), honest=Run(("honest",)))
    assert ran["required"][0].stderr.startswith(
        "Error: run.yaml:7: require_plugins[0]: acme-plugin<2,>=1 is required and no plugin of acme-plugin is "
        "installed (installed: engine-core "
    )
    unknown = "'acme' is not among the installed algorithms; known: honest; see `engine-core plugins list`"
    error = f"Error: run.yaml:6: algorithms[0]: {unknown}; install more with pip\n"
    assert (ran["named"], ran["honest"][1]) == ((Done(2, "", error), False), True)


def test_without_torch_the_doctor_works_and_says_what_needs_it(make_environment, base, tmp_path):
    for item in base.iterdir():
        if not item.name.startswith(("torch", "functorch")):
            (tmp_path / item.name).symlink_to(item)
    text, needs = "import torch\n" + algorithm("Deep"), ("torch>=2.4",)
    deep = Plugin("deep-plugin", text, "1.0", {"algorithms": {"deep": "Deep"}}, needs)
    environment = make_environment([HONEST, deep], tmp_path)
    done = environment.engine_core("plugins", "doctor")
    assert environment.about(done, "deep", "honest") == [
        "algorithms deep deep-plugin 1.0 broken # s no",
        "it requires torch>=2.4, which is not installed; run: pip install 'torch>=2.4'",
        (
            "ModuleNotFoundError: No module named 'torch' (at <site>/deep_plugin.py:1); deep-plugin requires "
            "torch>=2.4; run: pip install 'torch>=2.4'"
        ),
        "algorithms honest honest-plugin 1.0 available # s no",
    ]
    assert (done.code, done.stderr) == (1, "")
