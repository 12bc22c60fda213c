"""Reading the registry builds no pydantic model: pydantic would then ask every distribution for plugins of its own."""

import subprocess
import sys

import pytest


@pytest.fixture
def run(install, tmp_path):
    """Return `run(program)`, where one distribution plugs into pydantic and another's entry points can't be read."""
    install("spy-plugin", {}, {"spy_module": "print('spied')\nplugin = None"})
    install("nonsense", {})
    site = tmp_path / "site-packages"
    (site / "spy_plugin-1.0.dist-info" / "entry_points.txt").write_text("[pydantic]\nspy = spy_module:plugin\n")
    (site / "nonsense-1.0.dist-info" / "entry_points.txt").write_bytes(b"[acme]\n\xff = x:y\n")

    def run(*arguments):
        return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)

    return run


@pytest.mark.parametrize(
    "command",
    [
        ["plugins", "list"],
        ["--help"],
        ["--version"],
        ["plugins", "doctor", "--help"],
    ],
)
def test_a_command_that_trains_nothing_runs_no_code_of_others(run, command):
    done = run("-m", "engine_core", *command)
    assert (done.returncode, "spied" in done.stdout + done.stderr, "Traceback" in done.stderr) == (0, False, False)


@pytest.mark.parametrize(
    "program",
    [
        "import engine_core",
        "from engine_core import Algorithm, AlgorithmMetadata, Callback, Engine, PassMetadata, State",
        "from engine_core.registry import Registry; Registry.scan().find('callbacks', 'loss_guard')",
    ],
)
def test_an_import_runs_no_code_of_others(run, program):
    done = run("-c", program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_this_is_what_pydantic_would_do(run):
    done = run("-c", "from engine_core import AlgorithmMetadata; AlgorithmMetadata()")
    assert (done.returncode, "UnicodeDecodeError" in done.stderr) == (1, True)
