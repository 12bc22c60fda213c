"""Differences by seed, their correction for several arms, and what a number of seeds can find, against oracles."""

import doctest
import importlib
import itertools
import math
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import integrate, stats

from engine_core_study.differences import Difference, Summary, holm, paired, summary
from engine_core_study.power import power_of, smallest_effect

NAN, INF = math.nan, math.inf
BASELINE = {0: 0.90, 1: 0.91, 2: 0.92, 3: 0.90, 4: 0.93}
BETTER = {0: 0.92, 1: 0.93, 2: 0.95, 3: 0.93, 4: 0.95}


def compare(arm, baseline, *, higher_is_better=True):
    return paired(dict(enumerate(arm)), dict(enumerate(baseline)), higher_is_better=higher_is_better)


def with_p(p, mean=1.0):
    """Return a difference of five seeds with a p-value, whatever its spread."""
    verdict = "gains" if p <= 0.05 else "no difference seen"
    ends = {"low": 0.0, "high": 2.0, "could_miss": 1.0}
    return Difference(verdict, 5, (), (), mean, 1.0, higher_is_better=True, p=p, p_corrected=p, **ends)


def verdicts(differences):
    return {name: found.verdict for name, found in differences.items()}


# Values and seeds


def test_a_summary_leaves_out_and_counts_what_is_not_a_number():
    assert summary([2.0, None, 4.0, NAN, 9.0, -INF]) == Summary(3, 3, 5.0, pytest.approx(math.sqrt(13)))


def test_one_value_has_no_spread_and_none_has_no_mean():
    assert (summary([0.5]), summary([None])) == (Summary(1, 0, 0.5, None), Summary(0, 1, None, None))


def test_tiny_and_huge_values_keep_their_spread():
    spread = {scale: summary([scale, 2 * scale, 3 * scale]).sd for scale in (1e-250, 1e250)}
    assert spread == pytest.approx({1e-250: 1e-250, 1e250: 1e250})


@given(st.lists(st.tuples(*[st.floats(-100, 100)] * 2), min_size=3, max_size=12))
def test_interval_and_p_are_those_of_students_paired_t_test(pairs):
    arm, baseline = zip(*pairs, strict=True)
    found = compare(arm, baseline)
    assume(found.sd > 1e-3)  # where scipy doesn't warn of lost precision
    oracle = stats.ttest_rel(arm, baseline)
    ends = oracle.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((ends.low, ends.high), rel=1e-7, abs=1e-9)
    assert found.p == pytest.approx(oracle.pvalue, rel=1e-6)


@given(st.lists(st.tuples(*[st.floats(-100, 100)] * 2), min_size=1, max_size=8), st.booleans())
def test_exchanging_arm_and_baseline_turns_the_difference_and_the_verdict(pairs, higher_is_better):
    arm, baseline = zip(*pairs, strict=True)
    there = compare(arm, baseline, higher_is_better=higher_is_better)
    back = compare(baseline, arm, higher_is_better=higher_is_better)
    turned = {"gains": "loses", "loses": "gains"}
    assert there.verdict == turned.get(back.verdict, back.verdict)
    assert (there.mean, there.sd, there.p) == (-back.mean, back.sd, back.p)
    assert (there.low, there.high) == ((None, None) if back.low is None else (-back.high, -back.low))


def test_values_meet_by_seed_and_not_by_their_order():
    found = paired(dict(reversed(BETTER.items())), BASELINE, higher_is_better=True)
    assert found == paired(BETTER, BASELINE, higher_is_better=True)
    assert (found.verdict, found.n, round(found.mean, 3)) == ("gains", 5, 0.024)


def test_of_a_value_where_lower_is_better_the_arm_that_lowers_it_gains():
    lower = paired(BASELINE, BETTER, higher_is_better=False)
    assert (lower.verdict, round(lower.mean, 3)) == ("gains", -0.024)
    assert paired(BETTER, BASELINE, higher_is_better=False).verdict == "loses"


def test_seeds_that_failed_or_gave_nan_are_left_out_and_named():
    arm = {9: 0.9, 7: None, **BETTER, 5: 0.9, 6: NAN}
    baseline = {**BASELINE, 5: INF, 6: 0.9, 7: None, 8: 0.9}
    found = paired(arm, baseline, higher_is_better=True)
    assert (found.n, found.without_arm, found.without_baseline) == (5, (6, 7, 8), (5, 7, 9))
    kept = paired(BETTER, BASELINE, higher_is_better=True)
    assert replace(found, without_arm=(), without_baseline=()) == kept


