"""A plugin whose import fails is named with the reason, and stops the run that asked for it and nobody else."""

import pytest

from .cases import CASES
from .conftest import Done
from .sources import HONEST


@pytest.fixture(scope="session", params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture(scope="session")
def environment(case, make_environment):
    """Install the faulty plugin and an honest one."""
    return make_environment([case.plugin, HONEST])


def test_the_list_shows_what_metadata_shows(case, environment):
    done = environment.engine_core("plugins", "list")
    assert (done.code, done.stderr) == (0, "")
    assert environment.about(done, "bad", "honest") == [
        "algorithms bad bad-plugin 0.3 available",
        *([case.doubt] if case.doubt else []),
        "algorithms honest honest-plugin 1.0 available",
    ]


def test_the_doctor_names_the_cause_and_the_remedy(case, environment):
    done = environment.engine_core("plugins", "doctor")
    problems = [problem for problem in (case.doubt, case.reason) if problem]
    assert environment.about(done, "bad", "honest") == [
        "algorithms bad bad-plugin 0.3 broken # s no",
        *problems,
        "algorithms honest honest-plugin 1.0 available # s no",
    ]
    rows = [line for line in done.stdout.splitlines() if not line.startswith("    ")]
    assert (done.code, done.stderr, rows[-1]) == (1, "", f"{len(rows) - 2} plugins, 1 with problems")


def test_the_doctors_json_has_the_record_as_it_is_after_the_import(case, environment):
    done = environment.engine_core("plugins", "doctor", "--json")
    assert (done.code, done.stderr) == (1, "")
    assert environment.records(done, "bad", "honest") == [
        {
            "kind": "algorithms",
            "name": "bad",
            "distribution": "bad-plugin",
            "version": "0.3",
            "entry_point": "bad_plugin:Bad",
            "status": "broken",
            "reason": case.reason,
            "problems": [problem for problem in (case.doubt, case.reason) if problem],
            "imports_torch": False,
        },
        {
            "kind": "algorithms",
            "name": "honest",
            "distribution": "honest-plugin",
            "version": "1.0",
            "entry_point": "honest_plugin:Honest",
            "status": "available",
            "reason": "",
            "problems": [],
            "imports_torch": False,
        },
    ]


def test_the_run_that_asks_for_it_stops_before_training(case, environment):
    refusal = f"algorithm 'bad' of bad-plugin 0.3 can't be loaded from 'bad_plugin:Bad': {case.reason}"
    assert environment.train("honest", "bad") == Done(2, "", f"Error: run.yaml:6: algorithms[1]: {refusal}\n")
    assert not environment.has_trained()


def test_everybody_else_trains(environment):
    done = environment.train("honest")
    assert (done.code, done.stderr) == (0, "")
    assert environment.has_trained()
