"""A pass that sorts an algorithm where a declaration forbids it."""

import pytest

from .conftest import Done
from .sources import ALGORITHM, HONEST, Plugin

SECOND = '\nclass Second(First):\n    metadata = AlgorithmMetadata(name="second", events=("batch_end",))\n'
PASS = """

@algorithm_pass(stage="placement", events=("batch_end",))
def second_first(algorithms, event):
    return passes.sort_to_front(algorithms, Second)
"""
FIRST = ALGORITHM.format(name="First", metadata='name="first", events=("batch_end",), before=("second",)')
ENTRY_POINTS = {
    "algorithms": {"first": "First", "second": "Second"},
    "passes": {"second_first": "second_first"},
}
BREAKS = (
    "pass 'second_first' of bad-plugin puts Second before First at BATCH_END, but First (bad-plugin 0.3, "
    "before='second') declares the opposite; disable that pass or fix its distribution"
)


@pytest.fixture(scope="module")
def environment(make_environment):
    return make_environment([Plugin("bad-plugin", FIRST + SECOND + PASS, "0.3", ENTRY_POINTS), HONEST])


def test_the_doctor_names_the_pass_and_both_algorithms(environment):
    done = environment.engine_core("plugins", "doctor")
    assert environment.about(done, "first", "second", "second_first") == [
        "algorithms first bad-plugin 0.3 available # s no",
        "algorithms second bad-plugin 0.3 available # s no",
        "passes second_first bad-plugin 0.3 available # s no",
        BREAKS,
    ]
    assert done.code == 1


def test_the_doctors_json_has_it_as_a_problem_of_the_pass(environment):
    done = environment.engine_core("plugins", "doctor", "--json")
    found = environment.records(done, "first", "second", "second_first")
    assert [(record["name"], record["status"], record["problems"]) for record in found] == [
        ("first", "available", []),
        ("second", "available", []),
        ("second_first", "available", [BREAKS]),
    ]
    assert done.code == 1


def test_the_run_that_asks_for_both_stops_before_training(environment):
    assert environment.train("second", "first", "honest") == Done(2, "", f"Error: {BREAKS}\n")
    assert not environment.has_trained()


def test_where_the_declaration_binds_neither_they_train(environment):
    assert (environment.train("second", "honest").code, environment.has_trained()) == (0, True)


def test_the_remedy_works(environment):
    environment.environ["ENGINE_CORE_DISABLE_PLUGINS"] = "bad-plugin:second_first"
    assert (environment.train("second", "first").code, environment.has_trained()) == (0, True)
    environment.environ.clear()
