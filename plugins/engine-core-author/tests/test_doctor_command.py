"""`engine-core plugins doctor`: what it prints, and its exit code."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from engine_core.cli import main
from engine_core_author.doctor import examine

GOOD = "from engine_core import Callback as Acme"


@pytest.fixture
def doctor(install, monkeypatch):
    """Return `doctor(*arguments)`, the command where one good plugin is installed and the others are disabled.

    It leaves out the core's own plugins and the command's, whose examination takes seconds.
    """
    monkeypatch.setattr("engine_core_author.commands.examine", examine_guests)
    monkeypatch.setenv("ENGINE_CORE_PLUGINS", "acme-plugin,engine-core-author")
    install("acme-plugin", {"callbacks": {"acme": "acme_module:Acme"}}, {"acme_module": GOOD}, version="1.2")

    def doctor(*arguments):
        return CliRunner().invoke(main, ["plugins", "doctor", *arguments])

    return doctor


@pytest.fixture
def with_bad(doctor, install, monkeypatch):
    """Return `with_bad(text, *arguments)`: the same where a plugin `bad` of this text is installed too."""

    def with_bad(text, *arguments):
        monkeypatch.setenv("ENGINE_CORE_PLUGINS", "acme-plugin,bad-plugin,engine-core-author")
        install("bad-plugin", {"callbacks": {"bad": "bad_module:Bad"}}, {"bad_module": text})
        return doctor(*arguments)

    return with_bad


def examine_guests(records, timeout_s):
    return examine([record for record in records if not record.distribution.startswith("engine-core")], timeout_s)


def ends_with_a_count(result, ailing, *, disabled=False):
    """Do the last line and the exit code report this many plugins with problems?"""
    count = f"\\d+ plugins, {ailing or 'none'} with problems"
    told = re.fullmatch(
        count + (r", \d+ disabled" if disabled else r"(, \d+ disabled)?"), result.stdout.splitlines()[-1]
    )
    return told is not None and result.exit_code == bool(ailing)


def lines(result, *names):
    """Return the lines about plugins of these names and those below them, without the seconds."""
    shown, found = False, []
    for line in result.stdout.splitlines():
        if not line.startswith("    "):
            shown = line.split()[1] in names
        if shown:
            found.append(re.sub(r"\d+\.\d\d s", "# s", " ".join(line.split())))
    return found


def test_entry_points_in_an_unknown_group_are_told_and_the_exit_code_is_1(doctor, install):
    install("typo-plugin", {"algorithm": {"typo": "acme_module:Acme"}})
    result = doctor()
    told = "warning: typo-plugin registers 'typo' in the unknown group 'engine_core.algorithm'; did you mean"
    assert (result.exit_code, told in result.output) == (1, True)


def test_where_all_is_well_it_says_so_and_the_exit_code_is_0(doctor):
    result = doctor()
    header, *rows, count = result.stdout.splitlines()
    assert header.split() == ["KIND", "NAME", "DISTRIBUTION", "VERSION", "STATUS", "IMPORT", "TORCH"]
    assert lines(result, "acme") == ["callbacks acme acme-plugin 1.2 available # s no"]
    assert count.startswith(f"{len([row for row in rows if not row.startswith(' ')])} plugins, none with problems")
    assert (result.exit_code, result.output) == (0, result.stdout)


BAD = """
    from engine_core import Callback

    class Bad(Callback):
        def fit_strat(self, state, logger):
            pass

    print("hi")
