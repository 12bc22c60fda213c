"""What the conformance kit costs projects that do not use it, and what is left without torch."""

import json
import subprocess
import sys

import pytest

IMPORTS = """
import json, sys, time
import pytest
before, started_s = set(sys.modules), time.process_time()
import {module}
print(json.dumps([time.process_time() - started_s, sorted(set(sys.modules) - before)]))
"""
NO_TORCH = "import sys\n\nsys.modules['torch'] = None\n"


def imported(module):
    """Return the CPU seconds and the modules that an import takes beyond pytest's, in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS.format(module=module)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def pytest_in(folder, *arguments):
    """Run pytest in a folder, without the plugin unless it is among the arguments, and return exit code and output."""
    calm = ["--color=no", "-p", "no:cacheprovider", "-p", "no:engine_core"]
    command = [sys.executable, "-m", "pytest", *calm, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_pytest_plugin_is_imported_in_less_than_50_ms_and_imports_nothing_else():
    seconds, modules = zip(*(imported("engine_core_author.pytest_plugin") for _ in range(3)), strict=True)
    assert modules[0] == ["engine_core_author", "engine_core_author.pytest_plugin"]
    assert min(seconds) < 0.05


@pytest.mark.parametrize("name", ["AlgorithmConformance", "PassConformance", "BrokenRule", "RecordingDestination"])
def test_a_public_name_needs_no_torch_and_no_numpy(name):
    program = f"import json, sys\nfrom engine_core_author import {name}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {"torch", "numpy"} & set(json.loads(done.stdout)) == set()


def test_a_name_that_is_not_public_is_an_attribute_error():
    import engine_core_author as kit  # noqa: PLC0415

    with pytest.raises(AttributeError, match=r"module 'engine_core_author' has no attribute 'AlgorithmConform'"):
        kit.AlgorithmConform  # noqa: B018


def test_without_torch_the_checks_of_an_algorithm_are_skipped_with_the_reason_and_those_of_a_pass_run(tmp_path):
    (tmp_path / "conftest.py").write_text(NO_TORCH)
    (tmp_path / "test_kit.py").write_text("""
from engine_core import passes
from engine_core_author import AlgorithmConformance, PassConformance

class TestAlgorithm(AlgorithmConformance):
    def make_algorithm(self):
        raise AssertionError("nobody asks for it")

class TestPass(PassConformance):
    def make_pass(self):
        return passes.set_filo_order
""")
    code, said = pytest_in(tmp_path, "-q", "-rs")
    assert code == 0, said
    assert "7 passed, 25 skipped" in said
    assert "torch is not installed; the checks of an algorithm train with it" in said


@pytest.mark.full
def test_the_base_classes_are_not_collected_where_they_are_imported(tmp_path):
    (tmp_path / "test_kit.py").write_text("from engine_core_author import AlgorithmConformance, PassConformance")
    assert "no tests collected" in pytest_in(tmp_path, "--collect-only", "test_kit.py")[1]


@pytest.mark.full
def test_in_a_project_that_does_not_use_the_kit_the_plugin_says_nothing(tmp_path):
    (tmp_path / "test_own.py").write_text("def test_fails():\n    number = 1\n    assert number == 2\n")
    _, with_it = pytest_in(tmp_path, "-vv", "-p", "engine_core_author.pytest_plugin", "test_own.py")
    _, without = pytest_in(tmp_path, "-vv", "test_own.py")
    assert "assert 1 == 2" in report_of(without)
    assert report_of(with_it) == report_of(without)
    assert [line for line in with_it.splitlines() if line.startswith("engine-core ")] == []


def report_of(said):
    """Return what lies between the headings of the failures and of the summary."""
    return said.partition(" FAILURES ")[2].partition(" short test summary info ")[0]
