import pytest

from engine_core.errors import PluginError
from engine_core.registry import Registry

GOOD = """
    from engine_core import Algorithm

    class Good(Algorithm):
        def match(self, event, state):
            return True

        def apply(self, event, state, logger):
            return None
"""


def record_of(name):
    return next(record for record in Registry.scan().records if record.name == name)


FAULTS = {
    "import error": (
        "import there_is_no_such_module",
        "ModuleNotFoundError: No module named 'there_is_no_such_module'",
    ),
    "exit": ("import sys; sys.exit('no GPU here')", "SystemExit: no GPU here"),
    "syntax": ("def broken(:", "SyntaxError: invalid syntax"),
    "any error": ("1 / 0", "ZeroDivisionError: division by zero"),
    "attribute": ("", "AttributeError: module 'broken_module' has no attribute 'Broken'"),
    "instance": ("Broken = 3", "TypeError: an entry point of kind algorithms names a class, this is 3"),
    "no methods": ("class Broken: pass", "an algorithm has match and apply, Broken has no match and no apply"),
    "no apply": (
        GOOD.replace("Good", "Broken").replace("def apply", "def apply_it"),
        "TypeError: an algorithm has match and apply, Broken has no apply",
    ),
    "unknown event": (
        "from engine_core import AlgorithmMetadata\nAlgorithmMetadata(events=('befor_loss',))",
        "'befor_loss' is not an event; did you mean 'before_loss'?",
    ),
    "hook API": (
        "from engine_core import AlgorithmMetadata\nAlgorithmMetadata(hook_api=9)",
        "made for hook API 9, this engine-core has 1",
    ),
    "metadata": (
        GOOD.replace("Good", "Broken") + "\n        metadata = {'events': ['init']}",
        "TypeError: Broken.metadata has to be an AlgorithmMetadata",
    ),
}


@pytest.mark.parametrize(("text", "reason"), FAULTS.values(), ids=FAULTS)
def test_a_broken_algorithm_is_quarantined_with_the_reason_while_others_work(install, text, reason):
    install("good-plugin", {"algorithms": {"good": "good_module:Good"}}, {"good_module": GOOD})
    install("broken-plugin", {"algorithms": {"broken": "broken_module:Broken"}}, {"broken_module": text}, version="0.3")
    registry = Registry.scan()
    with pytest.raises(PluginError) as refusal:
        registry.load("algorithms", "broken")
    assert "algorithm 'broken' of broken-plugin 0.3 can't be loaded from 'broken_module:Broken': " in str(refusal.value)
    assert reason in str(refusal.value)
    assert "disable it with ENGINE_CORE_DISABLE_PLUGINS=broken-plugin:broken" in str(refusal.value)
    assert type(refusal.value.__cause__).__name__ in record_of("broken").reason
    assert (record_of("broken").status, record_of("good").status) == ("broken", "available")
    assert reason in record_of("broken").reason
    assert registry.load("algorithms", "good").__name__ == "Good"


def test_a_quarantined_plugin_says_the_same_again_with_its_cause(install):
    install("broken-plugin", {"algorithms": {"broken": "broken_module:Broken"}}, {"broken_module": "1 / 0"})
    registry = Registry.scan()
    for _ in range(2):
        with pytest.raises(PluginError, match="division by zero") as refusal:
            registry.load("algorithms", "broken")
        assert isinstance(refusal.value.__cause__, ZeroDivisionError)
    assert (
        str(refusal.value) == "algorithm 'broken' of broken-plugin 1.0 is broken: ZeroDivisionError: division by zero"
    )


def test_ctrl_c_while_a_plugin_is_imported_is_no_fault_of_the_plugin(install):
    install("slow-plugin", {"algorithms": {"slow": "slow_module:Slow"}}, {"slow_module": "raise KeyboardInterrupt"})
    with pytest.raises(KeyboardInterrupt):
        Registry.scan().load("algorithms", "slow")
    assert record_of("slow").status == "available"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("look = 3", "a pass is a function (algorithms, event) -> algorithms, this is 3"),
        ("class look: pass", "a pass is a function (algorithms, event) -> algorithms, this is <class"),
        ("def look(algorithms, event): return algorithms", "a registered pass is marked with @algorithm_pass(...)"),
    ],
)
def test_a_registered_pass_has_to_be_a_marked_function(install, text, reason):
    install("broken-plugin", {"passes": {"look": "broken_module:look"}}, {"broken_module": text})
    with pytest.raises(PluginError) as refusal:
        Registry.scan().load("passes", "look")
    assert reason in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Broken = 3", "an entry point of kind callbacks names a class, this is 3"),
        ("class Broken: pass", "a callback has methods named after events, Broken has none"),
    ],
)
def test_a_registered_callback_has_to_be_a_class_that_listens(install, text, reason):
    install("broken-plugin", {"callbacks": {"broken": "broken_module:Broken"}}, {"broken_module": text})
    with pytest.raises(PluginError, match=reason):
        Registry.scan().load("callbacks", "broken")


def test_a_distribution_without_metadata_is_listed_by_its_folder(install):
    install("stale-plugin", {"algorithms": {"stale": "gone:Stale"}}, metadata=False)
    record = record_of("stale")
    assert (record.distribution, record.version, record.status) == ("stale-plugin", "?", "available")


@pytest.mark.parametrize("value", ["not a value!!", "module:", ""])
def test_an_entry_point_that_names_nothing_breaks_only_itself(install, value):
    install("good-plugin", {"algorithms": {"good": "good_module:Good"}}, {"good_module": GOOD})
    install("broken-plugin", {"algorithms": {"broken": value, "fine": "good_module:Good"}})
    registry = Registry.scan()
    with pytest.raises(PluginError, match="algorithm 'broken' of broken-plugin"):
        registry.load("algorithms", "broken")
    assert registry.load("algorithms", "fine") is registry.load("algorithms", "good")


def test_nonsense_in_the_files_of_a_distribution_breaks_nobody_else(install, tmp_path):
    install("good-plugin", {"algorithms": {"good": "good_module:Good"}}, {"good_module": GOOD})
    for name, nonsense in (
        ("text", b"what is this\n= =\n[unclosed\nx"),
        ("bytes", b"\xff\xfe[engine_core.algorithms]"),
    ):
        folder = tmp_path / "site-packages" / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "entry_points.txt").write_bytes(nonsense)
    registry = Registry.scan(refresh=True)
    assert registry.load("algorithms", "good").__name__ == "Good"
    assert [r for r in registry.records if r.distribution in ("text", "bytes")] == []
