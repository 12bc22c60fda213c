"""Requirements are checked from names and versions alone."""

import pytest

from engine_core.errors import ArgumentError, ArgumentTypeError, PluginError
from engine_core.registry import Registry, installed_version, unmet

CORE = installed_version("engine-core")


@pytest.fixture
def check(install, monkeypatch):
    """Return `check(*requirements)` where acme-plugin 1.10 is installed, and of the others the core alone is seen."""
    monkeypatch.setenv("ENGINE_CORE_PLUGINS", "acme-plugin")
    install("acme-plugin", {"algorithms": {"acme_thing": "acme_module:A"}}, {"acme_module": "1 / 0"}, version="1.10")
    registry = Registry.scan()
    registry.records = tuple(r for r in registry.records if r.distribution in ("engine-core", "acme-plugin"))
    return lambda *requirements: registry.require(list(requirements))


def refused(check, *requirements):
    with pytest.raises(PluginError) as caught:
        check(*requirements)
    return str(caught.value)


def test_met_by_names_and_versions_however_they_are_spelt_without_an_import(check):
    for requirement in (
        *("acme-plugin", "Acme_Plugin>=1.9", "acme.plugin>=1.9", "acme-plugin==1.10", "acme-plugin[all]~=1.9"),
        *("none-such>3; python_version<'3'", "engine-core>=0.1.dev0"),
    ):
        check(requirement)
    check("acme-plugin>=1", "acme-plugin<2", "acme-plugin<2")


def test_a_prerelease_counts_as_what_it_is(install):
    install("acme-plugin", {"algorithms": {"acme": "acme_module:A"}}, version="1.0rc1")
    Registry.scan().require(["acme-plugin>=0.9"])
    with pytest.raises(PluginError, match=r"^acme-plugin>=1 is required, but acme-plugin 1.0rc1 is installed"):
        Registry.scan().require(["acme-plugin>=1"])


def test_all_requirements_of_one_distribution_have_to_be_met(check):
    assert refused(check, "acme-plugin>=1", "Acme-Plugin>=2") == (
        "Acme-Plugin>=2 is required, but acme-plugin 1.10 is installed; run: pip install 'Acme-Plugin>=2'"
    )


def test_a_distribution_without_plugins_cannot_be_required(check):
    assert refused(check, "pluggy>=1") == (
        f"pluggy>=1 is required, and pluggy {installed_version('pluggy')} is installed but ships no plugin; "
        "only distributions with plugins can be required"
    )


def test_what_is_not_a_list_of_requirements_is_refused(check):
    for given in ("acme-plugin=>1", "", "acme plugin"):
        with pytest.raises(ArgumentError, match=f"^{given!r} is not a requirement such as 'some-plugin>=1.2,<2': .*$"):
            check("acme-plugin", given)
    with pytest.raises(ArgumentTypeError, match=r"^requirements are a list; write \['acme-plugin>=1'\]$"):
        Registry.scan().require("acme-plugin>=1")
    with pytest.raises(ArgumentTypeError, match=r"^a requirement is a string such as 'some-plugin>=1.2,<2', not 3$"):
        check(3)


def test_nothing_of_it_is_installed(check):
    for requirement, remedy in [
        ("other>=2", "install it: from engine-core's sources if it is part of them, else run: pip install 'other>=2'"),
        ("acme-pluginn>=2", "did you mean 'acme-plugin'?"),
        ("acme_thing>=1", "'acme_thing' is a plugin of acme-plugin; require that distribution"),
    ]:
        name = requirement.partition(">")[0].replace("_", "-")
        assert refused(check, "acme-plugin", requirement) == (
            f"{requirement} is required and no plugin of {name} is installed (installed: acme-plugin 1.10, "
            f"engine-core {CORE}); {remedy}"
        )


def test_disabled_is_not_enough(check, monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "acme-plugin")
    with pytest.raises(PluginError) as caught:
        Registry.scan().require(["acme-plugin"])
    assert str(caught.value) == (
        "acme-plugin is required, but acme-plugin 1.10 is disabled: listed in ENGINE_CORE_DISABLE_PLUGINS"
    )


def test_what_a_distribution_lacks_is_reported_with_what_is_there_instead(install, tmp_path):
    install("acme-plugin", {})
    requires = ["none-such; os_name != 'q'", "odd (>1.*)", "Pluggy>=99", "pluggy<99"]
    requires += ["x; extra == 'y'", "z; os_name == 'q'"]
    with (tmp_path / "site-packages" / "acme_plugin-1.0.dist-info" / "METADATA").open("a") as metadata:
        metadata.writelines(f"Requires-Dist: {requirement}\n" for requirement in requires)
    assert unmet("acme-plugin") == [
        ("none-such", "not installed"),
        ("Pluggy>=99", f"not what is installed: {installed_version('pluggy')}"),
    ]
