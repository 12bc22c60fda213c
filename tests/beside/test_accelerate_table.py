"""Each of the 17 algorithms in a loop with Accelerate does what it does in our Trainer, or is refused by name."""

import pytest

from . import accelerate_runs
from .accelerate_runs import DIFFERS, SETTINGS, cell, train_words
from .cases import ALONE, CASES, check_page, weights_of_words

REFUSED = {"step": set(), "accumulation": {"sam", "gradient_penalty", "carried"}}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_cell_is_equal_or_says_why_not(setting, case):
    found = cell(setting, case)
    expected = "refused: " if case in REFUSED[setting] else "differs: " if (setting, case) in DIFFERS else "equal"
    assert found.startswith(expected), found


def test_these_are_the_17():
    assert len(ALONE) == 17


def test_a_reason_says_what_to_do():
    assert cell("accumulation", "sam") == (
        "refused: no closure: gradient_accumulation_steps makes a step of several batches; set it to 1"
    )


@pytest.mark.parametrize("steps", [1, 2, 4])  # 6 batches: the last of two steps of 4 has half
def test_places_count_alike_in_batches_of_which_few_count(steps):
    weights, clock, _ = weights_of_words(4 * steps)
    theirs, their_clock = train_words(steps)
    assert theirs == pytest.approx(weights, rel=1e-5, abs=1e-7)
    assert their_clock == clock


def test_the_page_shows_these_cells():
    check_page("accelerate", accelerate_runs)
