"""What a notebook shows of a run's results: all of it is escaped, and `repr` stays as it is."""

import html
import re
from pathlib import Path

import pytest

from engine_core.messages import escaped
from engine_core.run import RunResults


def rows_of(shown):
    """Return the cells of each row, and each caption as a row."""
    rows = re.findall(r"<tr>.*?</tr>|<caption>.*?</caption>", shown)
    return [[html.unescape(cell) for cell in re.findall(r"<(?:td|th|caption)>(.*?)</", row)] for row in rows]


RESULTS = RunResults(
    Path("runs/first"),
    {"train/loss": 0.123456789, "eval/accuracy": 0.5, "eval/f1": float("nan"), "note": "mine"},
    *(75.25, 2, 1234, 5000, 66.44),
    algorithms={"Noise/AFTER_DATALOADER": 1234, "Idle": 0},
    best={"eval/accuracy": {"value": 0.75, "step": 617, "epoch": 1}, "eval/f1": None},
)


SHOWN = """
results
result, last, best, step, epoch
eval/accuracy, 0.5, 0.75, 617, 1
eval/f1, nan, , ,
note, mine, , ,
train/loss, 0.12346, , ,
algorithms
algorithm, event, times
Noise, AFTER_DATALOADER, 1'234
Idle, , 0
of the run,
epochs, 2
batches, 1'234
samples, 5'000
weights, trained
folder, runs/first
seconds, 75.2
samples per second, 66.4
"""


def test_results_are_tables_of_values_algorithms_and_the_run():
    rows = [", ".join(cell.replace(",", "'") for cell in row).strip() for row in rows_of(RESULTS._repr_html_())]
    assert rows == SHOWN.strip().splitlines()
    assert repr(RESULTS).startswith("RunResults(folder=PosixPath('runs/first'), metrics={'train/loss': 0.123456789,")


@pytest.mark.parametrize("text", ["<script>alert(1)<script>", '"><img src=x onerror=alert(1)>', "\u202e\x1b[31m\ud800"])
def test_a_hostile_name_is_text(text):
    results = RunResults(Path("run"), {text: text}, 1.0, 1, 1, 1, 1.0, {f"{text}/{text}": 1}, weights=text)
    shown = results._repr_html_()
    assert set(re.findall(r"</?(\w*)[^>]*>", shown)) == {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert shown.count(html.escape(escaped(text))) == 5
    assert all(character.isprintable() or character == "\n" for character in shown)
