"""Requirements are checked from names and versions alone."""

import pytest

from engine_core.errors import ArgumentError, ArgumentTypeError, PluginError
from engine_core.registry import Registry, installed_version
from engine_core.registry.requirements import check_requirements, unmet


def check(*requirements, unusable=None):
    check_requirements(requirements, {"engine-core": "0.1.0", "acme-plugin": "1.10"}, unusable or {})


@pytest.mark.parametrize(
    "requirement",
    [
        "acme-plugin",
        "Acme_Plugin>=1.9",
        "acme.plugin>=1.9",
        "acme-plugin==1.10",
        "acme-plugin[all]~=1.9",
        "none-such>3; python_version<'3'",
        "engine-core>=0.1",
    ],
)
def test_met(requirement):
    check(requirement)


@pytest.mark.parametrize(("installed", "met"), [("2.0rc1", True), ("1.0rc1", False), ("1.0.dev3", False)])
def test_a_prerelease_counts_as_what_it_is(installed, met):
    if met:
        check_requirements(["acme-plugin>=1"], {"acme-plugin": installed}, {})
    else:
        with pytest.raises(PluginError, match=f"^acme-plugin>=1 is required, but acme-plugin {installed} is installed"):
            check_requirements(["acme-plugin>=1"], {"acme-plugin": installed}, {})


@pytest.mark.parametrize("version", ["?", "unknown", "1.0-custom-build"])
def test_a_version_that_cannot_be_read_meets_only_a_bare_name(version):
    check_requirements(["acme-plugin"], {"acme-plugin": version}, {})
    with pytest.raises(PluginError) as caught:
        check_requirements(["acme-plugin>=0"], {"acme-plugin": version}, {})
    assert str(caught.value) == (
        f"acme-plugin>=0 is required, but acme-plugin {version} is installed; run: pip install 'acme-plugin>=0'"
    )


def test_all_requirements_of_one_distribution_have_to_be_met():
    check("acme-plugin>=1", "acme-plugin<2", "acme-plugin<2")
    with pytest.raises(PluginError, match=r"^Acme-Plugin>=2 is required"):
        check("acme-plugin>=1", "Acme-Plugin>=2")


def test_a_distribution_without_plugins_cannot_be_required():
    with pytest.raises(PluginError) as caught:
        check("pluggy>=1")
    assert str(caught.value) == (
        f"pluggy>=1 is required, and pluggy {installed_version('pluggy')} is installed but ships no plugin; "
        "only distributions with plugins can be required"
    )


@pytest.mark.parametrize("requirement", ["acme-plugin=>1", "", "acme plugin"])
def test_nonsense_is_quoted_and_refused(requirement):
    with pytest.raises(ArgumentError, match=f"^{requirement!r} is not a requirement such as 'some-plugin>=1.2,<2': "):
        check("acme-plugin", requirement)


def test_why_it_is_nonsense_is_said_in_one_line():
    with pytest.raises(ArgumentError) as caught:
        check("acme-plugin=>1")
    assert "\n" not in str(caught.value)


def test_one_string_is_not_a_list_of_requirements():
    with pytest.raises(ArgumentTypeError, match=r"^requirements are a list; write \['acme-plugin>=1'\]$"):
        Registry.scan().require("acme-plugin>=1")


def test_a_requirement_is_a_string():
    with pytest.raises(ArgumentTypeError, match=r"^a requirement is a string such as 'some-plugin>=1.2,<2', not 3$"):
        check(3)


def test_another_version_is_installed():
    with pytest.raises(PluginError) as caught:
        check("acme-plugin>=2")
    assert str(caught.value) == (
        "acme-plugin>=2 is required, but acme-plugin 1.10 is installed; run: pip install 'acme-plugin>=2'"
    )


def test_nothing_of_it_is_installed():
    with pytest.raises(PluginError) as caught:
        check("acme-plugin", "other-plugin>=2")
    assert str(caught.value) == (
        "other-plugin>=2 is required and no plugin of other-plugin is installed (installed: acme-plugin 1.10, "
        "engine-core 0.1.0); install it: from engine-core's sources if it is part of them, else run: "
        "pip install 'other-plugin>=2'"
    )


def test_a_probable_misspelling_is_corrected_instead_of_installed():
    with pytest.raises(PluginError) as caught:
        check("acme-pluginn>=2")
    assert str(caught.value) == (
        "acme-pluginn>=2 is required and no plugin of acme-pluginn is installed (installed: acme-plugin 1.10, "
        "engine-core 0.1.0); did you mean 'acme-plugin'?"
    )


def test_a_plugins_name_is_answered_with_its_distribution(install):
    install("acme-plugin", {"algorithms": {"acme_thing": "m:A"}}, {"m": ""})
    with pytest.raises(PluginError, match=r"; 'acme_thing' is a plugin of acme-plugin; require that distribution$"):
        Registry.scan().require(["acme_thing>=1"])


def test_a_requirement_with_a_url_is_refused():
    with pytest.raises(ArgumentError) as caught:
        check("acme-plugin @ https://example.org/acme.whl")
    assert str(caught.value) == (
        "'acme-plugin @ https://example.org/acme.whl' has a URL, and where a distribution was installed from is not "
        "checked; write a version instead, as 'acme-plugin>=1.2'"
    )


def test_disabled_is_not_enough():
    with pytest.raises(PluginError) as caught:
        check("acme-plugin", unusable={"acme-plugin": "disabled: listed in SOME_VARIABLE"})
    assert str(caught.value) == "acme-plugin is required, but acme-plugin 1.10 is disabled: listed in SOME_VARIABLE"


def test_what_a_distribution_lacks_is_reported_with_what_is_there_instead():
    requires = [
        "none-such; os_name != 'q'",
        "Pluggy>=99",
        "pluggy<99",
        "no >> 1",
        "x; extra == 'y'",
        "z; os_name == 'q'",
    ]
    assert unmet(requires) == [
        ("none-such", "not installed"),
        ("Pluggy>=99", f"not what is installed: {installed_version('pluggy')}"),
    ]
