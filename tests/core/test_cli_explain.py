"""`engine-core explain`: the order at each event, for a config or for installed algorithms."""

import json
import sys
import xml.etree.ElementTree as ET

import pytest
from click.testing import CliRunner

from engine_core.cli import main
from engine_core.registry import Registry

from .parts import source_of

PLUGINS = (
    source_of("Late", events=("before_loss",))
    + source_of("Early", events=("init", "before_loss"), before=("late",))
    + source_of("Needy", events=("init",), needs=("whole_weights",))
    + """
class Picky(Late):
    def __init__(self, needed): ...

class Watch(Callback):
    needs = ("freezing",)

    def __init__(self):
        raise AssertionError("not made")

    def batch_end(self, state, logger): ...
"""
)
DECLARED = "declared by Early (pace-plugin 1.0, before='late')"
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
    algorithms = {name: f"pace_plugin:{name.capitalize()}" for name in ("early", "late", "needy", "picky")}
    points = {"algorithms": algorithms, "callbacks": {"watch": "pace_plugin:Watch"}}
    install("pace-plugin", points, {"pace_plugin": PLUGINS})


@pytest.fixture
def explain(capsys):
    """Return `explain(*arguments)`: exit code, stdout and stderr, which click's runner separates only if it is new."""

    def explain(*arguments):
        with pytest.raises(SystemExit) as end:
            main(["explain", *arguments])
        return end.value.code or 0, *capsys.readouterr()

    return explain


def run(*arguments):
    return CliRunner().invoke(main, ["explain", *arguments])


def test_algorithms_by_name():
    assert run("--algorithms", "late", "early").output == (
        "init: Early runs alone\n"
        "\n"
        "before_loss\n"
        f"  1. Early  before Late: {DECLARED}\n"
        f"  2. Late   after Early: {DECLARED}\n"
    )
    told = run("--algorithms", "early").output
    assert told.startswith("init: Early runs alone\nbefore_loss: Early runs alone\n\nskipped\n")
    assert run("--algorithms", "late", "--event", "init").output == "no algorithm at init\n"


def test_json_of_one_event():
    reason = {"kind": "declared", "by": "Early", "distribution": "pace-plugin"}
    origin = {"distribution": "pace-plugin", "version": "1.0", "reason": reason}
    assert json.loads(run("--algorithms", "late", "early", "--event", "BEFORE_LOSS", "--json").output) == {
        "before_loss": [
            {"algorithm": "Early", "name": "early", "why": f"before Late: {DECLARED}", **origin},
            {"algorithm": "Late", "name": "late", "why": f"after Early: {DECLARED}", **origin},
        ]
    }


def test_a_config_needs_neither_model_nor_data_and_is_explained_as_it_was_set(tmp_path):
    (tmp_path / "run.yaml").write_text(CONFIG)
    orders = json.loads(run("run.yaml", "--json").output)
    assert {event: [entry["algorithm"] for entry in order] for event, order in orders.items()} == {
        "before_loss": ["Late", "Late-2"]
    }
    told = run("run.yaml", "--set", "algorithms-=pace_plugin:Late", "--set", "algorithms+=early").output
    assert told.splitlines()[:2] == ["init: Early runs alone", ""]
    said = run("run.yaml", "--set", "algorithms-=later").output
    assert said == "Error: --set algorithms-=later: algorithms: there is no entry 'later'; did you mean 'late'?\n"


def test_the_configs_own_order_is_explained(tmp_path, explain):
    (tmp_path / "run.yaml").write_text(CONFIG.replace("Late", "Early") + "order: {before_loss: [late, early]}")
    code, out, err = explain("run.yaml", "--event", "before_loss")
    rows = ["  1. Late   before Early: your pass", "  2. Early  after Late: your pass"]
    assert (code, out.splitlines()) == (0, ["before_loss", *(f"{row} 'explicit_order'" for row in rows)])
    assert err == (
        "warning: your pass 'explicit_order' puts Late before Early at BEFORE_LOSS, but "
        "Early (pace-plugin 1.0, before='late') declares the opposite; your pass wins\n"
    )


def test_what_is_skipped_is_listed_below_the_order_alone_and_as_json():
    what, why = "Early (pace-plugin 1.0): before='late'", "no algorithm here has that name"
    paragraph = f"skipped\n  {what}: {why}\n"
    assert run("--algorithms", "early", "--event", "init").output == f"init: Early runs alone\n\n{paragraph}"
    assert run("--algorithms", "early", "--skipped").output == paragraph
    told = json.loads(run("--algorithms", "early", "--skipped", "--json").output)
    assert told["skipped"] == [{"what": what, "why": why, "events": ["init", "before_loss"]}]
    assert run("--algorithms", "late", "--skipped").output == "nothing is skipped\n"


def test_two_as_text_and_json():
    arguments = ["--algorithms", "late", "early", "--why", "late", "Early"]
    text = run(*arguments).output.splitlines()
    assert text[0] == f"before_loss: Early runs before Late, {DECLARED}"
    assert text[-1] == f"  declared: Early before Late: {DECLARED}"
    (told,) = json.loads(run(*arguments, "--json").output)
    by = f"pass 'apply_declared_order' of engine-core {Registry.scan().version_of('engine-core')}"
    assert told.pop("steps")[:3:2] == [
        {"by": "your list", "effect": "Late before Early", "order": ["Late", "Early"]},
        {"by": by, "effect": f"puts Early before Late: {DECLARED}", "order": ["Early", "Late"]},
    ]
    declared = [[f"Early before Late: {DECLARED}"]]
    both = {"event": "before_loss", "first": "Early", "second": "Late"}
    assert told == {**both, "why": DECLARED, "declared": declared}


