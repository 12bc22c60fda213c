"""A plugin whose import hangs, or prints."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from .sources import HONEST, Plugin, algorithm

HANGING = """
import pathlib
import time

pathlib.Path("imported").touch()
time.sleep(600)
"""
HANGS = (
    "the import did not finish within 30 s and was at <site>/bad_plugin.py:6; report it to its authors, or raise "
    "--timeout"
)
PRINTING = "print()\nprint('Thank you for using ACME!')\n" + algorithm("Bad")
PRINTS = "it prints on import: 'Thank you for using ACME!'; its authors should log it instead"
BAD = {"algorithms": {"bad": "Bad"}}


@pytest.fixture(scope="module")
def hanging(make_environment):
    return make_environment([Plugin("bad-plugin", HANGING, "0.3", BAD), HONEST])


def test_a_hanging_import_does_not_touch_the_list(hanging):
    done = hanging.engine_core("plugins", "list")
    assert (hanging.about(done, "bad"), done.code) == (["algorithms bad bad-plugin 0.3 available"], 0)


def test_the_doctor_stops_a_hanging_import_and_says_where_it_was(hanging):
    options = ([], ["--json"])
    with ThreadPoolExecutor() as pool:  # each takes its thirty seconds, in which the honest one has to be imported
        text, as_json = pool.map(lambda o: hanging.engine_core("plugins", "doctor", "--timeout", "30", *o), options)
    assert hanging.about(text, "bad", "honest") == [
        "algorithms bad bad-plugin 0.3 broken # s",
        HANGS,
        "algorithms honest honest-plugin 1.0 available # s no",
    ]
    (bad,) = hanging.records(as_json, "bad")
    assert (bad["status"], bad["reason"], bad["problems"], bad["imports_torch"]) == ("broken", HANGS, [HANGS], None)
    assert (text.code, as_json.code) == (1, 1)


@pytest.fixture
def _ctrl_c_is_heard():
    """Let children hear it even where a shell runs the tests in its background, and ignores it for all of them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c_is_heard")
def test_ctrl_c_in_a_run_whose_plugin_hangs_says_which_plugin(hanging):
    (hanging.work / "imported").unlink(missing_ok=True)
    hanging.configure("bad")
    process = hanging.start("train", "run.yaml")
    while process.poll() is None and not (hanging.work / "imported").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (
        130,
        "interrupted\nwhile importing algorithm 'bad' of bad-plugin 0.3 from 'bad_plugin:Bad'\n",
    )
    assert not hanging.has_trained()


def test_beside_a_plugin_that_hangs_others_train(hanging):
    assert (hanging.train("honest").code, hanging.has_trained()) == (0, True)


def test_a_plugin_that_hangs_is_not_imported_where_it_is_disabled(hanging):
    hanging.environ["ENGINE_CORE_DISABLE_PLUGINS"] = "bad-plugin"
    done = hanging.engine_core("plugins", "doctor")
    hanging.environ.clear()
    assert hanging.about(done, "bad") == [
        "algorithms bad bad-plugin 0.3 disabled",
        "listed in ENGINE_CORE_DISABLE_PLUGINS",
    ]
    assert done.code == 0


@pytest.fixture(scope="module")
def printing(make_environment):
    return make_environment([Plugin("bad-plugin", PRINTING, "0.3", BAD), HONEST])


def test_the_doctor_quotes_what_an_import_prints(printing):
    done = printing.engine_core("plugins", "doctor")
    assert printing.about(done, "bad", "honest") == [
        "algorithms bad bad-plugin 0.3 available # s no",
        PRINTS,
        "algorithms honest honest-plugin 1.0 available # s no",
    ]
    assert done.code == 1


def test_what_an_import_prints_gets_into_no_json(printing):
    done = printing.engine_core("plugins", "doctor", "--json")
    (bad,) = printing.records(done, "bad")
    assert (bad["status"], bad["problems"], done.code) == ("available", [PRINTS], 1)
    explained = printing.engine_core("explain", "--json", "--algorithms", "bad", "honest")
    assert list(json.loads(explained.stdout))
    assert (explained.stderr, explained.code) == ("\nThank you for using ACME!\n", 0)


def test_a_run_with_a_plugin_that_prints_trains_and_keeps_its_output_clean(printing):
    done = printing.train("bad")
    assert (done.code, done.stderr, printing.has_trained()) == (0, "\nThank you for using ACME!\n", True)
    assert "ACME" not in done.stdout
