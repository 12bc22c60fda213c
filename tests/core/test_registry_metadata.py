"""What metadata shows to be wrong with what is installed, reported before anything is imported."""

import json
import sys

import pytest

from engine_core.errors import PluginError
from engine_core.registry import Registry
from engine_core.registry.distributions import module_exists

ACME = {"algorithms": {"acme": "acme_module:Acme"}}


@pytest.fixture
def site(tmp_path):
    return tmp_path / "site-packages"


def record():
    (found,) = (r for r in Registry.scan().records if r.name == "acme")
    return found


def refusal():
    with pytest.raises(PluginError) as refused:
        Registry.scan().find("algorithms", "acme")
    return str(refused.value)


def test_a_dist_info_whose_module_is_gone_is_stale(install, site):
    install("acme-plugin", ACME)
    left = site / "acme_plugin-1.0.dist-info"
    assert (record().status, record().reason) == (
        "broken",
        (
            f"there is no module 'acme_module': only a stale {left} is left of acme-plugin; "
            "install it again, or delete that folder"
        ),
    )
    assert (
        refusal() == f"algorithm 'acme' of acme-plugin 1.0 can't be loaded from 'acme_module:Acme': {record().reason}"
    )


def test_pip_can_remove_a_stale_dist_info_that_has_a_record(install, site):
    install("acme-plugin", ACME)
    (site / "acme_plugin-1.0.dist-info" / "RECORD").write_text("")
    Registry.scan(refresh=True)
    assert record().reason.endswith("is left of acme-plugin; install it again, or run: pip uninstall acme-plugin")


def test_a_folder_without_code_is_not_a_module(install, site):
    (site / "acme_module" / "__pycache__").mkdir(parents=True)
    install("acme-plugin", ACME)
    assert record().status == "broken"


def test_a_namespace_package_is_inspected_and_not_imported(install, site):
    (site / "acme_space" / "deep").mkdir(parents=True)
    (site / "acme_space" / "deep" / "__init__.py").write_text("raise AssertionError")
    install("acme-plugin", {"algorithms": {"acme": "acme_space.deep.deeper:Acme", "other": "acme_space.gone:Other"}})
    assert [r.status for r in Registry.scan().records if r.distribution == "acme-plugin"] == ["available", "broken"]
    assert [name for name in sys.modules if name.startswith("acme_space")] == []


def test_of_a_module_in_a_package_nothing_is_known_before_the_import(install):
    install("acme-plugin", {"algorithms": {"acme": "acme_module.gone:Acme"}}, {"acme_module": "raise AssertionError"})
    assert record().status == "available"


def test_an_editable_install_whose_folder_is_gone_says_where_it_was(install, site):
    install("acme-plugin", ACME)
    origin = {"url": "file:///somewhere/acme", "dir_info": {"editable": True}}
    (site / "acme_plugin-1.0.dist-info" / "direct_url.json").write_text(json.dumps(origin))
    Registry.scan(refresh=True)
    assert record().reason == (
        "there is no module 'acme_module': acme-plugin is an editable install of file:///somewhere/acme; bring that "
        "back and install it again, or run: pip uninstall acme-plugin"
    )


def test_two_versions_side_by_side_are_refused_as_it_is_unknown_which_one_is_imported(install, site):
    install("acme-plugin", ACME, {"acme_module": "raise AssertionError"}, version="1.0")
    install("acme-plugin", ACME, version="0.9")
    reason = (
        f"0.9 and 1.0 of acme-plugin lie side by side in {site}, and it is unclear which of them owns the modules; run "
        "`pip uninstall acme-plugin` until none is left, then install one"
    )
    assert (record().status, record().version, record().reason) == ("broken", "0.9", reason)
    assert refusal() == f"algorithm 'acme' of acme-plugin 0.9 can't be loaded from 'acme_module:Acme': {reason}"
    with pytest.raises(PluginError) as unmet:
        Registry.scan().require(["acme-plugin>=0.9"])
    assert str(unmet.value) == f"acme-plugin>=0.9 is required, but acme-plugin 0.9 is broken: {reason}"


def test_of_two_dist_infos_the_one_with_metadata_counts(install):
    install("acme-plugin", ACME, {"acme_module": ""}, version="1.0")
    install("acme-plugin", ACME, version="0.9", metadata=False)
    assert (record().status, record().version, record().reason) == ("available", "1.0", "")


def test_lost_metadata_is_reported_and_not_refused(install, site):
    install("acme-plugin", ACME, {"acme_module": ""}, metadata=False)
    assert (record().distribution, record().version, record().status, record().reason) == (
        "acme-plugin",
        "?",
        "available",
        (
            f"its version is not known, since {site / 'acme_plugin-1.0.dist-info'} has lost its METADATA; delete that "
            "folder and install acme-plugin again"
        ),
    )


def test_what_pip_leaves_of_an_interrupted_removal_is_ignored(install, site):
    install("acme-plugin", ACME, {"acme_module": ""})
    (site / "acme_plugin-1.0.dist-info").rename(site / "~cme_plugin-1.0.dist-info")
    assert [r for r in Registry.scan(refresh=True).records if r.name == "acme"] == []


