"""The engine in a custom loop: the program that the docs show."""

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "own_loop.py"


def test_the_example_runs_and_its_algorithm_takes_part(capsys):
    """Without it the inputs are so large that training diverges at this learning rate."""
    runpy.run_path(str(EXAMPLE))
    assert capsys.readouterr().out == "loss 0.000000\n"
