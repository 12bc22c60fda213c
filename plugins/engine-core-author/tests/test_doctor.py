"""The doctor: it imports each plugin in its own process, and says what is wrong with it."""

import os
import signal
import sys

import pytest

from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core.registry import PluginRecord, Registry
from engine_core_author.doctor import Diagnosis, examine

GOOD = """
    from engine_core import Algorithm

    class Acme(Algorithm):
        def match(self, event, state):
            return True

        def apply(self, event, state, logger):
            return None
"""
ACME = PluginRecord("algorithms", "acme", "acme-plugin", "1.0", "acme_module:Acme")


@pytest.fixture
def diagnose(install):
    """Return `diagnose(text, kind)`: the diagnosis of a plugin whose module has this text."""

    def diagnose(text, kind="algorithms", timeout_s=20.0, **modules):
        install("acme-plugin", {kind: {"acme": "acme_module:Acme"}}, {"acme_module": text, **modules})
        (found,) = examine([r for r in Registry.scan().records if r.name == "acme"], timeout_s)
        return found

    return diagnose


WARNS = "\n    import warnings; warnings.warn('soon')"
PRINTS = "\n    print()\n    print('Welcome to ACME')\n    print('more')"
WAITS = "\n    import threading, time\n    threading.Thread(target=time.sleep, args=(600,)).start()"


@pytest.mark.parametrize(
    ("more", "problems"),
    [
        (WARNS, ()),
        (WAITS, ()),  # threads that it leaves running are not waited for
        (PRINTS, ("it prints on import: 'Welcome to ACME'; its authors should log it instead",)),
    ],
)
def test_a_good_plugin_has_no_problems_whatever_it_warns_of_and_what_it_prints_is_quoted(diagnose, more, problems):
    found = diagnose(GOOD + more)
    assert found == Diagnosis(ACME, problems, found.seconds, imports_torch=False)
    assert isinstance(found.seconds, float) and found.seconds >= 0


def test_an_import_does_not_affect_the_examiner(diagnose, monkeypatch):
    monkeypatch.delenv("ACME_WAS_HERE", raising=False)
    assert diagnose("import os; os.environ['ACME_WAS_HERE'] = '1'\n" + GOOD.replace("\n    ", "\n")).problems == ()
    assert ("acme_module" in sys.modules, os.environ.get("ACME_WAS_HERE")) == (False, None)
    assert Registry.scan().find("algorithms", "acme") == ACME


def test_an_import_that_fails_breaks_the_record(diagnose, tmp_path):
    found = diagnose("1 / 0")
    reason = (
        f"ZeroDivisionError: division by zero (at {tmp_path / 'site-packages' / 'acme_module.py'}:1); fix or uninstall "
        "acme-plugin, or disable it with ENGINE_CORE_DISABLE_PLUGINS=acme-plugin:acme"
    )
    assert (found.record.status, found.record.reason, found.problems) == ("broken", reason, (reason,))


def test_an_import_of_torch_is_reported_and_is_not_a_problem(diagnose):
    found = diagnose("import torch\n" + GOOD.replace("\n    ", "\n"), torch="")
    assert (found.imports_torch, found.problems) == (True, ())


@pytest.mark.full
def test_an_import_that_hangs_is_stopped_and_its_place_is_reported(diagnose, tmp_path):
    found = diagnose("import time\n\ntime.sleep(600)\n", timeout_s=3)
    reason = (
        f"the import did not finish within 3 s and was at {tmp_path / 'site-packages' / 'acme_module.py'}:3; "
        "report it to its authors, or raise --timeout"
    )
    assert (found.record.status, found.problems, found.seconds, found.imports_torch) == ("broken", (reason,), 3, None)


@pytest.mark.full
def test_what_an_import_has_started_ends_with_it(diagnose, tmp_path, ends):
    pid = tmp_path / "pid"
    start = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    found = diagnose(f"{start}\nopen({str(pid)!r}, 'w').write(str(p.pid))\np.wait()\n", timeout_s=10)
    assert found.record.status == "broken"
    assert ends(int(pid.read_text()))


