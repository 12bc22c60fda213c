"""Names that are claimed twice, imports that print or hang, a pass that breaks a declaration; in one environment."""

import json
import signal
import time

import pytest

from .conftest import Done, Run
from .sources import ALGORITHM, HONEST, Plugin, algorithm

TWIN = {"algorithms": {"twin": "Twin"}}
ONE = Plugin("one-plugin", algorithm("Twin"), "1.5", TWIN)
TWO = Plugin("two-plugin", algorithm("Twin"), "2.0", TWIN)
SHADOW = """
from engine_core import Callback


class Limit(Callback):
    def fit_end(self, state, logger):
        with open("shadow", "w"):
            pass
"""
REASON = "'twin' is claimed by one-plugin 1.5 and two-plugin 2.0; use '{}:twin' for this one"
PRINTING = "print()\nprint('Thank you for using ACME!')\n" + algorithm("Bad")
PRINTS = "it prints on import: 'Thank you for using ACME!'; its authors should log it instead"
SECOND = '\nclass Second(First):\n    metadata = AlgorithmMetadata(name="second", events=("batch_end",))\n'
PASS = """

@algorithm_pass(stage="placement", events=("batch_end",))
def second_first(algorithms, event):
    return passes.sort_to_front(algorithms, Second)
"""
FIRST = ALGORITHM.format(name="First", metadata='name="first", events=("batch_end",), before=("second",)')
BREAKS = (
    "pass 'second_first' of order-plugin puts Second before First at BATCH_END, but First (order-plugin 0.3, "
    "before='second') declares the opposite; disable that pass or fix its distribution"
)
ORDER = {"algorithms": {"first": "First", "second": "Second"}, "passes": {"second_first": "second_first"}}
HANGING = """
import pathlib
import time

pathlib.Path("imported").touch()
time.sleep(600)
"""
HANGS = (
    "the import did not finish within 60 s and was at <site>/hanging_plugin.py:6; report it to its authors, or raise "
    "--timeout"
)
PLUGINS = [
    *(ONE, TWO, HONEST),
    Plugin("hanging-plugin", HANGING, "0.3", {"algorithms": {"hanging": "Bad"}}),
    Plugin("shadow-plugin", SHADOW, "6.6", {"callbacks": {"time_limit": "Limit"}}),
    Plugin("printing-plugin", PRINTING, "0.3", {"algorithms": {"printing": "Bad"}}),
    Plugin("order-plugin", FIRST + SECOND + PASS, "0.3", ORDER),
]


@pytest.fixture(scope="module")
def environment(make_environment):
    return make_environment(PLUGINS)


@pytest.fixture(scope="module")
def examined(environment):
    return environment.engine_core("plugins", "doctor", "--timeout", "60")  # in which the others have to be imported


@pytest.fixture(scope="module")
def ran(environment):
    return environment.train_each(
        bare=Run(("honest", "twin")),
        qualified=Run(("two-plugin:twin", "one-plugin:twin", "honest")),
        alone=Run(("twin",), environ={"ENGINE_CORE_DISABLE_PLUGINS": "one-plugin"}),
        built_in=Run(("honest",), more="callbacks: [{name: time_limit, args: {limit: 1h}}]"),
        shadow=Run(("honest",), more="callbacks: ['shadow-plugin:time_limit']"),
        printing=Run(("printing",)),
        both=Run(("second", "first", "honest")),
        one=Run(("second", "honest")),
        remedied=Run(("second", "first"), environ={"ENGINE_CORE_DISABLE_PLUGINS": "order-plugin:second_first"}),
    )


