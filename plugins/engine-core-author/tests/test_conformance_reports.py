"""What an author sees: short reports of broken rules, and which plugins the kit met."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.full

TESTS = """
from engine_core import Algorithm, AlgorithmMetadata, Event
from engine_core_author import AlgorithmConformance


class Halve(Algorithm):
    metadata = AlgorithmMetadata(events=("after_loss",), writes=("outputs",))

    def match(self, event, state):
        return event is Event.AFTER_LOSS

    def apply(self, event, state, logger):
        state.loss = state.loss / 2


class PickTarget(Halve):
    metadata = AlgorithmMetadata(events=("after_loss",), writes=("loss",))

    def apply(self, event, state, logger):
        state.loss = state.loss * state.batch[1].sum()


class TestHalve(AlgorithmConformance):
    def make_algorithm(self):
        return Halve()


class TestPickTarget(AlgorithmConformance):
    def make_algorithm(self):
        return PickTarget()

    def make_others(self):
        return []
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Return what pytest says of these tests."""
    folder = tmp_path_factory.mktemp("author")
    (folder / "test_halve.py").write_text(TESTS)
    plugin = ["--color=no", "-p", "no:engine_core", "-p", "engine_core_author.pytest_plugin"]
    chosen = "test_writes_declared or test_metadata or test_restores or test_batches or test_order"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *plugin, "-rs", "-k", chosen]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


def test_a_broken_rule_is_reported_with_what_was_seen_and_why_and_nothing_of_the_kit(said):
    _, _, report = said.partition("TestHalve.test_writes_declared")
    (line,) = report.partition("TestPickTarget")[0].strip("_ \n").splitlines()
    seen = "loss at AFTER_LOSS of batch 0 without declaring it: don't change it, or declare writes=('outputs', 'loss')"
    assert line.startswith("Halve breaks the rule of test_writes_declared: It runs within a few steps, and `apply`")
    assert f" Seen: Halve changed {seen}. Why it matters: " in line and " To fix it: Declare the field in " in line


def test_what_the_algorithm_raised_is_shown_from_its_own_code(said):
    _, _, report = said.partition("What was raised")
    assert "Traceback (most recent call last), without engine-core:" in report
    assert 'test_halve.py", line 20, in apply' in report
    assert "KeyError: 1" in report
    assert "engine_core/engine/pipeline.py" not in report


def test_the_engine_and_the_plugins_that_the_kit_met_are_reported_after_collection(said):
    (line,) = [line for line in said.splitlines() if line.startswith("engine-core ")]
    assert line.startswith("engine-core 0.1.0, plugins: ")


def test_a_check_that_has_nothing_to_judge_is_skipped_with_the_reason(said):
    assert "its metadata lists no complete pair of events, and no event of an evaluation" in said
    assert "there is no other algorithm: no installed one can be made without arguments" in said
