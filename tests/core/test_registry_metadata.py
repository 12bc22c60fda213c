"""What is damaged, broken, misspelt or not there: nothing is trusted, nothing else suffers, and it is said."""

import pytest

from engine_core.errors import ArgumentError, ArgumentTypeError, PluginError
from engine_core.registry import Registry, installed_version, unmet

from .parts import source_of

ACME = {"algorithms": {"acme": "acme_module:Acme"}}


@pytest.fixture
def site(tmp_path):
    return tmp_path / "site-packages"


def record(name="acme"):
    (found,) = (r for r in Registry.scan().records if r.name == name)
    return found


def refusal(name="acme"):
    with pytest.raises(PluginError) as refused:
        Registry.scan().load("algorithms", name)
    return str(refused.value)


def test_a_dist_info_whose_module_is_gone_is_found_stale_when_it_is_loaded(install, site):
    (site / "gone_module/__pycache__").mkdir(parents=True)  # which pip leaves
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
    assert (record().distribution, record().version, record().status) == ("acme-plugin", "?", "broken")
    assert record().reason == (
        f"{site / 'acme_plugin-1.0.dist-info'} has lost its METADATA; delete that folder, and install the "
        "distribution again"
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


@pytest.mark.parametrize("value", ["not a value!!", "", ":Acme", "acme_module"])
def test_an_entry_point_that_names_nothing_breaks_its_own_distribution_at_most(install, value):
    install("acme-plugin", {"algorithms": {"acme": value}}, {"acme_module": ""})
    install("fine-plugin", {"algorithms": {"fine": "acme_module:Fine"}})
    said = refusal()  # some versions of importlib-metadata don't read such a file at all
    assert "'acme'" in said
    assert "can't be loaded from" in said or "not all that is installed can be read" in said
    assert Registry.scan().find("algorithms", "fine").status == "available"


def test_an_unknown_group_of_ours_is_a_finding_with_the_nearest_and_that_of_another_is_not(install, site):
    install("acme-plugin", {}, {"acme_module": ""})
    near = dict.fromkeys(["engine_core.algorithm", "engine-core.algorithms", "engine_core_algorithms"], "algorithms")
    for group, meant in {**near, "Engine_Core.Pass": "passes", "console_scripts": "", "engines.algorithms": ""}.items():
        entries = f"[{group}]\nacme = acme_module:Acme\n"
        (site / "acme_plugin-1.0.dist-info" / "entry_points.txt").write_text(entries)
        registry = Registry.scan(refresh=True)
        said = f"acme-plugin registers 'acme' in the unknown group {group!r}; did you mean 'engine_core.{meant}'?"
        assert registry.findings == ((said,) if meant else ())
        assert [r for r in registry.records if r.distribution == "acme-plugin"] == []


def test_extras_of_an_entry_point_are_ignored(install):
    install("acme-plugin", {"algorithms": {"acme": "acme_module : Acme[gpu,more]"}}, {"acme_module": ""})
    assert (record().status, record().entry_point) == ("available", "acme_module:Acme")


def test_a_disabled_plugin_is_disabled_whatever_else_is_wrong_with_it(install, monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "acme-plugin")
    install("acme-plugin", ACME, metadata=False)
    assert (record().status, record().reason) == ("disabled", "listed in ENGINE_CORE_DISABLE_PLUGINS")


@pytest.mark.parametrize("variable", ["ENGINE_CORE_PLUGINS", "ENGINE_CORE_DISABLE_PLUGINS"])
def test_a_probable_misspelling_in_a_list_is_reported(install, monkeypatch, variable):
    monkeypatch.setenv(variable, "acme-plugn, somebody-else, acme-plugin:acne, acme, loss_guard")
    install("acme-plugin", ACME, {"acme_module": ""})
    nowhere = "which is not an installed plugin or distribution; did you mean"
    assert [doubt for doubt in Registry.scan().doubts if "somebody-else" not in doubt] == [
        f"{variable} lists 'acme-plugin:acne', {nowhere} 'acme-plugin:acme'?",
        f"{variable} lists 'acme-plugn', {nowhere} 'acme-plugin'?",
        f"{variable} lists 'loss-guard', which has no effect: engine-core's own plugins are always enabled",
    ]


BROKEN = source_of("Broken")


CONTRACT = "an algorithm has match(event, state) and apply(event, state, logger)"
FIX = "fix or uninstall broken-plugin, or disable it with ENGINE_CORE_DISABLE_PLUGINS=broken-plugin:broken"
FAULTS = {
    "import error": (
        "import no_such_module",
        (
            "ModuleNotFoundError: No module named 'no_such_module' (at FILE:1); broken-plugin does not declare what it "
            "needs for 'no_such_module'; report it to its authors, and install the distribution that has this module"
        ),
    ),
    "own module": (
        "import broken_module.part",
        (
            "ModuleNotFoundError: No module named 'broken_module.part'; 'broken_module' is not a package (at FILE:1); "
            "broken-plugin lacks a module of its own; install it again, or run: pip uninstall broken-plugin"
        ),
    ),
    "exit": ("import sys; sys.exit('no GPU here')", f"SystemExit: no GPU here (at FILE:1); {FIX}"),
    "silent exit": ("\nraise SystemExit", f"SystemExit (at FILE:2); {FIX}"),
    "lines": ("raise ValueError('a\\n  b')", f"ValueError: a b (at FILE:1); {FIX}"),
    "syntax": ("\ndef broken(:", f"SyntaxError: invalid syntax (at FILE:2); {FIX}"),
    "attribute": ("", f"AttributeError: module 'broken_module' has no attribute 'Broken'; {FIX}"),
    "instance": ("Broken = 3", f"TypeError: an entry point of kind algorithms must name a class, not 3; {FIX}"),
    "no methods": ("class Broken: pass", f"TypeError: Broken has no match and no apply; {CONTRACT}; {FIX}"),
    "apply's arguments": (
        BROKEN.replace("state, logger)", "state, logger, more)"),
        f"TypeError: Broken.apply has to take (event, state, logger): missing a required argument: 'more'; {FIX}",
    ),
    "two mistakes": (
        "from engine_core import AlgorithmMetadata\nAlgorithmMetadata(tags=3, writes=('los',))",
        (
            "AlgorithmMetadata: tags: Input should be a valid tuple, not 3; writes[0]: 'los' is not a State field that "
            f"algorithms write; did you mean 'loss'? (at FILE:2); {FIX}"
        ),
    ),
    "newer hook API": (
        "from engine_core import AlgorithmMetadata\nAlgorithmMetadata(hook_api=9)",
        (
            "AlgorithmMetadata: hook_api: made for hook API 9, but this engine-core has 1: update engine-core "
            "(at FILE:2); or install another version of broken-plugin"
        ),
    ),
    "async": (
        BROKEN.replace("def apply", "async def apply"),
        f"TypeError: Broken.apply is an async function, which the engine can't await; write it without async; {FIX}",
    ),
    "control characters": (
        "raise ValueError('\\x1b[31m\\u202e\\udc80')",
        f"ValueError: \\x1b[31m\\u202e\\udc80 (at FILE:1); {FIX}",
    ),
    "long": (
        "raise ValueError('x' * 5_000_000)",
        f"ValueError: {'x' * 300}... (5000000 characters) (at FILE:1); {FIX}",
    ),
    "no text": (
        "class E(Exception):\n    def __str__(self): raise OSError\nraise E",
        f"E: it can't be shown, since its __str__ raises OSError (at FILE:3); {FIX}",
    ),
}


@pytest.mark.parametrize(("text", "reason"), FAULTS.values(), ids=FAULTS)
def test_a_broken_algorithm_is_quarantined_with_the_reason_while_others_work(install, tmp_path, text, reason):
    install("good-plugin", {"algorithms": {"good": "good_module:Good"}}, {"good_module": source_of("Good")})
    install("broken-plugin", {"algorithms": {"broken": "broken_module:Broken"}}, {"broken_module": text}, version="0.3")
    registry = Registry.scan()
    reason = reason.replace("FILE", str(tmp_path / "site-packages" / "broken_module.py"))
    for is_first in (True, False):
        with pytest.raises(PluginError) as refusal:
            registry.load("algorithms", "broken")
        assert str(refusal.value) == (
            f"algorithm 'broken' of broken-plugin 0.3 can't be loaded from 'broken_module:Broken': {reason}"
        )
        assert (refusal.value.__cause__ is not None) is is_first
    assert (record("broken").status, record("broken").reason) == ("broken", reason)
    assert record("good").status == "available"
    assert registry.load("algorithms", "good").__name__ == "Good"


def test_what_is_missing_and_required_can_be_installed(install, tmp_path):
    install("broken-plugin", {"algorithms": {"broken": "broken_module:Broken"}}, {"broken_module": "import acme_maths"})
    with (tmp_path / "site-packages" / "broken_plugin-1.0.dist-info" / "METADATA").open("a") as metadata:
        metadata.write("Requires-Dist: acme-maths>=2; python_version > '3'\nRequires-Dist: other; extra == 'all'\n")
    registry = Registry.scan(refresh=True)
    with pytest.raises(PluginError) as refusal:
        registry.load("algorithms", "broken")
    assert str(refusal.value) == (
        "algorithm 'broken' of broken-plugin 1.0 can't be loaded from 'broken_module:Broken': ModuleNotFoundError: "
        f"No module named 'acme_maths' (at {tmp_path / 'site-packages' / 'broken_module.py'}:1); "
        "broken-plugin requires acme-maths>=2; run: pip install 'acme-maths>=2'"
    )


def test_ctrl_c_while_a_plugin_is_imported_is_not_the_plugins_fault(install):
    install("slow-plugin", {"algorithms": {"slow": "slow_module:Slow"}}, {"slow_module": "raise KeyboardInterrupt"})
    with pytest.raises(KeyboardInterrupt) as interruption:
        Registry.scan().load("algorithms", "slow")
    assert interruption.value.__notes__ == [
        "while importing algorithm 'slow' of slow-plugin 1.0 from 'slow_module:Slow'"
    ]
    assert record("slow").status == "available"


MARKED = "from engine_core import algorithm_pass\n@algorithm_pass()\n"


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("passes", "broken = 3", "a pass is a function (algorithms, event) -> algorithms, not 3"),
        ("passes", "class broken: pass", "a pass is a function (algorithms, event) -> algorithms, not <class"),
        ("passes", "def broken(algorithms, event): pass", "a registered pass must be marked with @algorithm_pass(...)"),
        ("passes", MARKED + "def broken(one): pass", "broken has to take (algorithms, event): too many positional"),
        ("passes", MARKED + "async def broken(algorithms, event): pass", "a pass is an async function, which the"),
        ("callbacks", "broken = 3", "an entry point of kind callbacks must name a class, not 3"),
        ("callbacks", "class broken: pass", "broken has no method named after an event"),
        (
            "callbacks",
            "class broken:\n    async def init(self, state, logger): pass",
            "broken.init is an async function",
        ),
        ("callbacks", "class broken:\n    def init(self): pass", "broken.init has to take (state, logger): too many"),
    ],
)
def test_a_registered_pass_is_a_marked_function_and_a_callback_a_class_that_listens(install, kind, text, reason):
    install("broken-plugin", {kind: {"broken": "broken_module:broken"}}, {"broken_module": text})
    with pytest.raises(PluginError) as refusal:
        Registry.scan().load(kind, "broken")
    assert reason in str(refusal.value)


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


