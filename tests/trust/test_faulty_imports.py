"""A plugin whose import fails is named with the reason, and stops the run that asked for it and nothing else.

All of them lie in one environment, and an honest one among them.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from .conftest import Done, Run
from .sources import HONEST, Plugin, algorithm


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


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request):
    return request.param


@pytest.fixture(scope="module")
def environment(make_environment):
    return make_environment([*(case.plugin for case in CASES), HONEST])


@pytest.fixture(scope="module")
def listed(environment):
    return environment.engine_core("plugins", "list")


@pytest.fixture(scope="module")
def examined(environment):
    return environment.engine_core("plugins", "doctor")


@pytest.fixture(scope="module")
def asked_for(environment):
    """Return by name what came of the run that asks for this plugin, and whether it has trained."""
    return environment.train_each(honest=Run(("honest",)), **{c.bare: Run(("honest", c.bare)) for c in CASES})


def test_the_list_imports_nothing_and_so_finds_nothing(case, environment, listed):
    assert environment.about(listed, case.bare) == [f"algorithms {case.bare} {case.name} 0.3 available"]
    assert (listed.code, listed.stderr) == (0, "")


def test_the_doctor_names_the_cause_and_the_remedy(case, environment, examined):
    row = f"algorithms {case.bare} {case.name} 0.3 broken # s no"
    assert environment.about(examined, case.bare) == [row, *filter(None, [case.doubt, case.reason])]
    assert (examined.code, examined.stderr) == (1, "")


def test_the_run_that_asks_for_it_stops_before_training(case, asked_for):
    refusal = f"algorithm {case.bare!r} of {case.name} 0.3 can't be loaded from '{case.bare}:Bad': {case.reason}"
    assert asked_for[case.bare] == (Done(2, "", f"Error: run.yaml:6: algorithms[1]: {refusal}\n"), False)


def test_the_honest_one_among_them_is_found_good_and_trains(environment, examined, asked_for):
    assert environment.about(examined, "honest") == ["algorithms honest honest-plugin 1.0 available # s no"]
    rows = [line for line in examined.stdout.splitlines() if not line.startswith("    ")]
    assert rows[-1] == f"{len(rows) - 2} plugins, {len(CASES)} with problems"
    done, has_trained = asked_for["honest"]
    assert (done.code, done.stderr, has_trained) == (0, "", True)