def test_two_where_one_does_not_run():
    arguments = ["--algorithms", "late", "early", "--why", "late", "early", "--event", "init"]
    said = "Late does not run at init; Late lists before_loss"
    result = run(*arguments)
    assert (result.exit_code, result.output) == (0, f"{said}\n")
    assert json.loads(run(*arguments, "--json").output) == [{"event": "init", "why": said}]


def test_pictures_of_one_event():
    arguments = ["picture", "--algorithms", "late", "early", "--event", "before_loss"]
    assert CliRunner().invoke(main, arguments).output.splitlines() == [
        "flowchart TB",
        '  subgraph e1["before_loss"]',
        '    e1a1["1. Early<br/>pace-plugin 1.0"]',
        '    e1a2["2. Late<br/>pace-plugin 1.0"]',
        f'    e1a1 -->|"{DECLARED}"| e1a2',
        "  end",
    ]
    svg = CliRunner().invoke(main, [*arguments, "--svg"]).output
    assert ET.fromstring(svg)[0].text == "How the order at before_loss comes about"
    refused = CliRunner().invoke(main, ["picture", "--algorithms", "late", "--svg"])
    assert (refused.exit_code, "--svg shows one event; say which with --event EVENT" in refused.output) == (2, True)


def test_a_terminal_gets_tables(on_terminal):
    program = "from engine_core.cli import main; main(['explain', '--algorithms', 'late', 'early'])"
    shown = on_terminal(f"import sys; sys.path[:0] = {sys.path!r}; {program}")
    words = ("init: Early runs alone", "before_loss", "algorithm", "│ Early", "pace-plugin 1.0")
    assert [word for word in words if word not in shown] == []


def test_algorithms_that_exclude_each_other_are_explained_with_all_problems_and_exit_code_2(install, explain):
    text = source_of("Rival", events=("init",), conflicts=("late",), requires=("sleep",))
    install("rival-plugin", {"algorithms": {"rival": "rival_module:Rival"}}, {"rival_module": text}, version="0.2")
    code, out, err = explain("--algorithms", "rival", "late", "--json")
    assert (code, list(json.loads(out))) == (2, ["init", "before_loss"])
    head, conflict, requirement = err.splitlines()
    assert head == "Error: these algorithms can't run together:"
    assert conflict.startswith("- 'rival' (Rival of rival-plugin 0.2) can't run together with 'late' (Late of pace-")
    assert requirement.startswith("- 'rival' (Rival of rival-plugin 0.2) requires 'sleep', and no such algorithm is li")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--algorithms late early --why late erly", "Error: 'erly' is not one of the algorithms; did you"),
        ("--algorithms late --why late Late", "'late' and 'Late' are the same algorithm"),
        ("--algorithms late --why a b --skipped", "Error: give either --why A B or --skipped, not both"),
        (".", "Error: '.' holds no manifest.json: it is not a run's folder"),
        ("--algorithms lat", "Error: lat: 'lat' is not among the installed algorithms; did you mean 'late'?"),
        ("--algorithms picky", "Error: picky: args: Picky: missing a required argument: 'needed'"),
        ("--algorithms late --event init_", "'init_' is not an event; did you mean 'init'?"),
        ("late early", "Error: give one CONFIG, or --algorithms before names: --algorithms late early"),
        ("--algorithms run.yaml", "Error: give either a CONFIG or --algorithms NAME..., not both"),
        ("no.yaml", "Error: no.yaml: there is no such file"),
        ("--algorithms late --set algorithms+=early", "Error: --set changes a CONFIG; give one, or leave it out"),
        (". --set algorithms+=early", "Error: --set changes a CONFIG; give one, or leave it out"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(arguments, message):
    result = run(*arguments.split())
    assert (result.exit_code, "Traceback" in result.output) == (2, False)
    assert message in result.output


DDP = "train with DDP instead, parallel='ddp', or leave it out"


def test_what_a_loop_refuses_are_problems_beside_the_order_and_callbacks_are_not_made(tmp_path, explain):
    (tmp_path / "run.yaml").write_text(CONFIG.replace("[late", "[needy, late") + "callbacks: [watch]")
    code, out, err = explain("run.yaml", "--loop", "fsdp", "--json")
    head, needy, watch = err.splitlines()
    assert (code, list(json.loads(out)), head) == (2, ["init", "before_loss"], "Error: this can't run in fsdp:")
    assert needy.startswith("- Needy (pace-plugin 1.0) can't work in fsdp: no whole_weights: each process has a part ")
    assert watch.startswith("- Watch (pace-plugin 1.0) can't work in fsdp: no freezing: which parameters train is se")
    assert (needy.endswith(DDP), watch.endswith(DDP)) == (True, True)
    assert explain("run.yaml")[0] == 0
    assert explain("--algorithms", "needy", "--loop", "fsdp")[2].splitlines() == [head, needy]
    assert explain("--algorithms", "late", "--loop", "fsdp")[0] == 0
    said = "Error: 'fsdb' is not among the installed loops; did you mean 'fsdp'?\n"
    for source in (["run.yaml"], ["--algorithms", "late"]):
        assert explain(*source, "--loop", "fsdb") == (2, "", said)