def test_what_is_not_a_list_of_requirements_is_refused(check):
    for given in ("acme-plugin=>1", "", "acme plugin"):
        with pytest.raises(ArgumentError, match=f"^{given!r} is not a requirement such as 'some-plugin>=1.2,<2': .*$"):
            check("acme-plugin", given)
    with pytest.raises(ArgumentTypeError, match=r"^requirements are a list; write \['acme-plugin>=1'\]$"):
        Registry.scan().require("acme-plugin>=1")
    with pytest.raises(ArgumentTypeError, match=r"^a requirement is a string such as 'some-plugin>=1.2,<2', not 3$"):
        check(3)


def test_a_requirement_that_is_not_met_says_what_is_there_and_what_to_do(check, monkeypatch):
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
    assert refused(check, "acme-plugin>=1", "Acme-Plugin>=2") == (
        "Acme-Plugin>=2 is required, but acme-plugin 1.10 is installed; run: pip install 'Acme-Plugin>=2'"
    )
    assert refused(check, "pluggy>=1") == (
        f"pluggy>=1 is required, and pluggy {installed_version('pluggy')} is installed but ships no plugin; "
        "only distributions with plugins can be required"
    )
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "acme-plugin")
    said = "^acme-plugin is required, but acme-plugin 1.10 is disabled: listed in ENGINE_CORE_DISABLE_PLUGINS$"
    with pytest.raises(PluginError, match=said):
        Registry.scan().require(["acme-plugin"])


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
