import pytest

from engine_core.errors import PluginError
from engine_core.registry import Registry

from .parts import source_of

BROKEN = source_of("Broken")


def record_of(name):
    return next(record for record in Registry.scan().records if record.name == name)


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
    assert (record_of("broken").status, record_of("broken").reason) == ("broken", reason)
    assert record_of("good").status == "available"
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


def test_what_a_plugin_prints_while_it_is_imported_does_not_reach_stdout(install, capsys):
    install(
        "loud-plugin",
        {"algorithms": {"good": "loud_module:Good"}},
        {"loud_module": source_of("Good") + "print('hello')"},
    )
    Registry.scan().load("algorithms", "good")
    assert capsys.readouterr() == ("", "hello\n")


def test_ctrl_c_while_a_plugin_is_imported_is_not_the_plugins_fault(install):
    install("slow-plugin", {"algorithms": {"slow": "slow_module:Slow"}}, {"slow_module": "raise KeyboardInterrupt"})
    with pytest.raises(KeyboardInterrupt) as interruption:
        Registry.scan().load("algorithms", "slow")
    assert interruption.value.__notes__ == [
        "while importing algorithm 'slow' of slow-plugin 1.0 from 'slow_module:Slow'"
    ]
    assert record_of("slow").status == "available"


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
