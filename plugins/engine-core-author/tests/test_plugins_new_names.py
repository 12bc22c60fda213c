"""`engine-core plugins new`: which names are possible, which are not and why, and what follows from a name."""

import ast
import sys

import pytest

from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core_author.scaffold import create_plugin
from engine_core_author.scaffold.naming import name_plugin


def refusal(*names):
    with pytest.raises(ArgumentError) as refused:
        name_plugin(*names)
    return str(refused.value)


@pytest.mark.parametrize(
    ("name", "package", "algorithm", "class_name"),
    [
        ("My.Awkward-Name", "my_awkward_name", "my_awkward_name", "MyAwkwardName"),
        ("two--dashes", "two__dashes", "two__dashes", "TwoDashes"),
        ("x", "x", "x", "X"),
        ("in-3d", "in_3d", "in_3d", "In3d"),
        ("match", "match", "match", "Match"),  # a word only where a statement begins, so a package can have it
        ("l" * 40, "l" * 40, "l" * 40, "L" + "l" * 39),
        ("lookahead-plugin", "lookahead_plugin", "lookahead", "Lookahead"),
        ("SAM2_Plugin", "sam2_plugin", "sam2", "SAM2"),
        ("random-plugin", "random_plugin", "random", "Random"),  # only a module clashes with one of that name
        ("plugin-plugin-plugin", "plugin_plugin_plugin", "plugin_plugin", "PluginPlugin"),
        ("plugin", "plugin", "plugin", "Plugin"),
        ("plugin-sam", "plugin_sam", "plugin_sam", "PluginSam"),
    ],
)
def test_package_algorithm_and_class_follow_from_the_name(name, package, algorithm, class_name):
    assert name_plugin(name) == (name, package, algorithm, class_name)
    assert name_plugin(name, "look_ahead2") == (name, package, "look_ahead2", "LookAhead2")


@pytest.mark.parametrize(
    ("name", "class_name", "why"),
    [
        ("state", "PluginState", "the files import a State"),
        ("true-plugin", "PluginTrue", "True is a keyword"),
        ("value-error", "PluginValueError", "ValueError is built in"),
        ("test-noise", "PluginTestNoise", "pytest would take the class for a test"),
    ],
)
def test_a_class_name_that_means_something_gets_a_word_before_it(name, class_name, why):
    assert name_plugin(name).class_name == class_name, why


def test_no_class_is_named_like_something_that_its_files_import(tmp_path):
    imported = set()
    create_plugin("my-algo", tmp_path)
    create_plugin("my-algo-plugin", tmp_path, algorithm="my_algo", example=True, with_pass=True)
    for file in tmp_path.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                imported |= {alias.name for alias in node.names} - {"MyAlgo"}
    assert {"Algorithm", "State", "Any", "PassConformance"} <= imported
    in_camel_case = [name for name in sorted(imported) if name[0].isupper()]
    assert [name for name in in_camel_case if name_plugin(name).class_name == name] == []


OTHERWISE = "; choose another, or name its algorithm with --algorithm"
LEGAL = "the name of a distribution has ASCII letters, digits, '-', '_' and '.', and begins and ends with "
LEGAL_ALGORITHM = "that has lower-case ASCII letters, digits and '_', and begins with a letter"


@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [
        ("", LEGAL_ALGORITHM),
        ("_x", f"{LEGAL_ALGORITHM}, as in 'x'"),
        ("Look ahead", f"{LEGAL_ALGORITHM}, as in 'look_ahead'"),
        ("l" * 41, "it has 41 characters, at most 40 fit in a line of code"),
        ("loss_guard", "engine-core has a plugin 'loss_guard' of its own"),
    ],
)
def test_an_impossible_name_of_an_algorithm_is_refused_with_the_reason(algorithm, reason):
    assert refusal("my-plugin", algorithm) == f"{algorithm!r} can't be the name of an algorithm: {reason}"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", LEGAL),
        ("-dash", LEGAL),
        ("../up", LEGAL),
        ("newline\n", LEGAL),
        ("3d", "its package would be '3d', which is not an identifier; begin with a letter"),
        ("l" * 41, "it has 41 characters, at most 40 fit in a line of code"),
        ("Nul.noise", "Windows reserves that name for a device"),
        ("class", "its package would be 'class', a keyword of Python"),
        ("Random", "its package would be 'random', a module of the standard library"),
        ("imp", "its package would be 'imp', a module of the standard library"),
        ("sitecustomize", "its package would be 'sitecustomize', which Python imports at every start"),
        ("torch", "its package would be 'torch', which its own tests install"),
        ("Engine_Core", "that is the engine itself"),
        ("progress-bar", f"engine-core has a plugin 'progress_bar' of its own{OTHERWISE}"),
        ("set.filo.order.plugin", f"engine-core has a plugin 'set_filo_order' of its own{OTHERWISE}"),
    ],
)
def test_an_impossible_name_is_refused_with_the_reason(name, reason):
    assert refusal(name).startswith(f"{name!r} can't be the name of a plugin: {reason}")


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"name": 5}, "the name of a plugin is a string"),
        ({"algorithm": 5}, "the name of an algorithm is a string"),
        ({"description": 5}, "the description of a plugin is a string"),
        ({"license": 5}, "the licence of a plugin is a string, one of Apache-2.0, BSD-3-Clause, MIT"),
    ],
)
def test_what_is_given_is_a_string(given, what, tmp_path):
    with pytest.raises(ArgumentTypeError, match=f"^{what}, not 5$"):
        create_plugin(**{"name": "my-plugin", "folder": tmp_path, **given})


def test_no_module_of_the_standard_library_is_shadowed():
    modules = [name for name in sorted(sys.stdlib_module_names) if name[0] != "_" and name.islower()]
    assert [name for name in modules if not refusal(name).endswith("a module of the standard library")] == []


def test_the_name_of_another_installed_algorithm_would_be_ambiguous(install):
    install("acme", {"algorithms": {"my_algo": "acme:Acme"}}, version="1.2")
    ambiguous = "acme 1.2, which is installed, has an algorithm 'my_algo', and with both that name would be ambiguous"
    assert refusal("my-algo-plugin") == (f"'my-algo-plugin' can't be the name of a plugin: {ambiguous}{OTHERWISE}")
    assert refusal("my-plugin", "my_algo") == f"'my_algo' can't be the name of an algorithm: {ambiguous}"
    assert name_plugin("my-algo-plugin", "another").algorithm == "another"


def test_an_installed_distribution_is_not_replaced(install):
    install("acme-plugin", version="1.2")
    assert refusal("Acme_Plugin") == (
        "'Acme_Plugin' can't be the name of a plugin: acme-plugin 1.2 is installed, and this would replace it; choose "
        "another, or uninstall that"
    )


def test_a_module_that_is_there_already_is_not_shadowed(install, tmp_path):
    install("acme-plugin", modules={"acme_core": ""})
    assert refusal("acme-core") == (
        "'acme-core' can't be the name of a plugin: its package would be 'acme_core', which is already importable: "
        f"{tmp_path / 'site-packages' / 'acme_core.py'}"
    )


def test_neither_files_in_the_current_folder_nor_a_pass_that_is_installed_reserve_their_names(
    tmp_path, monkeypatch, install
):
    install("acme-plugin", {"passes": {"my_algo": "acme:my_algo"}})
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_algo.py").touch()
    assert name_plugin("my-algo").package == "my_algo"
