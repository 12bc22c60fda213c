import sys

import pytest

from engine_core import AlgorithmMetadata
from engine_core.errors import PluginError
from engine_core.registry import PluginRecord, Registry

ALGORITHM = """
    from engine_core import Algorithm

    class Fake(Algorithm):
        def match(self, event, state):
            return True

        def apply(self, event, state, logger):
            return None
"""


VERSION = Registry.scan().version_of("engine-core")


def records(*distributions):
    return [record for record in Registry.scan().records if record.distribution in distributions]


def test_an_installed_algorithm_is_listed_with_its_distribution(install):
    install("fake-plugin", {"algorithms": {"fake": "fake_module:Fake"}}, {"fake_module": ALGORITHM}, version="2.5")
    assert records("fake-plugin") == [
        PluginRecord("algorithms", "fake", "fake-plugin", "2.5", "fake_module:Fake", "available", "")
    ]


def test_scanning_and_finding_import_nothing(install):
    install("fake-plugin", {"algorithms": {"fake": "fake_module:Fake"}}, {"fake_module": "raise AssertionError"})
    assert Registry.scan().find("algorithms", "fake").name == "fake"
    assert "fake_module" not in sys.modules


def test_a_plugin_is_imported_when_it_is_loaded_and_once(install):
    install("fake-plugin", {"algorithms": {"fake": "fake_module:Fake"}}, {"fake_module": ALGORITHM})
    plugin = Registry.scan().load("algorithms", "fake")
    assert plugin is sys.modules["fake_module"].Fake is Registry.scan().load("algorithms", "fake")


def test_the_disk_is_read_once_per_process_unless_asked_again(install, tmp_path):
    install("first-plugin", {"algorithms": {"first": "m:F"}})
    scanned = Registry.scan()
    folder = tmp_path / "site-packages" / "second_plugin-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: second-plugin\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[engine_core.algorithms]\nsecond = m:S\n")
    assert Registry.scan() is scanned
    assert [r.name for r in records("first-plugin", "second-plugin")] == ["first"]
    assert Registry.scan(refresh=True) is not scanned
    assert [r.name for r in records("first-plugin", "second-plugin")] == ["first", "second"]


def test_records_are_sorted_by_kind_name_and_distribution(install):
    install("z-plugin", {"passes": {"a": "m:p"}, "algorithms": {"same": "m:F", "b": "m:B"}})
    install("a-plugin", {"callbacks": {"a": "m:C"}, "algorithms": {"same": "m:F"}})
    assert [(r.kind, r.name, r.distribution) for r in records("a-plugin", "z-plugin")] == [
        ("algorithms", "b", "z-plugin"),
        ("algorithms", "same", "a-plugin"),
        ("algorithms", "same", "z-plugin"),
        ("passes", "a", "z-plugin"),
        ("callbacks", "a", "a-plugin"),
    ]


def test_the_cores_own_passes_come_through_entry_points_too():
    ours = [(r.name, r.entry_point) for r in records("engine-core") if r.kind == "passes"]
    assert ours == [
        ("apply_declared_order", "engine_core.passes:apply_declared_order"),
        ("set_filo_order", "engine_core.passes:set_filo_order"),
        ("warn_if_multiple_loss_interpolation", "engine_core.passes:warn_if_multiple_loss_interpolation"),
    ]


def test_other_groups_are_not_ours(install, tmp_path):
    install("fake-plugin", {})
    entries = "[console_scripts]\nx = m:X\n[engine_cores.algorithms]\nx = m:X\n[engine.algorithms]\nx = m:X\n"
    (tmp_path / "site-packages" / "fake_plugin-1.0.dist-info" / "entry_points.txt").write_text(entries)
    Registry.scan(refresh=True)
    assert records("fake-plugin") == []


