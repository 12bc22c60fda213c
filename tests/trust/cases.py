"""What can be wrong with one plugin, and what is said about it: by the list, by the doctor, and by the run."""

from __future__ import annotations

from dataclasses import dataclass

from .sources import Plugin, algorithm


@dataclass(frozen=True)
class Case:
    """A faulty plugin whose fault shows only when it is imported.

    Args:
        name: of the distribution; the plugin itself has the same name with underscores.
        because: why it can't be loaded, and what to do; `<file>`, `<name>` and `<fix>` stand for what all cases share.
        doubt: what the doctor finds in the metadata too.
    """

    name: str
    text: str
    because: str
    doubt: str = ""
    dependencies: tuple[str, ...] = ()

    @property
    def bare(self):
        return self.name.replace("-", "_")

    @property
    def plugin(self):
        return Plugin(self.name, self.text, "0.3", {"algorithms": {self.bare: "Bad"}}, self.dependencies)

    @property
    def reason(self):
        disable = f"ENGINE_CORE_DISABLE_PLUGINS={self.name}:{self.bare}"
        text = self.because.replace("<fix>", f"fix or uninstall {self.name}, or disable it with {disable}")
        return text.replace("<file>", f"<site>/{self.bare}.py").replace("<name>", self.name)

    @property
    def problems(self):
        return [problem for problem in (self.doubt, self.reason) if problem]


CASES = [
    Case(
        "import-error",
        "from engine_core import Algorithm, NoSuchThing",
        "ImportError: cannot import name 'NoSuchThing' from 'engine_core' (<base>/engine_core/__init__.py) "
        "(at <file>:1); <fix>",
    ),
    Case("syntax-error", algorithm("Bad") + "\ndef broken(:\n", "SyntaxError: invalid syntax (at <file>:14); <fix>"),
    Case(
        "system-exit",
        "import sys\n\nif True:\n    sys.exit('no licence found')",
        "SystemExit: no licence found (at <file>:4); <fix>",
    ),
    Case(
        "missing-dependency",
        "import acme_maths\n" + algorithm("Bad"),
        "ModuleNotFoundError: No module named 'acme_maths' (at <file>:1); <name> requires "
        "acme-maths>=2; run: pip install 'acme-maths>=2'",
        "it requires acme-maths>=2, which is not installed; run: pip install 'acme-maths>=2'",
        ("acme-maths>=2", "engine-core>=0.1"),
    ),
    Case(
        "undeclared-dependency",
        "import acme_maths.linear\n" + algorithm("Bad"),
        "ModuleNotFoundError: No module named 'acme_maths' (at <file>:1); <name> does not declare "
        "what it needs for 'acme_maths'; report it to its authors, and install the distribution that has this module",
    ),
    Case(
        "unknown-event",
        algorithm("Bad", 'events=("batch_end", "befor_loss")'),
        "AlgorithmMetadata: events[1]: 'befor_loss' is not an event; did you mean 'before_loss'? (at <file>:6); <fix>",
    ),
    Case(
        "unknown-field",
        algorithm("Bad", 'event=("batch_end",)'),
        "AlgorithmMetadata: unknown field 'event'; did you mean 'events'? (at <file>:6); <fix>",
    ),
    Case(
        "newer-hook-api",
        algorithm("Bad", "hook_api=99"),
        "AlgorithmMetadata: hook_api: made for hook API 99, but this engine-core has 1: update engine-core "
        "(at <file>:6); or install another version of <name>",
    ),
    Case(
        "no-algorithm",
        "class Bad:\n    pass",
        "TypeError: Bad has no match and no apply; an algorithm has match(event, state) and apply(event, state, "
        "logger); <fix>",
    ),
]
