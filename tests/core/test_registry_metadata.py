"""What is damaged or gone, and what is misspelt: nothing is trusted, nothing else suffers, and it is said."""

import pytest

from engine_core.errors import PluginError
from engine_core.registry import Registry

ACME = {"algorithms": {"acme": "acme_module:Acme"}}


@pytest.fixture
def site(tmp_path):
    return tmp_path / "site-packages"


def record():
    (found,) = (r for r in Registry.scan().records if r.name == "acme")
    return found


def refusal(name="acme"):
    with pytest.raises(PluginError) as refused:
        Registry.scan().load("algorithms", name)
    return str(refused.value)


@pytest.mark.parametrize("left", [None, "gone_module/__pycache__"])
def test_a_dist_info_whose_module_is_gone_is_found_stale_when_it_is_loaded(install, site, left):
    if left is not None:
        (site / left).mkdir(parents=True)
    install("acme-plugin", {"algorithms": {"acme": "gone_module.part:Acme"}})
    assert record().status == "available"
    assert refusal().endswith(
        "; acme-plugin lacks a module of its own; install it again, or run: pip uninstall acme-plugin"
    )
    assert record().status == "broken"


def test_two_versions_side_by_side_are_refused_as_it_is_unknown_which_one_is_imported(install, site):
    install("acme-plugin", ACME, {"acme_module": "raise AssertionError"}, version="1.0")
    install("acme-plugin", ACME, version="0.9")
    reason = (
        f"acme_plugin-0.9.dist-info and acme_plugin-1.0.dist-info lie side by side in {site}, and it is unclear which "
        "of them owns the modules; run `pip uninstall acme-plugin` until none is left, then install one"
    )
    assert (record().status, record().reason) == ("broken", reason)
    assert refusal().endswith(f" can't be loaded from 'acme_module:Acme': {reason}")
    with pytest.raises(PluginError, match=rf"^acme-plugin is required, but acme-plugin {record().version} is broken: "):
        Registry.scan().require(["acme-plugin"])


def test_what_has_lost_its_metadata_is_refused(install, site):
    install("acme-plugin", ACME, {"acme_module": "raise AssertionError"}, metadata=False)
    assert (record().distribution, record().version, record().status, record().reason) == (
        "acme-plugin",
        "?",
        "broken",
        (
            f"{site / 'acme_plugin-1.0.dist-info'} has lost its METADATA; delete that folder, and install the "
            "distribution again"
        ),
    )


@pytest.mark.parametrize("nonsense", [b"\xff\xfe[engine_core.algorithms]", b"[engine_core.algorithms]\nacme"])
def test_entry_points_that_cannot_be_read_are_a_finding_that_a_run_points_to_and_hurt_no_other(install, site, nonsense):
    install("good-plugin", {"algorithms": {"good": "good_module:Good"}}, {"good_module": ""})
    install("acme-plugin", {})
    file = site / "acme_plugin-1.0.dist-info" / "entry_points.txt"
    file.write_bytes(nonsense)
    registry = Registry.scan(refresh=True)
    assert registry.find("algorithms", "good").status == "available"
    (finding,) = registry.findings
    assert finding.startswith(f"{file} can't be read (")
    assert finding.endswith("); install it again, or report it to its authors")
    assert refusal().endswith("; not all that is installed can be read: run `engine-core plugins doctor`")


def test_what_pip_leaves_of_an_interrupted_removal_is_ignored(install, site):
    install("acme-plugin", ACME, {"acme_module": ""})
    (site / "acme_plugin-1.0.dist-info").rename(site / "~cme_plugin-1.0.dist-info")
    assert [r for r in Registry.scan(refresh=True).records if r.name == "acme"] == []


@pytest.mark.parametrize("value", ["not a value!!", "acme_module:", "", ":Acme", "acme_module"])
def test_an_entry_point_that_names_nothing_breaks_its_own_distribution_at_most(install, value):
    install("acme-plugin", {"algorithms": {"acme": value}}, {"acme_module": ""})
    install("fine-plugin", {"algorithms": {"fine": "acme_module:Fine"}})
    said = refusal()  # some versions of importlib-metadata don't read such a file at all
    assert "'acme'" in said
    assert "can't be loaded from" in said or "not all that is installed can be read" in said
    assert Registry.scan().find("algorithms", "fine").status == "available"


@pytest.mark.parametrize(
    ("group", "meant"),
    [
        ("engine_core.algorithm", "did you mean 'engine_core.algorithms'?"),
        ("engine_core.algos", "did you mean 'engine_core.algorithms'?"),
        ("engine-core.algorithms", "did you mean 'engine_core.algorithms'?"),
        ("engine_core_algorithms", "did you mean 'engine_core.algorithms'?"),
        ("Engine_Core.Pass", "did you mean 'engine_core.passes'?"),
    ],
)
def test_an_unknown_group_of_ours_is_a_finding_with_the_nearest(install, site, group, meant):
    install("acme-plugin", {}, {"acme_module": ""})
    entries = f"[{group}]\nacme = acme_module:Acme\n"
    (site / "acme_plugin-1.0.dist-info" / "entry_points.txt").write_text(entries)
    assert Registry.scan(refresh=True).findings == (
        f"acme-plugin registers 'acme' in the unknown group {group!r}; {meant}",
    )


@pytest.mark.parametrize("value", ["acme_module:Acme [gpu]", "acme_module : Acme[gpu,more]"])
def test_extras_of_an_entry_point_are_ignored(install, value):
    install("acme-plugin", {"algorithms": {"acme": value}}, {"acme_module": ""})
    assert (record().status, record().entry_point) == ("available", "acme_module:Acme")


def test_a_disabled_plugin_is_disabled_whatever_else_is_wrong_with_it(install, monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "acme-plugin")
    install("acme-plugin", ACME, metadata=False)
    assert (record().status, record().reason) == ("disabled", "listed in ENGINE_CORE_DISABLE_PLUGINS")


@pytest.mark.parametrize("item", ["acme-plugin : acme", " ACME ", "Acme_Plugin\n", ",,acme,"])
def test_white_space_and_spelling_in_a_list_do_not_matter(install, monkeypatch, item):
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", item)
    install("acme-plugin", ACME, {"acme_module": ""})
    assert record().status == "disabled"


@pytest.mark.parametrize("variable", ["ENGINE_CORE_PLUGINS", "ENGINE_CORE_DISABLE_PLUGINS"])
def test_a_probable_misspelling_in_a_list_is_reported(install, monkeypatch, variable):
    monkeypatch.setenv(variable, "acme-plugn, somebody-else, acme-plugin:acne, acme, loss_guard")
    install("acme-plugin", ACME, {"acme_module": ""})
    assert [doubt for doubt in Registry.scan().doubts if "somebody-else" not in doubt] == [
        (
            f"{variable} lists 'acme-plugin:acne', which is not an installed plugin or distribution; "
            "did you mean 'acme-plugin:acme'?"
        ),
        f"{variable} lists 'acme-plugn', which is not an installed plugin or distribution; did you mean 'acme-plugin'?",
        f"{variable} lists 'loss_guard', which has no effect: engine-core's own plugins are always enabled",
    ]
