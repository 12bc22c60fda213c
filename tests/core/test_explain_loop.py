"""`engine-core explain --loop`: whom a training loop refuses, said beforehand."""

import json

import pytest

from engine_core.cli import main

from .parts import source_of

PLUGINS = (
    source_of("Calm", events=("before_loss",), writes=("batch",))
    + source_of("Needy", events=("init",), needs=("whole_weights",))
    + """
class Watch(Callback):
    needs = ("freezing",)

    def __init__(self):
        raise AssertionError("not made")

    def batch_end(self, state, logger): ...
"""
)
CONFIG = """
model: {target: "not_there:Net"}
data: {target: "not_there:loader"}
optimizer: {target: "not_there:SGD"}
algorithms: [needy, calm]
callbacks: [watch]
"""
REFUSED = """\
Error: this can't run in fsdp:
- Needy (needy-plugin 0.2) can't work in fsdp: no whole_weights: each process has a part of each weight, laid out \
contiguously; train with DDP instead, parallel='ddp', or leave it out
- Watch (needy-plugin 0.2) can't work in fsdp: no freezing: which parameters train is settled when they are sharded; \
train with DDP instead, parallel='ddp', or leave it out
"""


@pytest.fixture(autouse=True)
def needy(install, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(CONFIG)
    names = {name: f"needy_plugin:{name.capitalize()}" for name in ("calm", "needy")}
    points = {"algorithms": names, "callbacks": {"watch": "needy_plugin:Watch"}}
    install("needy-plugin", points, {"needy_plugin": PLUGINS}, version="0.2")


@pytest.fixture
def explain(capsys):
    def explain(*arguments):
        """Return exit code, stdout and stderr."""
        with pytest.raises(SystemExit) as end:
            main(["explain", *arguments])
        return end.value.code or 0, *capsys.readouterr()

    return explain


def test_refusals_are_problems_beside_the_order_and_callbacks_are_not_made(explain):
    code, out, err = explain("run.yaml", "--loop", "fsdp", "--json")
    assert (code, list(json.loads(out)), err) == (2, ["init", "before_loss"], REFUSED)
    assert explain("run.yaml")[0] == 0


def test_algorithms_are_refused_by_name_too(explain):
    assert explain("--algorithms", "needy", "--loop", "fsdp")[2] == "\n".join([*REFUSED.splitlines()[:2], ""])
    assert explain("--algorithms", "calm", "--loop", "fsdp")[0] == 0


def test_the_offers_of_another_distribution_count(install, explain):
    text = """
        from dataclasses import replace
        from engine_core.needs import EVERYTHING

        OFFERS = replace(EVERYTHING, loop="acme 3").without("before_loss", why="it is inside; take it out")
    """
    install("acme-loop", {"loops": {"acme": "acme_offers:OFFERS"}}, {"acme_offers": text})
    assert explain("run.yaml", "--loop", "acme")[2] == (
        "Error: this can't run in acme:\n"
        "- Calm (needy-plugin 0.2) can't work in acme 3: no before_loss: it is inside; take it out\n"
    )


def test_a_loop_that_is_not_installed_is_refused_with_the_nearest_name(explain):
    said = "Error: 'fsdb' is not among the installed loops; did you mean 'fsdp'?\n"
    for source in (["run.yaml"], ["--algorithms", "calm"]):
        assert explain(*source, "--loop", "fsdb") == (2, "", said)
