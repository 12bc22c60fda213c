"""What is installed, found by names, and whose it is: a distribution can't take what another ships."""

import importlib
import sys

import pytest

from engine_core import AlgorithmMetadata, Engine, Logger, State
from engine_core.errors import PluginError
from engine_core.registry import Registry

from .parts import source_of

FAKE = {"algorithms": {"fake": "fake_module:Fake"}}


def records(*distributions):
    return [record for record in Registry.scan().records if record.distribution in distributions]


def test_a_plugin_is_imported_when_it_is_loaded_and_once(install):
    install("fake-plugin", FAKE, {"fake_module": source_of("Fake")})
    assert Registry.scan().find("algorithms", "fake").name == "fake"
    assert "fake_module" not in sys.modules
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


def test_an_unknown_name_or_kind_suggests_the_nearest(install):
    install("fake-plugin", {"algorithms": {"selective": "m:S"}, "passes": {"sort_it": "m:p"}})
    load = Registry.scan().load
    with pytest.raises(PluginError, match="'selektive' is not among the installed algorithms; did you mean 'selecti"):
        load("algorithms", "selektive")
    with pytest.raises(PluginError, match="installed algorithms, but among the passes: give it there"):
        load("algorithms", "sort_it")
    with pytest.raises(ValueError, match="'algorithm' is not a kind of plugin; did you mean 'algorithms'"):
        load("algorithm", "fake")


def test_a_name_that_two_claim_is_an_error_unless_it_is_qualified_or_one_is_disabled(install, monkeypatch):
    for distribution, module in (("one-plugin", "one_module"), ("two-plugin", "two_module")):
        install(distribution, {"algorithms": {"fake": f"{module}:Fake"}}, {module: source_of("Fake")})
    with pytest.raises(PluginError) as refusal:
        Registry.scan().load("algorithms", "fake")
    assert str(refusal.value) == (
        "'fake' is claimed by several distributions; choose one of: "
        "one-plugin:fake (1.0, one_module:Fake), two-plugin:fake (1.0, two_module:Fake)"
    )
    assert [(r.status, r.reason) for r in records("one-plugin")] == [
        ("ambiguous", "'fake' is claimed by one-plugin 1.0 and two-plugin 1.0; use 'one-plugin:fake' for this one")
    ]
    for name in ("two-plugin:fake", "Two_Plugin:fake", "two.plugin:fake"):
        assert Registry.scan().load("algorithms", name).__module__ == "two_module"
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "one-plugin")
    assert Registry.scan().load("algorithms", "fake").__module__ == "two_module"
    assert [r.status for r in records("one-plugin", "two-plugin")] == ["disabled", "available"]


def test_a_built_in_name_cannot_be_shadowed(install):
    install("evil-plugin", {"callbacks": {"loss_guard": "evil_module:Evil"}}, {"evil_module": "raise AssertionError"})
    assert Registry.scan().load("callbacks", "loss_guard").__module__ == "engine_core.callbacks.loss_guard"
    (shadow,) = records("evil-plugin")
    assert (shadow.status, shadow.reason) == (
        "ambiguous",
        (
            f"'loss_guard' is claimed by engine-core {Registry.scan().version_of('engine-core')} and evil-plugin 1.0; "
            "the bare name means engine-core's; use 'evil-plugin:loss_guard' for this one"
        ),
    )
    assert {r.status for r in records("engine-core")} == {"available"}


def test_of_two_versions_of_one_distribution_the_first_on_the_path_counts(install, tmp_path, monkeypatch):
    install("fake-plugin", FAKE)
    earlier = tmp_path / "earlier" / "Fake_Plugin-2.0.dist-info"
    earlier.mkdir(parents=True)
    (earlier / "METADATA").write_text("Metadata-Version: 2.1\nName: Fake_Plugin\nVersion: 2.0\n")
    (earlier / "entry_points.txt").write_text("[engine_core.algorithms]\nfake = newer:Fake\n")
    monkeypatch.syspath_prepend(earlier.parent)
    Registry.scan(refresh=True)
    found = [(r.version, r.entry_point, r.status) for r in records("fake-plugin")]
    assert found == [("2.0", "newer:Fake", "available")]


def test_lists_allow_or_deny_a_name_or_a_distribution_however_it_is_spelt_and_never_the_core(install, monkeypatch):
    install("fake-plugin", {"algorithms": {"fake": "m:F", "other_name": "m:O"}}, {"m": ""})
    both = ["fake", "other_name"]
    for allowed, available in [
        ("", []),
        ("fake", ["fake"]),
        (" Fake_Plugin\n,", both),
        ("fake-plugin : other_name", ["other_name"]),
        ("other-name,,", ["other_name"]),
        ("nobody", []),
    ]:
        for variable, expected in [
            ("ENGINE_CORE_PLUGINS", available),
            ("ENGINE_CORE_DISABLE_PLUGINS", [name for name in both if name not in available]),
        ]:
            with monkeypatch.context() as patch:
                patch.setenv(variable, f"{allowed}, engine-core" if "DIS" in variable else allowed)
                found = [r.name for r in records("fake-plugin") if r.status == "available"]
                assert (found, {r.status for r in records("engine-core")}) == (expected, {"available"})


def test_a_disabled_plugin_is_refused_before_it_is_imported(install, monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "fake-plugin")
    install("fake-plugin", FAKE, {"fake_module": "raise AssertionError"})
    message = "algorithm 'fake' of fake-plugin 1.0 is disabled: listed in ENGINE_CORE_DISABLE_PLUGINS"
    with pytest.raises(PluginError, match=message):
        Registry.scan().load("algorithms", "fake")


