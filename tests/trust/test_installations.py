"""Installations that are stale, double, editable, gone between two runs, or lack torch."""

import importlib
import shutil

import pytest

from .conftest import Done, together
from .sources import HONEST, Plugin, algorithm

ENTRY_POINTS = {"algorithms": {"acme": "Acme"}}
ACME = Plugin("acme-plugin", algorithm("Acme"), "1.0", ENTRY_POINTS)
DEEP = Plugin(
    "deep-plugin", "import torch\n" + algorithm("Deep"), "1.0", {"algorithms": {"deep": "Deep"}}, ("torch>=2.4",)
)
GONE = (
    "ModuleNotFoundError: No module named 'acme_plugin'; acme-plugin lacks a module of its own; install it again, or "
    "run: pip uninstall acme-plugin"
)


@pytest.fixture
def environment(make_environment):
    return make_environment([ACME, HONEST])


def assert_refused(environment, version, reason, *, when_imported=False):
    """Check that doctor and run say why `acme` can't be loaded, and the list too if metadata shows it; all else works.

    Args:
        when_imported: does it show only then?
    """
    listed, examined, as_json, asked_for, honest = together(
        lambda: environment.engine_core("plugins", "list"),
        lambda: environment.engine_core("plugins", "doctor"),
        lambda: environment.engine_core("plugins", "doctor", "--json"),
        lambda: environment.train("acme"),
        lambda: (beside := environment.beside("honest")).train("honest").code == 0 and beside.has_trained(),
    )
    row, known = f"algorithms acme acme-plugin {version}", [] if when_imported else [reason]
    assert environment.about(listed, "acme") == [f"{row} {'available' if when_imported else 'broken'}", *known]
    assert environment.about(examined, "acme") == [f"{row} broken{' # s no' if when_imported else ''}", reason]
    assert (listed.code, listed.stderr, examined.code, examined.stderr) == (0, "", 1, "")
    (acme,) = environment.records(as_json, "acme")
    assert acme == {
        "kind": "algorithms",
        "name": "acme",
        "distribution": "acme-plugin",
        "version": version,
        "entry_point": "acme_plugin:Acme",
        "status": "broken",
        "reason": reason,
        "problems": [reason],
        "imports_torch": False if when_imported else None,
    }
    refusal = f"algorithm 'acme' of acme-plugin {version} can't be loaded from 'acme_plugin:Acme': {reason}"
    assert asked_for == Done(2, "", f"Error: run.yaml:6: algorithms[0]: {refusal}\n")
    assert (environment.has_trained(), honest) == (False, True)


def assert_trains(environment, *names):
    done = environment.train(*names)
    assert (done.code, done.stderr, environment.has_trained()) == (0, "", True)


def test_a_stale_dist_info_is_refused_and_pip_removes_it(environment):
    (environment.site / "acme_plugin.py").unlink()
    assert_refused(
        environment,
        "1.0",
        GONE,
        when_imported=True,
    )
    environment.pip("uninstall", "--yes", "acme-plugin")
    assert environment.about(environment.engine_core("plugins", "list"), "acme") == []


def test_a_dist_info_without_metadata_is_refused_and_the_remedy_works(environment):
    left = environment.site / "acme_plugin-1.0.dist-info"
    (left / "METADATA").unlink()
    remedy = "delete that folder, and install the distribution again"
    assert_refused(environment, "?", f"<site>/acme_plugin-1.0.dist-info has lost its METADATA; {remedy}")
    shutil.rmtree(left)
    environment.install(ACME)
    assert_trains(environment, "acme")


def test_two_versions_side_by_side_are_refused_and_the_remedy_works(environment, tmp_path):
    first = environment.site / "acme_plugin-1.0.dist-info"
    shutil.copytree(first, tmp_path / "kept")
    environment.install(Plugin(ACME.name, ACME.text, "1.1", ENTRY_POINTS))
    shutil.copytree(tmp_path / "kept", first)
    version = environment.records(environment.engine_core("plugins", "list", "--json"), "acme")[0]["version"]
    assert_refused(
        environment,
        version,
        "acme_plugin-1.0.dist-info and acme_plugin-1.1.dist-info lie side by side in <site>, and it is unclear which "
        "of them owns the modules; run `pip uninstall acme-plugin` until none is left, then install one",
    )
    environment.pip("uninstall", "--yes", "acme-plugin")
    environment.pip("uninstall", "--yes", "acme-plugin")
    assert list(environment.site.glob("acme*")) == []
    environment.install(ACME)
    assert_trains(environment, "acme")


