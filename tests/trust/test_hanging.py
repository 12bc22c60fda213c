"""A plugin whose import hangs."""

import signal
import time

import pytest

from .sources import HONEST, Plugin

HANGING = """
import pathlib
import time

pathlib.Path("imported").touch()
time.sleep(600)
"""
HANGS = (
    "the import did not finish within 10 s and was at <site>/bad_plugin.py:6; report it to its authors, or raise "
    "--timeout"
)
BAD = {"algorithms": {"bad": "Bad"}}


@pytest.fixture(scope="module")
def hanging(make_environment):
    return make_environment([Plugin("bad-plugin", HANGING, "0.3", BAD), HONEST])


def test_a_hanging_import_does_not_touch_the_list(hanging):
    done = hanging.engine_core("plugins", "list")
    assert (hanging.about(done, "bad"), done.code) == (["algorithms bad bad-plugin 0.3 available"], 0)


def test_the_doctor_stops_a_hanging_import_and_says_where_it_was(hanging):
    done = hanging.engine_core("plugins", "doctor", "--timeout", "10")  # in which the honest one has to be imported
    assert hanging.about(done, "bad", "honest") == [
        "algorithms bad bad-plugin 0.3 broken # s",
        HANGS,
        "algorithms honest honest-plugin 1.0 available # s no",
    ]
    assert done.code == 1


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
