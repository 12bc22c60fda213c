"""What the adapters publish about their loops: found without importing the libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from engine_core.cli import main
from engine_core.needs import Offers
from engine_core.registry import Registry

LIBRARIES = ["accelerate", "lightning", "transformers"]
ASK = """
import sys
from engine_core.explain import explain_installed
for problem in explain_installed({names!r}, loop={library!r}).problems:
    print(problem)
print([name for name in ("accelerate", "lightning", "pytorch_lightning", "transformers") if name in sys.modules])
"""


def refused(library: str, *names: str) -> str:
    """Return what a fresh process prints about algorithms in a loop."""
    program = ASK.format(names=list(names), library=library)
    return subprocess.check_output([sys.executable, "-c", program], text=True)


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_adapter_is_listed_as_a_loop_and_not_as_an_algorithm(library: str) -> None:
    listed = [record for record in Registry.scan().records if record.distribution == f"engine-core-{library}"]
    assert [(record.kind, record.name) for record in listed] == [("loops", library)]
    assert isinstance(Registry.scan().load("loops", library), Offers)
    lines = CliRunner().invoke(main, ["plugins", "list"]).output.splitlines()
    assert [line.split()[:2] for line in lines if f"engine-core-{library}" in line] == [["loops", library]]


@pytest.mark.parametrize(
    ("library", "who"),
    [
        ("lightning", "LabelSmoothing (labels-plugin "),
        ("transformers", "LabelSmoothing (labels-plugin "),
        ("accelerate", ""),
    ],
)
def test_whom_a_trainer_refuses_is_explained_without_importing_it(library: str, who: str) -> None:
    *lines, imported = refused(library, "ema", "label_smoothing").splitlines()
    assert imported == "[]"
    assert [line.partition(who)[1] for line in lines] == [who] * bool(who)
    assert all(f"can't work in {library}: no " in line and ": " in line for line in lines)
