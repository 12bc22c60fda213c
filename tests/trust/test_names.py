"""Names that are claimed twice: by two distributions, or by one that takes a built-in's."""

import pytest

from .conftest import Done
from .sources import HONEST, Plugin, algorithm

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


@pytest.fixture(scope="module")
def twins(make_environment):
    return make_environment([ONE, TWO, HONEST])


@pytest.mark.parametrize("command", ["list", "doctor"])
def test_two_claims_are_listed_with_both_distributions(twins, command):
    done = twins.engine_core("plugins", command)
    imported = " # s no" if command == "doctor" else ""
    assert twins.about(done, "twin", "honest") == [
        f"algorithms honest honest-plugin 1.0 available{imported}",
        f"algorithms twin one-plugin 1.5 ambiguous{imported}",
        REASON.format("one-plugin"),
        f"algorithms twin two-plugin 2.0 ambiguous{imported}",
        REASON.format("two-plugin"),
    ]
    assert done.code == (1 if command == "doctor" else 0)


def test_two_claims_are_problems_of_both_in_json(twins):
    done = twins.engine_core("plugins", "doctor", "--json")
    assert twins.records(done, "twin") == [
        {
            "kind": "algorithms",
            "name": "twin",
            "distribution": name,
            "version": version,
            "entry_point": f"{name.replace('-', '_')}:Twin",
            "status": "ambiguous",
            "reason": REASON.format(name),
            "problems": [REASON.format(name)],
            "imports_torch": False,
        }
        for name, version in (("one-plugin", "1.5"), ("two-plugin", "2.0"))
    ]


def test_a_run_that_asks_for_a_name_with_two_claims_stops_before_training(twins):
    assert twins.train("honest", "twin") == Done(
        2,
        "",
        "Error: run.yaml:6: algorithms[1]: 'twin' is claimed by several distributions; choose one of: "
        "one-plugin:twin (1.5, one_plugin:Twin), two-plugin:twin (2.0, two_plugin:Twin)\n",
    )
    assert not twins.has_trained()


def test_qualified_names_and_other_plugins_train(twins):
    assert (twins.train("two-plugin:twin", "one-plugin:twin", "honest").code, twins.has_trained()) == (0, True)


def test_a_name_is_free_where_the_other_claim_is_disabled(twins):
    twins.environ["ENGINE_CORE_DISABLE_PLUGINS"] = "one-plugin"
    assert (twins.train("twin").code, twins.has_trained()) == (0, True)
    twins.environ.clear()


@pytest.fixture(scope="module")
def shadow(make_environment):
    shadow = Plugin("shadow-plugin", SHADOW, "6.6", {"callbacks": {"time_limit": "Limit"}})
    return make_environment([shadow, HONEST])


@pytest.mark.parametrize("command", ["list", "doctor"])
def test_a_plugin_that_shadows_a_built_in_is_listed_with_both(shadow, command):
    done = shadow.engine_core("plugins", command)
    imported = " # s no" if command == "doctor" else ""
    version = shadow.about(done, "time_limit")[0].split()[3]
    assert shadow.about(done, "time_limit") == [
        f"callbacks time_limit engine-core {version} available{imported}",
        f"callbacks time_limit shadow-plugin 6.6 ambiguous{imported}",
        (
            f"'time_limit' is claimed by engine-core {version} and shadow-plugin 6.6; the bare name means engine-core's"
            "; use 'shadow-plugin:time_limit' for this one"
        ),
    ]
    assert done.code == (1 if command == "doctor" else 0)


def test_the_bare_name_gives_the_built_in_and_the_qualified_one_the_other(shadow):
    done = shadow.train("honest", more="callbacks: [{name: time_limit, args: {limit: 1h}}]")
    assert (done.code, (shadow.work / "shadow").exists()) == (0, False)
    done = shadow.train("honest", more="callbacks: ['shadow-plugin:time_limit']")
    assert (done.code, (shadow.work / "shadow").exists()) == (0, True)