@pytest.mark.parametrize(("n", "mean", "sd"), [(0, None, None), (1, 0.9, None), (2, 0.95, math.sqrt(0.005))])
def test_fewer_than_three_seeds_give_no_interval_and_no_verdict(n, mean, sd):
    found = compare([1.0, 1.2][:n], [0.1, 0.2][:n])
    assert (found.verdict, found.n, found.low, found.high, found.p) == ("too few seeds", n, None, None, None)
    assert (found.mean, found.sd) == pytest.approx((mean, sd))


# Ties and constants


def test_ties_of_single_seeds_count_as_differences_of_zero():
    found = compare([0.5, 0.5, 0.7, 0.5], [0.5, 0.5, 0.5, 0.5])
    oracle = stats.ttest_1samp([0, 0, 0.2, 0], 0)
    assert (found.verdict, found.n, found.mean) == ("no difference seen", 4, pytest.approx(0.05))
    assert found.p == pytest.approx(oracle.pvalue)


def test_an_arm_with_the_baselines_values_does_not_differ_and_could_miss_nothing():
    found = compare([0.5, 0.6, 0.7], [0.5, 0.6, 0.7])
    assert found == Difference("no difference seen", 3, (), (), 0.0, 0.0, higher_is_better=True, p=1.0, p_corrected=1.0)


def test_constant_values_of_both_that_are_equal_do_not_differ():
    assert compare([0.5] * 5, [0.5] * 5).verdict == "no difference seen"


@pytest.mark.parametrize("baseline", [[0.5] * 5, [0.5, 0.51, 0.52, 0.5, 0.49]])
def test_equal_differences_show_no_spread_so_there_is_no_verdict(baseline):
    found = compare([value + 0.25 for value in baseline], baseline)
    assert (found.verdict, found.mean, found.sd) == ("no spread", pytest.approx(0.25), 0.0)
    assert (found.low, found.high, found.p, found.could_miss) == (None,) * 4


def test_what_float32_rounds_is_no_spread():
    # of both scipy says p < 0.001: of the first, as 0.33 - 0.28 and 1.43 - 1.38 are not quite equal in binary
    assert compare([0.33, 0.39, 1.43], [0.28, 0.34, 1.38]).verdict == "no spread"
    assert compare([0.5 + 2.0e-8, 0.6 + 2.1e-8, 0.7 + 2.0e-8], [0.5, 0.6, 0.7]).verdict == "no difference seen"
    assert compare([0.75 + 1e-6, 0.85, 0.95 - 1e-6], [0.5, 0.6, 0.7]).verdict == "gains"


def test_one_constant_side_is_an_ordinary_comparison():
    found = compare([0.7] * 4, [0.5, 0.52, 0.48, 0.51])
    assert (found.verdict, found.p) == ("gains", pytest.approx(stats.ttest_1samp([0.2, 0.18, 0.22, 0.19], 0).pvalue))


# Several arms


def closed(p, level=0.05):
    """Return the arms that differ and their corrected p: an arm has to pass Bonferroni's test in every set with it."""
    sets = [names for size in range(1, len(p) + 1) for names in itertools.combinations(p, size)]
    worst = {arm: max(min(1.0, len(s) * min(p[name] for name in s)) for s in sets if arm in s) for arm in p}
    return {arm for arm, corrected in worst.items() if corrected <= level}, worst


@given(st.lists(st.floats(1e-4, 0.12), min_size=1, max_size=6))
def test_the_correction_is_holms(values):
    p = {f"arm {i}": value for i, value in enumerate(values)}
    assume(all(abs(value * size - 0.05) > 1e-9 for value in values for size in range(1, 7)))
    corrected = holm({name: with_p(value) for name, value in p.items()})
    differing, p_corrected = closed(p)
    assert {name for name, found in corrected.items() if found.verdict == "gains"} == differing
    assert {name: found.p_corrected for name, found in corrected.items()} == pytest.approx(p_corrected)
    assert {(found.p, found.arms) for found in corrected.values()} == {(value, len(p)) for value in values}


def test_the_known_example_of_three_arms():
    corrected = holm({"a": with_p(0.04), "b": with_p(0.01), "c": with_p(0.03, mean=-1.0)})
    assert [found.p_corrected for found in corrected.values()] == pytest.approx([0.06, 0.03, 0.06])
    assert verdicts(corrected) == {"a": "no difference seen", "b": "gains", "c": "no difference seen"}


