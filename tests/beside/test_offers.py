"""What the adapters publish about their loops: found without importing the libraries."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from engine_core.cli import main
from engine_core.needs import Offers
from engine_core.registry import Registry

LIBRARIES = ["accelerate", "lightning", "transformers"]
ASK = """
import json, sys
from engine_core.explain import explain_installed
problems = {name: explain_installed(["ema", "label_smoothing"], loop=name).problems for name in sys.argv[1:]}
print(json.dumps(problems))
print([name for name in (*sys.argv[1:], "pytorch_lightning") if name in sys.modules])
"""


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_adapter_is_listed_as_a_loop_and_not_as_an_algorithm(library):
    listed = [record for record in Registry.scan().records if record.distribution == f"engine-core-{library}"]
    assert [(record.kind, record.name) for record in listed] == [("loops", library)]
    assert isinstance(Registry.scan().load("loops", library), Offers)
    lines = CliRunner().invoke(main, ["plugins", "list"]).output.splitlines()
    assert [line.split()[:2] for line in lines if f"engine-core-{library}" in line] == [["loops", library]]


def test_whom_a_trainer_refuses_is_explained_without_importing_it():
    said = subprocess.check_output([sys.executable, "-c", ASK, *LIBRARIES], text=True)
    problems, imported = said.splitlines()
    assert imported == "[]"
    found = json.loads(problems)
    assert found.pop("accelerate") == []
    for library, (refused, *others) in found.items():
        assert refused.startswith("LabelSmoothing (labels-plugin "), library
        assert all(f"can't work in {library}: no " in each for each in (refused, *others))
