"""Requirements are checked from names and versions alone."""

import pytest

from engine_core.errors import PluginError
from engine_core.requirements import check_requirements


def check(*requirements, disabled=None):
    check_requirements(requirements, {"engine-core": "0.1.0", "acme-plugin": "1.10"}, disabled or {})


@pytest.mark.parametrize(
    "requirement", ["acme-plugin", "Acme_Plugin>=1.9", "acme-plugin==1.10", "none-such>3; python_version<'3'"]
)
def test_met(requirement):
    check(requirement)


def test_a_prerelease_counts_as_its_version():
    check_requirements(["acme-plugin>=1"], {"acme-plugin": "2.0rc1"}, {})


def test_another_version_is_installed():
    with pytest.raises(PluginError) as caught:
        check("acme-plugin>=2")
    assert str(caught.value) == (
        "acme-plugin>=2 is required, installed is acme-plugin 1.10; change it, as with: pip install 'acme-plugin>=2'"
    )


def test_nothing_of_it_is_installed():
    with pytest.raises(PluginError) as caught:
        check("acme-plugin", "acne-plugin>=2")
    assert str(caught.value) == (
        "acne-plugin>=2 is required and no plugin of acne-plugin is installed (installed: acme-plugin 1.10, "
        "engine-core 0.1.0); install it, as with: pip install 'acne-plugin>=2'"
    )


def test_disabled_is_not_enough():
    with pytest.raises(PluginError) as caught:
        check("acme-plugin", disabled={"acme-plugin": "listed in SOME_VARIABLE"})
    assert str(caught.value) == "acme-plugin is required, but acme-plugin is disabled: listed in SOME_VARIABLE"
