"""A plugin whose import fails is named with the reason, and stops the run that asked for it and nothing else.

All of them lie in one environment, and an honest one among them.
"""

import functools

import pytest

from .cases import CASES
from .conftest import Done, Run
from .sources import HONEST


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request):
    return request.param


@pytest.fixture(scope="module")
def environment(make_environment):
    return make_environment([*(case.plugin for case in CASES), HONEST])


@pytest.fixture(scope="module")
def listed(environment):
    return environment.engine_core("plugins", "list")


@pytest.fixture(scope="module")
def both_forms(environment):
    doctor = functools.partial(environment.engine_core, "plugins", "doctor")
    return doctor(), doctor("--json")


@pytest.fixture(scope="module")
def examined(both_forms):
    return both_forms[0]


@pytest.fixture(scope="module")
def examined_as_json(both_forms):
    return both_forms[1]


@pytest.fixture(scope="module")
def asked_for(environment):
    """Return by name what came of the run that asks for this plugin, and whether it has trained."""
    return environment.train_each(honest=Run(("honest",)), **{c.bare: Run(("honest", c.bare)) for c in CASES})


def test_the_list_imports_nothing_and_so_finds_nothing(case, environment, listed):
    assert environment.about(listed, case.bare) == [f"algorithms {case.bare} {case.name} 0.3 available"]
    assert (listed.code, listed.stderr) == (0, "")


def test_the_doctor_names_the_cause_and_the_remedy(case, environment, examined):
    row = f"algorithms {case.bare} {case.name} 0.3 broken # s no"
    assert environment.about(examined, case.bare) == [row, *case.problems]
    assert (examined.code, examined.stderr) == (1, "")


def test_the_doctors_json_has_the_record_as_it_is_after_the_import(case, environment, examined_as_json):
    assert environment.records(examined_as_json, case.bare) == [
        {
            "kind": "algorithms",
            "name": case.bare,
            "distribution": case.name,
            "version": "0.3",
            "entry_point": f"{case.bare}:Bad",
            "status": "broken",
            "reason": case.reason,
            "problems": case.problems,
            "imports_torch": False,
        }
    ]
    assert (examined_as_json.code, examined_as_json.stderr) == (1, "")


def test_the_run_that_asks_for_it_stops_before_training(case, asked_for):
    refusal = f"algorithm {case.bare!r} of {case.name} 0.3 can't be loaded from '{case.bare}:Bad': {case.reason}"
    assert asked_for[case.bare] == (Done(2, "", f"Error: run.yaml:6: algorithms[1]: {refusal}\n"), False)


def test_the_honest_one_among_them_is_found_good_and_trains(environment, examined, asked_for):
    assert environment.about(examined, "honest") == ["algorithms honest honest-plugin 1.0 available # s no"]
    rows = [line for line in examined.stdout.splitlines() if not line.startswith("    ")]
    assert rows[-1] == f"{len(rows) - 2} plugins, {len(CASES)} with problems"
    done, has_trained = asked_for["honest"]
    assert (done.code, done.stderr, has_trained) == (0, "", True)
