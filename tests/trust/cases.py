"""What can be wrong with one plugin, and what is said about it: by the list, by the doctor, and by the run."""

from __future__ import annotations

from dataclasses import dataclass

from .sources import Plugin, algorithm

BAD = {"algorithms": {"bad": "Bad"}}
FIX = "fix or uninstall bad-plugin, or disable it with ENGINE_CORE_DISABLE_PLUGINS=bad-plugin:bad"


@dataclass(frozen=True)
class Case:
    """A faulty plugin, called `bad` in `bad-plugin`, of which the fault shows only in the import.

    Args:
        reason: why it can't be loaded, and what to do.
        doubt: what metadata shows already.
    """

    text: str
    reason: str
    doubt: str = ""
    dependencies: tuple[str, ...] = ()

    @property
    def plugin(self) -> Plugin:
        return Plugin("bad-plugin", self.text, "0.3", BAD, self.dependencies)


CASES = {
    "ImportError": Case(
        "from engine_core import Algorithm, NoSuchThing",
        "ImportError: cannot import name 'NoSuchThing' from 'engine_core' (<base>/engine_core/__init__.py) "
        f"(at <site>/bad_plugin.py:1); {FIX}",
    ),
    "SyntaxError": Case(
        algorithm("Bad") + "\ndef broken(:\n", f"SyntaxError: invalid syntax (at <site>/bad_plugin.py:14); {FIX}"
    ),
    "SystemExit": Case(
        "import sys\n\nif True:\n    sys.exit('no licence found')",
        f"SystemExit: no licence found (at <site>/bad_plugin.py:4); {FIX}",
    ),
    "missing dependency": Case(
        "import acme_maths\n" + algorithm("Bad"),
        "ModuleNotFoundError: No module named 'acme_maths' (at <site>/bad_plugin.py:1); bad-plugin requires "
        "acme-maths>=2; run: pip install 'acme-maths>=2'",
        "it requires acme-maths>=2, which is not installed; run: pip install 'acme-maths>=2'",
        ("acme-maths>=2", "engine-core>=0.1"),
    ),
    "undeclared dependency": Case(
        "import acme_maths.linear\n" + algorithm("Bad"),
        "ModuleNotFoundError: No module named 'acme_maths' (at <site>/bad_plugin.py:1); bad-plugin does not declare "
        "what it needs for 'acme_maths'; tell its authors, and install the distribution that has this module",
    ),
    "unknown event": Case(
        algorithm("Bad", 'events=("batch_end", "befor_loss")'),
        "AlgorithmMetadata: events[1]: 'befor_loss' is not an event; did you mean 'before_loss'? "
        f"(at <site>/bad_plugin.py:6); {FIX}",
    ),
    "unknown field": Case(
        algorithm("Bad", 'event=("batch_end",)'),
        f"AlgorithmMetadata: unknown field 'event'; did you mean 'events'? (at <site>/bad_plugin.py:6); {FIX}",
    ),
    "newer hook API": Case(
        algorithm("Bad", "hook_api=99"),
        "AlgorithmMetadata: hook_api: made for hook API 99, this engine-core has 1: update engine-core "
        "(at <site>/bad_plugin.py:6); or install another version of bad-plugin",
    ),
    "no algorithm": Case(
        "class Bad:\n    pass",
        f"TypeError: an algorithm has match and apply, Bad has no match and no apply; {FIX}",
    ),
}
