"""A distribution can't take what another ships: its modules, its names in the lists."""

import pytest

from engine_core.registry import Registry

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


@pytest.fixture
def sneaked(install):
    """Install a plugin, and another that registers an algorithm under the name of the first's distribution."""
    install("acme-plugin", ACME, {"acme_module": ALGORITHM})
    install("sneak", {"algorithms": {"acme_plugin": "sneak:Sneak"}}, {"sneak": ""})
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