def test_an_instance_belongs_to_the_first_distribution_in_its_family_and_ones_own_class_to_none(install):
    install("fake-plugin", FAKE, {"fake_module": source_of("Fake")})
    registry = Registry.scan()
    fake, guard = registry.load("algorithms", "fake"), registry.load("callbacks", "loss_guard")
    mine = type("Mine", (fake,), {})
    own = type("Own", (guard.__base__,), {"__module__": "__main__"})
    things = (fake, fake(), mine(), object(), own(), guard())
    owners = [registry.distribution_of(thing) for thing in things]
    assert owners == ["fake-plugin", "fake-plugin", "fake-plugin", None, None, "engine-core"]


def test_a_namespace_that_two_distributions_share_belongs_to_neither(install):
    install("one-plugin", {"algorithms": {"one": "shared.one:A"}})
    install("two-plugin", {"algorithms": {"two": "shared.two:A"}})
    made = [
        type("A", (), {"__module__": name})() for name in ("shared.one", "shared.two.deep", "shared.three", "shared")
    ]
    assert [Registry.scan().distribution_of(a) for a in made] == ["one-plugin", "two-plugin", None, None]


def test_the_registered_name_is_metadatas_else_the_entry_points_else_the_classes(install):
    text = source_of("Fake") + "\nclass Other(Fake):\n    pass\n"
    install("fake-plugin", {"algorithms": {"nick_name": "fake_module:Fake"}}, {"fake_module": text})
    registry = Registry.scan()
    fake = registry.load("algorithms", "nick_name")
    named = type("Named", (fake,), {"metadata": AlgorithmMetadata(name="own_name")})
    other = sys.modules["fake_module"].Other
    assert [registry.identify(kind()).name for kind in (fake, other, named)] == ["nick_name", "other", "own_name"]


ACME = {"algorithms": {"acme": "acme_module:Acme"}}


def test_what_a_distribution_ships_stays_its_own_whatever_claims_it(install, tmp_path, monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "acme-plugin")
    install("acme-plugin", ACME, {"acme_module": source_of("Acme")})
    install("claim", {"algorithms": {"claimed": "acme_module:Acme", "deeper": "acme_module.made:Acme"}})
    for name, file in (("acme_plugin-1.0", "acme_module.py"), ("claim-1.0", "claim.py")):
        (tmp_path / "site-packages" / f"{name}.dist-info" / "RECORD").write_text(f"{file},,\n")
    registry = Registry.scan(refresh=True)
    classes = [type("Acme", (), {"__module__": f"acme_module{inner}"}) for inner in ("", ".made", ".made.deep")]
    assert {registry.distribution_of(cls()) for cls in classes} == {"acme-plugin"}
    found = registry.identify(registry.load("algorithms", "claimed")()).record
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


CLASS = source_of("Mix")
MORE = source_of("_Impl") + "\nPublic = _Impl\n\nclass Box:\n    class Inner(_Impl): ...\n"
FILES = {"__init__": "from .shown import Shown", "shown": CLASS.replace("Mix", "Shown"), "more": MORE}
ENTRIES = {
    "image_mix": "twop.image:Mix",
    "text_mix": "twop.text:Mix",
    "nested": "twop.more:Box.Inner",
    "alias": "twop.more:Public",
    "shown": "twop:Shown",
}


@pytest.fixture
def deny(install, tmp_path, monkeypatch):
    """Install a package with algorithms; return what denies some of them by name."""
    folder = tmp_path / "site-packages" / "twop"
    folder.mkdir()
    for module, text in {**FILES, "image": CLASS, "text": CLASS, "late": "def __getattr__(name): 1 / 0"}.items():
        (folder / f"{module}.py").write_text(text)
    install("two-plugin", {"algorithms": {**ENTRIES, "z_late": "twop.late:Mix", "z_unread": "twop.unread:Mix"}})

    def deny(*names):
        monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", ",".join(names))
        return Registry.scan(refresh=True)

    yield deny
    for module in [name for name in sys.modules if name.partition(".")[0] == "twop"]:
        del sys.modules[module]


def made(module, path):
    found = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found()


@pytest.mark.parametrize(
    ("name", "module", "path"),
    [
        ("image_mix", "twop.image", "Mix"),
        ("text_mix", "twop.text", "Mix"),
        ("nested", "twop.more", "Box.Inner"),
        ("alias", "twop.more", "_Impl"),
        ("shown", "twop.shown", "Shown"),
    ],
)
def test_a_class_is_denied_and_accepted_by_the_record_that_leads_to_it(deny, name, module, path):
    importlib.import_module("twop.late")
    assert deny().identify(made(module, path)).name == name
    deny(name)
    with pytest.raises(PluginError, match=f"is '{name}' of two-plugin 1.0, which is disabled: listed in"):
        Engine(State(algorithms=[made(module, path)]), Logger())
    deny(*({*ENTRIES, "z_late"} - {name}))
    Engine(State(algorithms=[made(module, path)]), Logger()).close()


def test_a_subclass_has_the_record_of_its_base_if_it_is_named_like_it(deny):
    for module in ("image", "text"):
        base = type(made(f"twop.{module}", "Mix"))
        assert deny().identify(type("Mix", (base,), {})()).name == f"{module}_mix"
        assert deny().identify(type("Blend", (base,), {"__module__": __name__})()).record is None


def test_a_class_whose_module_was_reloaded_has_the_record_that_it_had_and_nothing_is_imported_to_find_it(deny):
    former = made("twop.text", "Mix")
    importlib.reload(sys.modules["twop.text"])
    registry, before = deny(), set(sys.modules)
    assert registry.identify(former).name == "text_mix"
    assert set(sys.modules) == before
