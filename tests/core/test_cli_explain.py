"""`engine-core explain`: the order at each event, for a config or for installed algorithms."""

import json

import pytest
from click.testing import CliRunner

from engine_core.cli import main

PLUGINS = """
    from engine_core import Algorithm, AlgorithmMetadata

    class Late(Algorithm):
        metadata = AlgorithmMetadata(events=("before_loss",))

        def match(self, event, state):
            return False

        def apply(self, event, state, logger):
            pass

    class Early(Late):
        metadata = AlgorithmMetadata(events=("init", "before_loss"), before=("late",))

    class Picky(Late):
        def __init__(self, needed):
            pass
"""
CONFIG = """
model: {target: "not_there:Net"}
data: {target: "not_there:loader"}
optimizer: {target: "not_there:SGD"}
algorithms: [late, {target: "pace_plugin:Late"}]
"""


@pytest.fixture(autouse=True)
def pace(install, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names = {name: f"pace_plugin:{name.capitalize()}" for name in ("early", "late", "picky")}
    install("pace-plugin", {"algorithms": names}, {"pace_plugin": PLUGINS})


def run(*arguments):
    return CliRunner().invoke(main, ["explain", *arguments])


def test_algorithms_by_name():
    assert run("--algorithms", "late", "early").output == (
        "init\n"
        "  1. Early  the only one\n"
        "\n"
        "before_loss\n"
        "  1. Early  before Late: declared by Early (before='late')\n"
        "  2. Late   after Early: declared by Early (before='late')\n"
    )


def test_json_of_one_event():
    why = "declared by Early (before='late')"
    assert json.loads(run("--algorithms", "late", "early", "--event", "BEFORE_LOSS", "--json").output) == {
        "before_loss": [
            {"algorithm": "Early", "name": "early", "why": f"before Late: {why}"},
            {"algorithm": "Late", "name": "late", "why": f"after Early: {why}"},
        ]
    }


def test_a_config_needs_neither_model_nor_data(tmp_path):
    (tmp_path / "run.yaml").write_text(CONFIG)
    orders = json.loads(run("run.yaml", "--json").output)
    assert {event: [entry["algorithm"] for entry in order] for event, order in orders.items()} == {
        "before_loss": ["Late", "Late-2"]
    }


def test_the_configs_own_order_is_explained(tmp_path):
    (tmp_path / "run.yaml").write_text(CONFIG.replace("Late", "Early") + "order: {before_loss: [late, early]}")
    with pytest.warns(UserWarning, match="your pass wins"):
        result = run("run.yaml", "--event", "before_loss")
    assert result.output == (
        "before_loss\n"
        "  1. Late   before Early: pass 'explicit_order' of the user\n"
        "  2. Early  after Late: pass 'explicit_order' of the user\n"
    )


def test_an_event_without_algorithms():
    result = run("--algorithms", "late", "--event", "init")
    assert (result.exit_code, result.output) == (0, "no algorithm at init\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--algorithms", "lat"], "Error: lat: 'lat' is not among the installed algorithms; did you mean 'late'?"),
        (["--algorithms", "picky"], "Error: picky: args: Picky: missing a required argument: 'needed'"),
        (["--algorithms", "late", "--event", "init_"], "'init_' is not an event; did you mean 'init'?"),
        (["late", "early"], "Error: give one CONFIG, or --algorithms before names: --algorithms late early"),
        (["--algorithms", "run.yaml"], "Error: give either a CONFIG or --algorithms NAME..., not both"),
        (["no.yaml"], "Error: no.yaml: there is no such file"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(arguments, message):
    result = run(*arguments)
    assert (result.exit_code, "Traceback" in result.output) == (2, False)
    assert message in result.output