"""


def test_problems_are_listed_below_the_plugin_and_the_exit_code_is_1(with_bad):
    result = with_bad(BAD)
    assert lines(result, "bad", "acme") == [
        "callbacks acme acme-plugin 1.2 available # s no",
        "callbacks bad bad-plugin 1.0 available # s no",
        "Bad.fit_strat is never called: no event has that name; did you mean 'fit_start'?",
        "it prints on import: 'hi'; its authors should log it instead",
    ]
    assert ends_with_a_count(result, 1)


def test_a_lone_surrogate_in_an_error_does_not_end_the_report(with_bad):
    result = with_bad(r"raise ValueError('\udc80\x1b')")
    assert r"ValueError: \udc80\x1b (at " in lines(result, "bad")[1]
    assert ends_with_a_count(result, 1)


def test_json_is_an_array_of_the_records_with_what_was_found(doctor):
    result = doctor("--json")
    (acme,) = [record for record in json.loads(result.stdout) if record["name"] == "acme"]
    seconds = acme.pop("seconds")
    assert isinstance(seconds, float) and seconds >= 0
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


def test_json_too_exits_with_1_and_what_a_plugin_prints_gets_into_it_as_a_problem_only(with_bad):
    result = with_bad("print('[]')\nraise SystemExit", "--json")
    (bad,) = [record for record in json.loads(result.stdout) if record["name"] == "bad"]
    assert (bad["status"], len(bad["problems"]), result.exit_code) == ("broken", 2, 1)


def test_disabled_plugins_are_listed_with_the_reason_and_counted_separately(doctor, monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_PLUGINS", "engine-core-author")
    result = doctor()
    why = "ENGINE_CORE_PLUGINS allows only 'engine-core-author'"
    assert lines(result, "acme") == ["callbacks acme acme-plugin 1.2 disabled", why]
    assert ends_with_a_count(result, 0, disabled=True)


@pytest.mark.parametrize(("command", "options"), [("doctor", []), ("list", ["--json"])])
def test_a_probable_misspelling_in_a_list_is_a_warning_on_stderr(doctor, monkeypatch, capsys, command, options):
    monkeypatch.setenv("ENGINE_CORE_PLUGINS", "acme-plugin,engine-core-author")
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "acme-plugn")
    main(["plugins", command, *options], standalone_mode=False)
    assert capsys.readouterr().err == (
        "warning: ENGINE_CORE_DISABLE_PLUGINS lists 'acme-plugn', which is not an installed plugin or distribution; "
        "did you mean 'acme-plugin'?\n"
    )


@pytest.mark.parametrize("limit", ["0", "soon"])
def test_a_time_limit_is_a_positive_number(doctor, limit):
    result = doctor("--timeout", limit)
    assert (result.exit_code, "Invalid value for '--timeout': " in result.output) == (2, True)


@pytest.mark.full
def test_ctrl_c_ends_the_imports_that_run(install, tmp_path, monkeypatch, ends):
    monkeypatch.setenv("ENGINE_CORE_PLUGINS", "slow-plugin,engine-core-author")
    pid = tmp_path / "pid"
    text = f"import os, time\nopen({str(pid)!r}, 'w').write(f'{{os.getpid()}}.')\ntime.sleep(600)"
    install("slow-plugin", {"callbacks": {"slow": "slow_module:Slow"}}, {"slow_module": text})
    process = start(preexec_fn=listen_to_ctrl_c)
    while process.poll() is None and not (pid.exists() and pid.read_text().endswith(".")):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=60)
    assert (process.returncode, printed, errors) == (130, "", "interrupted\n")
    assert ends(int(pid.read_text()[:-1]))


@pytest.mark.full
def test_a_plugin_cannot_read_what_the_user_types(install, monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_PLUGINS", "curious-plugin,engine-core-author")
    install("curious-plugin", {"callbacks": {"curious": "curious_module:C"}}, {"curious_module": "input()"})
    process = start("--json", stdin=subprocess.PIPE)
    (found,) = [record for record in json.loads(process.stdout.read()) if record["name"] == "curious"]
    process.communicate()
    assert found["problems"][0].startswith("EOFError: EOF when reading a line (at ")


def listen_to_ctrl_c():
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what a shell starts in the background ignores it


def start(*options, **pipes):
    """Start the command as a separate process."""
    command = [sys.executable, "-m", "engine_core", "plugins", "doctor", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **pipes}
    return subprocess.Popen(command, text=True, **pipes)
