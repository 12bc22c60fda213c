"""A distribution can't take what another ships: modules, names in the lists, the core's identity."""

import importlib_metadata
import pytest

from engine_core.registry import Registry
from engine_core.registry.distributions import _lies_here

ALGORITHM = """
    from engine_core import Algorithm

    class Acme(Algorithm):
        def match(self, event, state):
            return True

        def apply(self, event, state, logger):
            return None
"""
ACME = {"algorithms": {"acme": "acme_module:Acme"}}


@pytest.fixture
def site(tmp_path):
    return tmp_path / "site-packages"


def record(name):
    (found,) = (r for r in Registry.scan().records if r.name == name)
    return found


def list_files(site, folder, *files):
    (site / folder / "RECORD").write_text("".join(f"{file},,\n" for file in (*files, f"{folder}/RECORD")))
    Registry.scan(refresh=True)


@pytest.fixture
def claimed(install, site):
    """Install a plugin, and another whose entry points lie in the plugin's modules."""
    install("acme-plugin", ACME, {"acme_module": ALGORITHM})
    list_files(site, "acme_plugin-1.0.dist-info", "acme_module.py")
    install("claim", {"algorithms": {"claimed": "acme_module:Acme", "deeper": "acme_module.made:Acme"}})
    list_files(site, "claim-1.0.dist-info")


@pytest.mark.parametrize("module", ["acme_module", "acme_module.made", "acme_module.made.deep"])
@pytest.mark.usefixtures("claimed")
def test_what_a_distribution_ships_stays_its_own_whatever_claims_it(module):
    assert Registry.scan().distribution_of(type("Acme", (), {"__module__": module})()) == "acme-plugin"


@pytest.mark.usefixtures("claimed")
def test_the_record_of_a_claimed_class_is_that_of_the_distribution_that_ships_it(monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "acme-plugin")
    Registry.scan(refresh=True)
    acme = Registry.scan().load("algorithms", "claimed")
    found = Registry.scan().identify(acme()).record
    assert (found.name, found.distribution, found.status) == ("acme", "acme-plugin", "disabled")


@pytest.mark.usefixtures("claimed")
def test_an_entry_point_in_the_module_of_another_is_reported():
    reason = "its entry point lies in 'acme_module', a module of acme-plugin; report it to the authors of claim"
    assert (record("claimed").status, record("claimed").reason) == ("available", reason)
    assert (record("acme").status, record("acme").reason) == ("available", "")


def test_an_entry_point_in_the_core_is_reported(install):
    install("claim", {"callbacks": {"mine": "engine_core.callbacks.profiler:Profiler"}})
    assert record("mine").reason == (
        "its entry point lies in 'engine_core.callbacks.profiler', a module of engine-core; report it to the authors "
        "of claim"
    )


def test_an_editable_install_ships_what_lies_in_its_folder(install, site, tmp_path, monkeypatch):
    source = tmp_path / "source"
    (source / "acme_module").mkdir(parents=True)
    (source / "acme_module" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(source)
    install("somebody", ACME)
    list_files(site, "somebody-1.0.dist-info", "somebody.pth")
    (site / "somebody-1.0.dist-info" / "direct_url.json").write_text(
        f'{{"url": "{source.as_uri()}", "dir_info": {{"editable": true}}}}'
    )
    install("claim", {"algorithms": {"claimed": "acme_module:Acme"}})
    list_files(site, "claim-1.0.dist-info")
    made = type("Acme", (), {"__module__": "acme_module"})()
    assert Registry.scan().distribution_of(made) == "somebody"


def test_without_lists_of_files_the_name_decides(install):
    install("acme-module", ACME, {"acme_module": ALGORITHM})
    install("claim", {"algorithms": {"claimed": "acme_module:Acme"}})
    assert Registry.scan().distribution_of(type("Acme", (), {"__module__": "acme_module"})()) == "acme-module"


def test_a_disabled_distribution_claims_nothing_from_others(install, monkeypatch):
    install("acme-plugin", ACME, {"acme_module": ALGORITHM})
    install("claim", {"algorithms": {"claimed": "acme_module:Acme"}})
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "claim")
    made = type("Acme", (), {"__module__": "acme_module"})()
    assert Registry.scan(refresh=True).distribution_of(made) == "acme-plugin"


@pytest.fixture
def sneaked(install):
    """Install a plugin, and another that registers an algorithm under the name of the first's distribution."""
    install("acme-plugin", ACME, {"acme_module": ALGORITHM})
    install("sneak", {"algorithms": {"acme_plugin": "sneak:Sneak", "acme-plugin:acme": "sneak:Sneak"}}, {"sneak": ""})
    install("acme", {"algorithms": {"other": "other:Other"}}, {"other": ""})

    return lambda status: sorted(r.name for r in Registry.scan().records if r.status == status and r.version == "1.0")


def test_an_allowed_distribution_lets_in_that_distribution_only(sneaked, monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_PLUGINS", "acme-plugin,acme-plugin:acme")
    assert sneaked("available") == ["acme"]


def test_a_denied_name_is_denied_also_where_a_distribution_has_it(sneaked, monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "acme")
    assert sneaked("disabled") == ["acme", "other"]


def test_a_denied_item_that_matches_nothing_is_reported_and_an_empty_one_is_not(install, monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "*, ,zzz,")
    monkeypatch.setenv("ENGINE_CORE_PLUGINS", "*, ,zzz,")
    install("acme-plugin", ACME, {"acme_module": ""})
    assert Registry.scan().doubts == (
        "ENGINE_CORE_DISABLE_PLUGINS lists '*', which is not an installed plugin or distribution",
        "ENGINE_CORE_DISABLE_PLUGINS lists 'zzz', which is not an installed plugin or distribution",
    )


def test_a_folder_and_a_name_that_differ_are_trusted_neither(install, site):
    install("c-core", {"algorithms": {"acme": "acme_module:Acme"}}, {"acme_module": ""})
    (site / "c_core-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: engine-core\nVersion: 9.9\n")
    Registry.scan(refresh=True)
    assert (record("acme").distribution, record("acme").status, record("acme").reason) == (
        "c-core",
        "broken",
        (
            f"{site / 'c_core-1.0.dist-info'} is named after c-core, but its METADATA says Name: engine-core, so "
            "its owner is unknown; delete that folder, and reinstall what you want"
        ),
    )


def test_the_core_is_where_engine_core_lies(install):
    if not _lies_here(importlib_metadata.distribution("engine-core")):
        pytest.skip("engine_core is imported from a folder, and the installed one lies elsewhere")
    version = Registry.scan().version_of("engine-core")
    install("engine-core", {"algorithms": {"evil": "evil:Evil"}}, {"evil": ""}, version="99")
    assert Registry.scan().version_of("engine-core") == version
    assert [r for r in Registry.scan().records if r.name == "evil"] == []