def test_an_unknown_name_suggests_the_nearest(install):
    install("fake-plugin", {"algorithms": {"selective": "m:S"}, "passes": {"sort_it": "m:p"}})
    with pytest.raises(
        PluginError, match="'selektive' is not among the installed algorithms; did you mean 'selective'"
    ):
        Registry.scan().load("algorithms", "selektive")
    with pytest.raises(PluginError, match="installed algorithms, but among the passes: give it there"):
        Registry.scan().load("algorithms", "sort_it")


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="'algorithm' is not a kind of plugin; did you mean 'algorithms'"):
        Registry.scan().load("algorithm", "fake")


def two_claims(install):
    for distribution, module in (("one-plugin", "one_module"), ("two-plugin", "two_module")):
        install(distribution, {"algorithms": {"fake": f"{module}:Fake"}}, {module: ALGORITHM})


def test_a_name_that_two_claim_is_an_error_that_lists_both_when_it_is_used(install):
    two_claims(install)
    with pytest.raises(PluginError) as refusal:
        Registry.scan().load("algorithms", "fake")
    assert str(refusal.value) == (
        "'fake' is claimed by several distributions; choose one of: "
        "one-plugin:fake (1.0, one_module:Fake), two-plugin:fake (1.0, two_module:Fake)"
    )
    assert [(r.status, r.reason) for r in records("one-plugin")] == [
        ("ambiguous", "'fake' is claimed by one-plugin 1.0 and two-plugin 1.0; use 'one-plugin:fake' for this one")
    ]


@pytest.mark.parametrize("name", ["two-plugin:fake", "Two_Plugin:fake", "two.plugin:fake"])
def test_a_qualified_name_chooses_however_it_is_spelt(install, name):
    two_claims(install)
    assert Registry.scan().load("algorithms", name).__module__ == "two_module"


def test_a_built_in_name_cannot_be_shadowed(install):
    install("evil-plugin", {"callbacks": {"loss_guard": "evil_module:Evil"}}, {"evil_module": "raise AssertionError"})
    assert Registry.scan().load("callbacks", "loss_guard").__module__ == "engine_core.callbacks.loss_guard"
    shadow = records("evil-plugin")[0]
    assert (shadow.status, shadow.reason) == (
        "ambiguous",
        (
            f"'loss_guard' is claimed by engine-core {VERSION} and evil-plugin 1.0; the bare name means engine-core's; "
            "use 'evil-plugin:loss_guard' for this one"
        ),
    )
    assert [r.status for r in records("engine-core")] == ["available"] * len(records("engine-core"))


def test_of_two_versions_of_one_distribution_the_first_on_the_path_counts(install, tmp_path, monkeypatch):
    install("fake-plugin", {"algorithms": {"fake": "fake_module:Fake"}}, {"fake_module": ALGORITHM})
    earlier = tmp_path / "earlier" / "Fake_Plugin-2.0.dist-info"
    earlier.mkdir(parents=True)
    (earlier / "METADATA").write_text("Metadata-Version: 2.1\nName: Fake_Plugin\nVersion: 2.0\n")
    (earlier / "entry_points.txt").write_text("[engine_core.algorithms]\nfake = newer:Fake\n")
    (earlier.parent / "newer.py").write_text("")
    monkeypatch.syspath_prepend(earlier.parent)
    Registry.scan(refresh=True)
    assert [(r.version, r.entry_point, r.status) for r in records("fake-plugin")] == [
        ("2.0", "newer:Fake", "available")
    ]


@pytest.mark.parametrize(
    ("allow", "available"),
    [
        ("", []),
        ("fake", ["fake"]),
        ("fake-plugin", ["fake", "other_name"]),
        (" Fake_Plugin ,", ["fake", "other_name"]),
        ("fake-plugin:other_name", ["other_name"]),
        ("other-name", ["other_name"]),
        ("nobody", []),
    ],
)
def test_an_allow_list_disables_all_others_but_the_core(install, monkeypatch, allow, available):
    monkeypatch.setenv("ENGINE_CORE_PLUGINS", allow)
    install("fake-plugin", {"algorithms": {"fake": "m:F", "other_name": "m:O"}}, {"m": ""})
    assert [r.name for r in records("fake-plugin") if r.status == "available"] == available
    assert {r.status for r in records("engine-core")} == {"available"}