@pytest.fixture
def editable(make_environment, tmp_path):
    """Install from a source tree, with the build backend of the environment that runs the tests."""
    environment = make_environment([HONEST])
    source, backend = ACME.write(tmp_path / "acme"), tmp_path / "backend"
    backend.mkdir()
    for name in ("hatchling", "pathspec", "trove_classifiers", "pluggy", "packaging"):
        (folder,) = importlib.import_module(name).__path__
        (backend / name).symlink_to(folder)
    install = ("install", "--no-deps", "--no-index", "--no-build-isolation", "--editable", str(source))
    environment.pip(*install, PYTHONPATH=str(backend))
    return environment, source


def test_an_editable_install_is_a_plugin_like_others(editable):
    environment, source = editable
    for command, imported in (("list", ""), ("doctor", " # s no")):
        done = environment.engine_core("plugins", command)
        assert environment.about(done, "acme") == [f"algorithms acme acme-plugin 1.0 available{imported}"]
        assert done.code == 0
    assert_trains(environment, "acme", "honest")
    with (source / "acme_plugin.py").open("a") as module:
        module.write("\n1 / 0\n")
    done = environment.train("acme")
    assert (done.code, done.stderr) == (
        2,
        (
            "Error: run.yaml:6: algorithms[0]: algorithm 'acme' of acme-plugin 1.0 can't be loaded from "
            f"'acme_plugin:Acme': ZeroDivisionError: division by zero (at {source}/acme_plugin.py:14); fix or "
            "uninstall acme-plugin, or disable it with ENGINE_CORE_DISABLE_PLUGINS=acme-plugin:acme\n"
        ),
    )


def test_an_editable_install_whose_folder_is_gone_is_refused(editable):
    environment, source = editable
    shutil.rmtree(source)
    assert_refused(
        environment,
        "1.0",
        GONE,
        when_imported=True,
    )
    environment.pip("uninstall", "--yes", "acme-plugin")
    assert environment.about(environment.engine_core("plugins", "list"), "acme") == []


def test_a_plugin_that_is_uninstalled_between_two_runs(environment):
    assert_trains(environment, "acme")
    before = sorted(path.name for path in environment.site.glob("acme*"))
    environment.pip("uninstall", "--yes", "acme-plugin")
    assert (before, list(environment.site.glob("**/*acme*"))) == (["acme_plugin-1.0.dist-info", "acme_plugin.py"], [])
    known = "honest"
    assert environment.train("acme") == Done(
        2,
        "",
        f"Error: run.yaml:6: algorithms[0]: 'acme' is not among the installed algorithms; known: {known}; see "
        "`engine-core plugins list`; install more with pip\n",
    )
    assert not environment.has_trained()
    assert_trains(environment, "honest")


def test_a_run_that_requires_a_distribution_says_how_to_get_it_before_anything_is_imported(environment):
    require = 'require_plugins: ["acme-plugin>=1,<2"]\n'
    assert environment.train("acme", more=require).code == 0
    broken = Plugin(ACME.name, "raise AssertionError", "2.0", ENTRY_POINTS)
    environment.install(broken)
    assert environment.train("acme", more=require) == Done(
        2,
        "",
        "Error: run.yaml:7: require_plugins[0]: acme-plugin<2,>=1 is required, but acme-plugin 2.0 is installed; "
        "run: pip install 'acme-plugin<2,>=1'\n",
    )
    assert not environment.has_trained()
    environment.pip("uninstall", "--yes", "acme-plugin")
    assert environment.train("acme", more=require).stderr.startswith(
        "Error: run.yaml:7: require_plugins[0]: acme-plugin<2,>=1 is required and no plugin of acme-plugin is "
        "installed (installed: engine-core "
    )


def test_without_torch_the_doctor_works_and_says_what_needs_it(make_environment, base, tmp_path):
    for item in base.iterdir():
        if not item.name.startswith(("torch", "functorch")):
            (tmp_path / item.name).symlink_to(item)
    environment = make_environment([HONEST, DEEP], tmp_path)
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


def test_where_torch_is_installed_the_doctor_says_what_imports_it(make_environment):
    environment = make_environment([HONEST, DEEP])
    done = environment.engine_core("plugins", "doctor", "--timeout", "300")  # torch's first import, without bytecode
    assert environment.about(done, "deep", "honest") == [
        "algorithms deep deep-plugin 1.0 available # s yes",
        "algorithms honest honest-plugin 1.0 available # s no",
    ]
    assert done.code == 0