@pytest.mark.parametrize("command", ["list", "doctor"])
def test_two_claims_are_listed_with_both_distributions_and_an_import_that_hangs_is_stopped(
    environment, examined, command
):
    done = environment.engine_core("plugins", "list") if command == "list" else examined
    imported = " # s no" if command == "doctor" else ""
    assert environment.about(done, "twin", "honest") == [
        f"algorithms honest honest-plugin 1.0 available{imported}",
        f"algorithms twin one-plugin 1.5 ambiguous{imported}",
        REASON.format("one-plugin"),
        f"algorithms twin two-plugin 2.0 ambiguous{imported}",
        REASON.format("two-plugin"),
    ]
    version = environment.about(done, "time_limit")[0].split()[3]
    assert environment.about(done, "time_limit") == [
        f"callbacks time_limit engine-core {version} available{imported}",
        f"callbacks time_limit shadow-plugin 6.6 ambiguous{imported}",
        (
            f"'time_limit' is claimed by engine-core {version} and shadow-plugin 6.6; the bare name means engine-core's"
            "; use 'shadow-plugin:time_limit' for this one"
        ),
    ]
    hanging = "broken # s" if command == "doctor" else "available"
    assert environment.about(done, "hanging") == [
        f"algorithms hanging hanging-plugin 0.3 {hanging}",
        *([HANGS] if command == "doctor" else []),
    ]
    assert done.code == (1 if command == "doctor" else 0)


def test_a_run_that_asks_for_a_name_with_two_claims_stops_before_training(ran):
    error = (
        "Error: run.yaml:6: algorithms[1]: 'twin' is claimed by several distributions; choose one of: "
        "one-plugin:twin (1.5, one_plugin:Twin), two-plugin:twin (2.0, two_plugin:Twin)\n"
    )
    assert ran["bare"] == (Done(2, "", error), False)


@pytest.mark.parametrize("name", ["qualified", "alone", "one", "remedied"])
def test_what_no_fault_touches_trains_and_each_remedy_works(ran, name):
    done, has_trained = ran[name]
    assert (done.code, has_trained) == (0, True)


def test_the_bare_name_gives_the_built_in_and_the_qualified_one_the_other(environment, ran):
    assert (ran["built_in"][0].code, ran["shadow"][0].code) == (0, 0)
    left = {name: (environment.beside(name).work / "shadow").exists() for name in ("built_in", "shadow")}
    assert left == {"built_in": False, "shadow": True}


def test_what_an_import_prints_is_quoted_by_the_doctor_and_gets_into_no_json_and_no_output(environment, examined, ran):
    assert environment.about(examined, "printing") == [
        "algorithms printing printing-plugin 0.3 available # s no",
        PRINTS,
    ]
    explained = environment.engine_core("explain", "--json", "--algorithms", "printing", "honest")
    assert list(json.loads(explained.stdout))
    assert (explained.stderr, explained.code) == ("\nThank you for using ACME!\n", 0)
    done, has_trained = ran["printing"]
    assert (done.code, done.stderr, has_trained) == (0, "\nThank you for using ACME!\n", True)
    assert "ACME" not in done.stdout


def test_a_pass_that_breaks_a_declaration_is_named_by_the_doctor_and_by_the_run_of_both(environment, examined, ran):
    assert environment.about(examined, "first", "second", "second_first") == [
        "algorithms first order-plugin 0.3 available # s no",
        "algorithms second order-plugin 0.3 available # s no",
        "passes second_first order-plugin 0.3 available # s no",
        BREAKS,
    ]
    assert ran["both"] == (Done(2, "", f"Error: {BREAKS}\n"), False)


@pytest.fixture
def _ctrl_c_is_heard():
    """Let children hear it even where a shell runs the tests in its background, and ignores it for all of them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c_is_heard")
def test_ctrl_c_in_a_run_whose_plugin_hangs_says_which_plugin(environment):
    place = environment.beside("hanging")
    place.configure("hanging")
    process = place.start("train", "run.yaml")
    while process.poll() is None and not (place.work / "imported").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (
        130,
        "interrupted\nwhile importing algorithm 'hanging' of hanging-plugin 0.3 from 'hanging_plugin:Bad'\n",
    )
    assert not place.has_trained()
