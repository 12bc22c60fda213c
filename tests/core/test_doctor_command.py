"""`engine-core plugins doctor`: what it prints, and its exit code."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine_core.cli import main

GOOD = "from engine_core import Callback as Acme"


@pytest.fixture
def doctor(install, monkeypatch):
    """Return `doctor(*arguments)`, the command where one good plugin is installed and others than ours are disabled."""
    monkeypatch.setenv("ENGINE_CORE_PLUGINS", "acme-plugin,bad-plugin")
    install("acme-plugin", {"callbacks": {"acme": "acme_module:Acme"}}, {"acme_module": GOOD}, version="1.2")

    def doctor(*arguments):
        return CliRunner().invoke(main, ["plugins", "doctor", *arguments])

    return doctor


def lines(result, *names):
    """Return the lines about plugins of these names and what stands below them, seconds left out."""
    shown, found = False, []
    for line in result.stdout.splitlines():
        if not line.startswith("    "):
            shown = line.split()[1] in names
        if shown:
            found.append(re.sub(r"\d\.\d\d s", "# s", " ".join(line.split())))
    return found


def test_where_all_is_well_it_says_so_and_the_exit_code_is_0(doctor):
    result = doctor()
    header = "KIND NAME DISTRIBUTION VERSION STATUS IMPORT TORCH"
    assert result.stdout.splitlines()[0].split() == header.split()
    assert lines(result, "acme") == ["callbacks acme acme-plugin 1.2 available # s no"]
    assert re.fullmatch(r"\d+ plugins, none with problems(, \d+ disabled)?", result.stdout.splitlines()[-1])
    assert result.exit_code == 0


BAD = """
    from engine_core import Callback

    class Bad(Callback):
        def fit_strat(self, state, logger):
            pass

    print("hi")
"""


def test_problems_stand_below_the_plugin_and_the_exit_code_is_1(doctor, install):
    install("bad-plugin", {"callbacks": {"bad": "bad_module:Bad"}}, {"bad_module": BAD})
    result = doctor()
    assert lines(result, "bad", "acme") == [
        "callbacks acme acme-plugin 1.2 available # s no",
        "callbacks bad bad-plugin 1.0 available # s no",
        "Bad.fit_strat is never called: no event has that name; did you mean 'fit_start'?",
        "it prints while it is imported: 'hi'; its authors should log it",
    ]
    assert re.fullmatch(r"\d+ plugins, 1 with problems(, \d+ disabled)?", result.stdout.splitlines()[-1])
    assert result.exit_code == 1


def test_json_is_an_array_of_the_records_with_what_was_found(doctor):
    result = doctor("--json")
    (acme,) = [record for record in json.loads(result.stdout) if record["name"] == "acme"]
    assert acme.pop("seconds") < 10
    assert acme == {
        "kind": "callbacks",
        "name": "acme",
        "distribution": "acme-plugin",
        "version": "1.2",
        "entry_point": "acme_module:Acme",
        "status": "available",
        "reason": "",
        "problems": [],
        "imports_torch": False,
    }
    assert result.exit_code == 0


def test_json_too_ends_with_1_where_something_is_wrong(doctor, install):
    install("bad-plugin", {"callbacks": {"bad": "bad_module:Bad"}}, {"bad_module": "print('[]')\nraise SystemExit"})
    result = doctor("--json")
    (bad,) = [record for record in json.loads(result.stdout) if record["name"] == "bad"]
    assert (bad["status"], len(bad["problems"]), result.exit_code) == ("broken", 2, 1)


def test_what_is_disabled_is_told_with_the_reason_and_counted_apart(doctor, monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_PLUGINS", "")
    result = doctor()
    assert lines(result, "acme") == ["callbacks acme acme-plugin 1.2 disabled", "ENGINE_CORE_PLUGINS allows only ''"]
    assert re.fullmatch(r"\d+ plugins, none with problems, \d+ disabled", result.stdout.splitlines()[-1])
    assert result.exit_code == 0


@pytest.mark.parametrize("command", ["doctor", "list"])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_what_is_probably_misspelt_in_a_list_is_a_warning_on_stderr(doctor, monkeypatch, command, options):
    monkeypatch.setenv("ENGINE_CORE_PLUGINS", "acme-plugin")
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "acme-plugn")
    result = CliRunner().invoke(main, ["plugins", command, *options])
    assert result.stderr == (
        "warning: ENGINE_CORE_DISABLE_PLUGINS lists 'acme-plugn', which is no plugin and no distribution here; "
        "did you mean 'acme-plugin'?\n"
    )
    assert result.exit_code == 0


@pytest.mark.parametrize("limit", ["0", "-3", "soon"])
def test_a_time_limit_is_a_positive_number(doctor, limit):
    result = doctor("--timeout", limit)
    assert (result.exit_code, "Invalid value for '--timeout': " in result.output) == (2, True)


def test_ctrl_c_ends_the_imports_that_run(install, tmp_path, monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_PLUGINS", "slow-plugin")
    pid = tmp_path / "pid"
    text = f"import os, time\nopen({str(pid)!r}, 'w').write(f'{{os.getpid()}}.')\ntime.sleep(600)"
    install("slow-plugin", {"callbacks": {"slow": "slow_module:Slow"}}, {"slow_module": text})
    path = os.pathsep.join(filter(None, [str(tmp_path / "site-packages"), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "engine_core", "plugins", "doctor"],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (pid.exists() and pid.read_text().endswith(".")):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=60)
    assert (process.returncode, printed, errors) == (130, "", "interrupted\n")
    assert is_over(int(pid.read_text()[:-1]))


def is_over(pid):
    """Is a process gone, or only left for its parent to bury?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
