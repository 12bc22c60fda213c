"""A distribution can't take what another ships: its modules, its names in the lists."""

import pytest

from engine_core.registry import Registry

from .parts import source_of

ACME = {"algorithms": {"acme": "acme_module:Acme"}}


@pytest.fixture
def site(tmp_path):
    return tmp_path / "site-packages"


def list_files(site, folder, *files):
    (site / folder / "RECORD").write_text("".join(f"{file},,\n" for file in (*files, f"{folder}/RECORD")))
    Registry.scan(refresh=True)


@pytest.fixture
def claimed(install, site):
    """Install a plugin, and another whose entry points lie in the plugin's modules."""
    install("acme-plugin", ACME, {"acme_module": source_of("Acme")})
    list_files(site, "acme_plugin-1.0.dist-info", "acme_module.py")
    install("claim", {"algorithms": {"claimed": "acme_module:Acme", "deeper": "acme_module.made:Acme"}})
    list_files(site, "claim-1.0.dist-info")


@pytest.mark.usefixtures("claimed")
def test_what_a_distribution_ships_stays_its_own_whatever_claims_it():
    made = [type("Acme", (), {"__module__": f"acme_module{inner}"})() for inner in ("", ".made", ".made.deep")]
    assert {Registry.scan().distribution_of(thing) for thing in made} == {"acme-plugin"}


@pytest.mark.usefixtures("claimed")
def test_the_record_of_a_claimed_class_is_that_of_the_distribution_that_ships_it(monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "acme-plugin")
    Registry.scan(refresh=True)
    acme = Registry.scan().load("algorithms", "claimed")
    found = Registry.scan().identify(acme()).record
    assert (found.name, found.distribution, found.status) == ("acme", "acme-plugin", "disabled")


@pytest.mark.parametrize(
    ("variable", "listed", "status", "names"),
    [
        ("ENGINE_CORE_PLUGINS", "acme-plugin,acme-plugin:acme", "available", ["acme"]),
        ("ENGINE_CORE_DISABLE_PLUGINS", "acme", "disabled", ["acme", "other"]),
    ],
)
def test_a_name_like_that_of_a_distribution_lets_nothing_else_in_and_is_denied_in_both_senses(
    install, monkeypatch, variable, listed, status, names
):
    monkeypatch.setenv(variable, listed)
    install("acme-plugin", ACME, {"acme_module": source_of("Acme")})
    install("sneak", {"algorithms": {"acme_plugin": "sneak:Sneak"}}, {"sneak": ""})
    install("acme", {"algorithms": {"other": "other:Other"}}, {"other": ""})
    assert sorted(r.name for r in Registry.scan().records if r.status == status and r.version == "1.0") == names


def test_a_denied_item_that_matches_nothing_is_reported_and_an_empty_one_is_not(install, monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "*, ,zzz,")
    monkeypatch.setenv("ENGINE_CORE_PLUGINS", "*, ,zzz,")
    install("acme-plugin", ACME, {"acme_module": ""})
    assert Registry.scan().doubts == (
        "ENGINE_CORE_DISABLE_PLUGINS lists '*', which is not an installed plugin or distribution",
        "ENGINE_CORE_DISABLE_PLUGINS lists 'zzz', which is not an installed plugin or distribution",
    )