@pytest.mark.parametrize("value", ["not a value!!", "acme_module:", "", ":Acme", "acme_module"])
def test_an_entry_point_that_names_nothing_breaks_only_itself(install, value):
    install("acme-plugin", {"algorithms": {"acme": value, "fine": "acme_module:Fine"}}, {"acme_module": ""})
    assert (record().status, record().reason) == (
        "broken",
        f"{value!r} is not of the form 'module:attribute'; report it to the authors of acme-plugin",
    )
    assert Registry.scan().find("algorithms", "fine").status == "available"


@pytest.mark.parametrize(
    ("group", "meant"),
    [
        ("engine_core.algorithm", "'engine_core.algorithms'"),
        ("engine_core.algos", "'engine_core.algorithms'"),
        ("engine-core.algorithms", "'engine_core.algorithms'"),
        ("engine_core_algorithms", "'engine_core.algorithms'"),
        ("Engine_Core.Pass", "'engine_core.passes'"),
        (
            "engine_core.loggers",
            "one of 'engine_core.algorithms', 'engine_core.passes', 'engine_core.callbacks', 'engine_core.loops'",
        ),
    ],
)
def test_an_unknown_group_of_ours_is_reported_with_the_nearest(install, site, group, meant):
    install("acme-plugin", {}, {"acme_module": ""})
    entries = f"[{group}]\nacme = acme_module:Acme\n"
    (site / "acme_plugin-1.0.dist-info" / "entry_points.txt").write_text(entries)
    Registry.scan(refresh=True)
    assert (record().status, record().reason) == (
        "broken",
        f"registered in the unknown group {group!r}; its authors have to write {meant}",
    )


def test_where_a_name_is_in_the_right_group_too_that_counts(install, site):
    install("acme-plugin", {"algorithm": {"acme": "old:Acme"}, "algorithms": {"acme": "new:Acme"}}, {"new": ""})
    assert (record().status, record().entry_point) == ("available", "new:Acme")


def test_a_name_that_a_distribution_registers_twice_is_broken(install, site):
    install("acme-plugin", {}, {"one": "", "two": ""})
    entries = "[engine_core.algorithms]\nacme = one:Acme\nacme = two:Acme\n"
    (site / "acme_plugin-1.0.dist-info" / "entry_points.txt").write_text(entries)
    Registry.scan(refresh=True)
    assert (record().status, record().reason) == (
        "broken",
        "registered twice under this name, as 'one:Acme' and as 'two:Acme'; report it to the authors of acme-plugin",
    )


def test_a_byte_order_mark_does_not_matter(install, site):
    install("acme-plugin", {}, {"acme_module": ""})
    entries = "[engine_core.algorithms]\nacme = acme_module:Acme\n"
    (site / "acme_plugin-1.0.dist-info" / "entry_points.txt").write_text(entries, encoding="utf-8-sig")
    Registry.scan(refresh=True)
    assert record().status == "available"


@pytest.mark.parametrize("name", ["", "a,b", "acme:plugin", "\x1b[31m"])
def test_an_impossible_name_is_broken(install, name, monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "")
    install("acme-plugin", {"algorithms": {name: "acme_module:Acme"}}, {"acme_module": ""})
    (found,) = (r for r in Registry.scan().records if r.distribution == "acme-plugin")
    assert (found.status, found.reason) == (
        "broken",
        f"{name!r} can't be a name: it is empty, or has ':' or ',' in it; report it to the authors of acme-plugin",
    )


@pytest.mark.parametrize("value", ["acme_module:Acme [gpu]", "acme_module : Acme[gpu,more]"])
def test_extras_of_an_entry_point_are_ignored(install, value):
    install("acme-plugin", {"algorithms": {"acme": value}}, {"acme_module": ""})
    assert (record().status, record().entry_point) == ("available", "acme_module:Acme")


def test_a_disabled_plugin_is_disabled_whatever_else_is_wrong_with_it(install, monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "acme-plugin")
    install("acme-plugin", ACME)
    assert (record().status, record().reason) == ("disabled", "listed in ENGINE_CORE_DISABLE_PLUGINS")


@pytest.mark.parametrize("item", ["acme-plugin : acme", " ACME ", "Acme_Plugin\n", ",,acme,"])
def test_white_space_and_spelling_in_a_list_do_not_matter(install, monkeypatch, item):
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", item)
    install("acme-plugin", ACME, {"acme_module": ""})
    assert record().status == "disabled"


@pytest.mark.parametrize("variable", ["ENGINE_CORE_PLUGINS", "ENGINE_CORE_DISABLE_PLUGINS"])
def test_a_probable_misspelling_in_a_list_is_reported(install, monkeypatch, variable):
    monkeypatch.setenv(variable, "acme-plugn, somebody-else, acme-plugin:acne, acme, profiler")
    install("acme-plugin", ACME, {"acme_module": ""})
    assert [doubt for doubt in Registry.scan().doubts if "somebody-else" not in doubt] == [
        (
            f"{variable} lists 'acme-plugin:acne', which is not an installed plugin or distribution; "
            "did you mean 'acme-plugin:acme'?"
        ),
        f"{variable} lists 'acme-plugn', which is not an installed plugin or distribution; did you mean 'acme-plugin'?",
        f"{variable} lists 'profiler', which has no effect: engine-core's own plugins are always enabled",
    ]


def test_a_module_that_is_there_already_exists_even_without_a_spec(monkeypatch):
    monkeypatch.setitem(sys.modules, "acme_made_up", type(sys)("acme_made_up"))
    assert module_exists("acme_made_up")
    assert not module_exists("acme_made_up_too")
