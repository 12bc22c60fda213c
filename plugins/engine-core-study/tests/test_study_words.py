"""What a comparison says in words."""

import math

import pytest

from engine_core_study.differences import holm, paired
from engine_core_study.wording import rounded, words


def compare(differences, *, baseline=0.0, higher_is_better=True):
    arm = {seed: None if value is None else baseline + value for seed, value in enumerate(differences)}
    return paired(arm, dict.fromkeys(arm, baseline), higher_is_better=higher_is_better)


GAIN = [0.2, 0.4, 0.6, 0.3, 0.6]
NOISE = [0.2, -0.4, 0.1, 0.3, -0.1]


def test_a_gain_with_its_interval():
    assert words(compare(GAIN)) == "gains 0.42 (0.20 to 0.64)"


def test_a_loss_with_its_interval():
    assert words(compare([-value for value in GAIN])) == "loses 0.42 (0.20 to 0.64)"


def test_where_lower_is_better_a_fall_gains():
    assert words(compare([-value for value in GAIN], higher_is_better=False)) == "gains 0.42 (0.20 to 0.64)"
    assert words(compare(GAIN, higher_is_better=False)) == "loses 0.42 (0.20 to 0.64)"


def test_no_difference_names_the_seeds_and_what_could_have_been_missed():
    assert words(compare(NOISE)) == "no difference seen: with 5 seeds, 0.47 could have been missed"
    smaller = [value * 0.6431 for value in NOISE]
    assert words(compare(smaller)) == "no difference seen: with 5 seeds, 0.3 could have been missed"


def test_one_seed_shows_nothing_and_two_likewise():
    assert [words(compare(GAIN[:n])) for n in (1, 2)] == ["one seed shows nothing", "two seeds show nothing"]


def test_seeds_that_are_left_out_are_counted():
    assert words(compare([*GAIN, None, math.nan])) == "gains 0.42 (0.20 to 0.64); 2 of 7 seeds left out"
    assert words(compare([0.2, None, None])) == "one seed shows nothing; 2 of 3 seeds left out"
    assert words(compare([None, None])) == "no seed has a value of both; 2 of 2 seeds left out"


def test_the_baselines_own_values_are_told_from_noise():
    assert words(compare([0.0] * 5)) == "no difference seen: the baseline's value at each of 5 seeds"


def test_equal_differences_say_why_there_is_no_interval():
    why = "at each of 5 seeds: without spread there is no interval"
    assert words(compare([0.25] * 5)) == f"better by 0.25 {why}"
    assert words(compare([1500.0] * 5, higher_is_better=False)) == f"worse by 1500 {why}"


def test_a_gain_that_the_correction_takes_away_says_so():
    weak = compare([0.1, 0.5, 0.4, 0.1, 0.4])
    assert words(weak) == "gains 0.30 (0.07 to 0.53)"
    arms = {"weak": weak, "worse": compare([-0.1, -0.5, -0.4, -0.1, -0.4]), "none": compare(NOISE)}
    said = {name: words(found) for name, found in holm(arms).items()}
    assert said["weak"] == ("no difference seen: gains 0.30 (0.07 to 0.53) alone, but not after correction for 3 arms")
    assert said["worse"] == ("no difference seen: loses 0.30 (0.07 to 0.53) alone, but not after correction for 3 arms")
    assert said["none"] == "no difference seen: with 5 seeds, 0.64 could have been missed"


@pytest.mark.parametrize(
    ("scale", "said"),
    [
        (1e-5, "gains 0.0000042 (0.0000020 to 0.0000064)"),
        (0.01, "gains 0.0042 (0.0020 to 0.0064)"),
        (100, "gains 42 (20 to 64)"),
        (12345, "gains 5200 (2400 to 7900)"),
    ],
)
def test_digits_follow_the_width_of_the_interval(scale, said):
    assert words(compare([value * scale for value in GAIN])) == said


def test_an_end_that_is_not_zero_is_not_shown_as_zero():
    nearly = compare([value - 0.1972 for value in GAIN])
    assert 0 < nearly.low < 0.005
    assert words(nearly) == "gains 0.22 (0.0007 to 0.44)"


@pytest.mark.parametrize(
    ("value", "width", "shown"),
    [
        (0.12345, 0.05, "0.123"),
        (0.12345, 0.0995, "0.123"),
        (99.96, 1.5, "100.0"),
        (-0.0, 0.5, "0.00"),
        (12.0, 0.0, "12"),
        (-3.456, 0, "-3.46"),
        (1e20, 1e18, "100000000000000000000"),
        (0.0, 0.0, "0"),
    ],
)
def test_a_number_has_two_digits_of_the_width(value, width, shown):
    assert rounded(value, width) == shown