@given(st.floats(1e-4, 0.2), st.lists(st.floats(1e-4, 0.12), max_size=4))
def test_what_could_be_missed_is_for_the_level_that_the_arm_has_to_pass_beside_the_others(own, others):
    family = {f"arm {i}": p for i, p in enumerate(others)}
    passing = [
        0.05 / size for size in range(1, len(others) + 2) if "own" in closed({**family, "own": 0.05 / size - 1e-12})[0]
    ]
    found = holm({name: with_p(p) for name, p in {**family, "own": own}.items()})["own"]
    assert found.could_miss == pytest.approx(smallest_effect(5, max(passing)))


def test_an_interval_stays_when_its_verdict_goes():
    alone = paired(BETTER, BASELINE, higher_is_better=True)
    weak = compare([0.5, 0.6, 0.9, 0.8, 0.7], [0.4, 0.1, 0.5, 0.7, 0.3])
    assert (weak.verdict, 0.01 < weak.p < 0.05, weak.low > 0) == ("gains", True, True)
    corrected = holm({"weak": weak, "none": with_p(0.5), "other": with_p(0.6), "better": alone})
    assert verdicts(corrected) == {
        "weak": "no difference seen",
        "none": "no difference seen",
        "other": "no difference seen",
        "better": "gains",
    }
    assert (corrected["weak"].low, corrected["weak"].high) == (weak.low, weak.high)
    assert corrected["weak"].could_miss > weak.could_miss


def test_arms_without_a_test_stay_as_they_are_and_do_not_count():
    few, constant = compare([1.0], [0.5]), compare([0.75] * 5, [0.5] * 5)
    corrected = holm({"few": few, "constant": constant, "a": with_p(0.02), "b": with_p(0.04)})
    assert (corrected["few"], corrected["constant"]) == (few, constant)
    assert [corrected[name].arms for name in "ab"] == [2, 2]
    assert verdicts(corrected) == {"few": "too few seeds", "constant": "no spread", "a": "gains", "b": "gains"}


def test_an_arm_with_the_baselines_values_counts_as_an_arm():
    same = compare([0.5, 0.6, 0.7], [0.5, 0.6, 0.7])
    found = holm({"a": with_p(0.03), "same": same})
    assert verdicts(found) == {"a": "no difference seen", "same": "no difference seen"}
    assert found["same"] == replace(same, arms=2)


def test_one_arm_needs_no_correction_and_no_arm_is_no_error():
    alone = paired(BETTER, BASELINE, higher_is_better=True)
    assert (holm({"a": alone}), holm({})) == ({"a": alone}, {})


def test_to_correct_twice_changes_nothing():
    once = holm({"a": with_p(0.02), "b": with_p(0.03), "c": paired(BETTER, BASELINE, higher_is_better=True)})
    assert holm(once) == once


# What a number of seeds can find


def power_by_quadrature(n, effect, level):
    """Integrate over the spread that the seeds happen to show, as a share of the true one."""
    quantile, df = stats.t.ppf(1 - level / 2, n - 1), n - 1
    density = stats.chi(df, scale=1 / math.sqrt(df)).pdf
    found, _ = integrate.quad(
        lambda s: density(s) * stats.norm.sf(quantile * s - effect * math.sqrt(n)), 0, 8, limit=200
    )
    return found


@pytest.mark.parametrize("level", [0.05, 0.05 / 3, 0.001])
@pytest.mark.parametrize(("n", "effect"), [(3, 2.0), (5, 1.7), (8, 0.5), (8, 1.41), (30, 0.5), (200, 0.2)])
def test_power_is_the_integral_over_the_spreads_that_the_seeds_may_show(n, effect, level):
    assert power_of(n, effect, level) == pytest.approx(power_by_quadrature(n, effect, level), abs=1e-7)


@pytest.mark.parametrize("level", [0.05, 0.05 / 40])
@pytest.mark.parametrize("n", [3, 5, 8, 100])
def test_the_smallest_effect_is_found_in_four_of_five_studies(n, level):
    assert power_of(n, smallest_effect(n, level), level) == pytest.approx(0.8, abs=1e-6)


def test_what_could_be_missed_is_in_the_unit_of_the_values():
    found = compare([1.0, -1.0, 2.0, -2.0, 0.5], [0.0] * 5)
    assert (found.verdict, found.could_miss) == ("no difference seen", pytest.approx(found.sd * smallest_effect(5)))


def test_the_statistics_are_imported_without_scipy():
    code = (
        "import engine_core_study.wording, engine_core_study.costs, sys; assert not {'scipy', 'numpy'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("module", ["costs", "differences", "power", "wording"])
def test_the_examples_in_the_docstrings_run(module):
    assert doctest.testmod(importlib.import_module(f"engine_core_study.{module}")).failed == 0