DIES = "import os, sys; print('{}', file=sys.stderr, flush=True); os._exit(0)"


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "signal SIGTERM"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 1)", f"signal {signal.SIGRTMIN + 1}"),  # no name
        (DIES.format("no\\nluck"), "exit code 0: luck"),
        (
            DIES.format("\\x1b[31m\\u202e" + "x" * 1000),
            r"exit code 0: \x1b[31m\u202e" + "x" * 294 + "... (1006 characters)",
        ),
    ],
)
def test_an_import_that_ends_the_process_is_reported(diagnose, text, how):
    assert diagnose(text).problems == (f"the import ended the process with {how}; report it to its authors",)


@pytest.mark.full
def test_endless_printing_fills_neither_memory_nor_disk(diagnose):
    found = diagnose("while True: print('x' * 1000)", timeout_s=3)
    hangs, prints = found.problems
    assert hangs.startswith("the import did not finish within 3 s and was at ")
    assert prints.startswith("it prints on import: '" + "x" * 17)


def test_a_disabled_plugin_is_not_imported_and_is_not_a_problem(diagnose, monkeypatch, tmp_path):
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "acme")
    found = diagnose(f"open({str(tmp_path / 'was_here')!r}, 'w')")
    assert (found.record.status, found.problems, found.seconds) == ("disabled", (), None)
    assert not (tmp_path / "was_here").exists()


def test_what_metadata_shows_is_a_problem_too_and_what_is_broken_is_not_imported(install):
    install("acme-plugin", {"algorithms": {"acme": "acme_module:Acme"}}, {"acme_module": "1 / 0"}, metadata=False)
    (record,) = (r for r in Registry.scan().records if r.name == "acme")
    assert examine([record]) == [Diagnosis(record, (record.reason,))]
    assert record.status == "broken"


def test_what_a_distribution_lacks_and_an_entry_point_in_the_module_of_another_are_problems(install, tmp_path):
    install("acme-plugin", {"algorithms": {"acme": "acme_module:Acme"}}, {"acme_module": GOOD})
    install("claim", {"algorithms": {"claimed": "acme_module:Acme"}})
    site = tmp_path / "site-packages"
    (site / "acme_plugin-1.0.dist-info" / "RECORD").write_text("acme_module.py,,\n")
    with (site / "claim-1.0.dist-info" / "METADATA").open("a") as metadata:
        metadata.write("Requires-Dist: acme-maths>=2\n")
    (found,) = examine([r for r in Registry.scan(refresh=True).records if r.name == "claimed"])
    assert found.problems == (
        "it requires acme-maths>=2, which is not installed; run: pip install 'acme-maths>=2'",
        "its entry point lies in 'acme_module', a module of acme-plugin; report it to the authors of claim",
    )


def test_a_name_that_two_claim_is_a_problem_of_both_and_both_are_imported(install):
    for name in ("one", "two"):
        install(f"{name}-plugin", {"algorithms": {"acme": f"{name}_module:Acme"}}, {f"{name}_module": GOOD})
    found = examine([r for r in Registry.scan().records if r.name == "acme"])
    assert [(d.record.status, d.problems, d.imports_torch) for d in found] == [
        (
            "ambiguous",
            (f"'acme' is claimed by one-plugin 1.0 and two-plugin 1.0; use '{n}-plugin:acme' for this one",),
            False,
        )
        for n in ("one", "two")
    ]


@pytest.mark.full
def test_findings_come_in_the_order_of_the_records(install):
    sleep = "import time; time.sleep({})\nfrom engine_core import Callback as Acme\n"
    modules = {f"m{n}": sleep.format((4 - n) / 10) for n in range(5)}
    install("acme-plugin", {"callbacks": {f"c{n}": f"m{n}:Acme" for n in range(5)}}, modules)
    records = [r for r in Registry.scan().records if r.distribution == "acme-plugin"]
    assert [(d.record.name, d.problems) for d in examine(records[::-1])] == [(f"c{n}", ()) for n in (4, 3, 2, 1, 0)]


@pytest.mark.parametrize(
    ("timeout_s", "said"),
    [
        (0, "has to be a positive number of seconds, not 0"),
        (float("nan"), "has to be a positive number of seconds, not nan"),
        (1e300, r"has to be at most 86400, a day, not 1e\+300"),
        ("5", "is a number of seconds, not '5'"),
    ],
)
def test_a_time_limit_is_a_positive_number(timeout_s, said):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=f"^timeout_s {said}$"):
        examine([], timeout_s)