@pytest.mark.parametrize(
    ("deny", "available"),
    [
        ("", ["fake", "other_name"]),
        ("fake", ["other_name"]),
        ("FAKE_plugin", []),
        ("nobody, fake-plugin:fake", ["other_name"]),
        ("engine-core", ["fake", "other_name"]),
    ],
)
def test_a_deny_list_disables_what_it_names_but_never_the_core(install, monkeypatch, deny, available):
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", deny)
    install("fake-plugin", {"algorithms": {"fake": "m:F", "other_name": "m:O"}}, {"m": ""})
    assert [r.name for r in records("fake-plugin") if r.status == "available"] == available
    assert {r.status for r in records("engine-core")} == {"available"}


def test_a_disabled_plugin_is_refused_before_it_is_imported(install, monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "fake-plugin")
    install("fake-plugin", {"algorithms": {"fake": "fake_module:Fake"}}, {"fake_module": "raise AssertionError"})
    message = "algorithm 'fake' of fake-plugin 1.0 is disabled: listed in ENGINE_CORE_DISABLE_PLUGINS"
    with pytest.raises(PluginError, match=message):
        Registry.scan().load("algorithms", "fake")
    assert "fake_module" not in sys.modules


def test_a_name_is_free_when_the_other_claim_is_disabled(install, monkeypatch):
    two_claims(install)
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "one-plugin")
    assert Registry.scan().load("algorithms", "fake").__module__ == "two_module"
    assert [r.status for r in records("one-plugin", "two-plugin")] == ["disabled", "available"]


def test_an_instance_belongs_to_the_first_distribution_in_its_family(install):
    install("fake-plugin", {"algorithms": {"fake": "fake_module:Fake"}}, {"fake_module": ALGORITHM})
    registry = Registry.scan()
    fake = registry.load("algorithms", "fake")
    mine = type("Mine", (fake,), {})
    guard = registry.load("callbacks", "loss_guard")
    owners = [registry.distribution_of(thing) for thing in (fake, fake(), mine(), object(), guard())]
    assert owners == ["fake-plugin", "fake-plugin", "fake-plugin", None, "engine-core"]


def test_a_users_own_algorithm_belongs_to_no_distribution():
    registry = Registry.scan()
    mine = type("Mine", (registry.load("callbacks", "loss_guard").__base__,), {"__module__": "__main__"})
    assert registry.distribution_of(mine()) is None


def test_a_namespace_that_two_distributions_share_belongs_to_neither(install):
    install("one-plugin", {"algorithms": {"one": "shared.one:A"}})
    install("two-plugin", {"algorithms": {"two": "shared.two:A"}})
    made = [
        type("A", (), {"__module__": name})() for name in ("shared.one", "shared.two.deep", "shared.three", "shared")
    ]
    assert [Registry.scan().distribution_of(a) for a in made] == ["one-plugin", "two-plugin", None, None]


def test_the_registered_name_is_metadatas_else_the_entry_points_else_the_classes(install):
    text = ALGORITHM + "\n    class Other(Fake):\n        pass\n"
    install("fake-plugin", {"algorithms": {"nick_name": "fake_module:Fake"}}, {"fake_module": text})
    registry = Registry.scan()
    fake = registry.load("algorithms", "nick_name")
    named = type("Named", (fake,), {"metadata": AlgorithmMetadata(name="own_name")})
    other = sys.modules["fake_module"].Other
    assert [registry.identify(kind()).name for kind in (fake, other, named)] == ["nick_name", "other", "own_name"]


def test_a_requirement_is_checked_without_an_import(install):
    install("loud-plugin", {"algorithms": {"loud": "loud_module:Loud"}}, {"loud_module": "1 / 0"}, version="1.2")
    Registry.scan().require(["loud-plugin>=1,<2", "engine-core"])
    with pytest.raises(PluginError, match=r"^loud-plugin>=2 is required, but loud-plugin 1.2 is installed; run: pip"):
        Registry.scan().require(["engine-core", "loud-plugin>=2"])
