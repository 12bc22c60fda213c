"""Ratios of times, and what a result costs on a ladder of lengths."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core_study.costs import Ratio, Reached, cost_ratio, reach
from engine_core_study.design import Arm, Design, Setting, reported_jobs
from engine_core_study.record import Record, write_record
from engine_core_study.results import findings
from engine_core_study.running import Pool, Study

NAN = math.nan
SECONDS = st.floats(0.01, 1000)
LADDER = [(100, 0.80), (200, 0.90), (400, 0.94)]


def test_a_ratio_is_the_median_over_pairs_with_its_range():
    assert cost_ratio([(3, 2), (10, 2), (1, 1)]) == Ratio(1.5, 1.0, 5.0, 3)


def test_the_ratio_of_pairs_is_steadier_than_that_of_seconds_on_a_machine_that_slows_down():
    slowdown = [1, 1, 4, 9, 9]  # the baseline ran before it, its partner within it: sums would say 1.5 times
    assert cost_ratio([(1.2 * slow, slow) for slow in slowdown]) == Ratio(*[pytest.approx(1.2)] * 3, 5)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=9))
def test_to_exchange_arm_and_baseline_inverts_the_ratio(pairs):
    there, back = cost_ratio(pairs), cost_ratio([(b, a) for a, b in pairs])
    assert there[:3] == pytest.approx((1 / back.median, 1 / back.high, 1 / back.low))
    assert there.low <= there.median * (1 + 1e-12) and there.median <= there.high * (1 + 1e-12)


def test_pairs_without_two_times_are_left_out():
    pairs = [(None, 1.0), (1.0, None), (NAN, 1.0), (1.0, math.inf), (0.0, 1.0), (1.0, 0.0), (2.0, 1.0)]
    assert cost_ratio(pairs) == Ratio(2.0, 2.0, 2.0, 1)
    assert cost_ratio(pairs[:-1]) is None


def test_between_two_rungs_the_value_is_linear_in_the_logarithm_of_the_cost():
    assert reach(LADDER, 0.85, higher_is_better=True) == Reached(pytest.approx(100 * math.sqrt(2)), "")
    assert reach(LADDER, 0.93, higher_is_better=True) == Reached(pytest.approx(200 * 2**0.75), "")


def test_a_rung_that_just_reaches_the_target_gives_its_cost():
    assert reach(LADDER, 0.90, higher_is_better=True) == Reached(pytest.approx(200), "")


def test_the_ends_of_a_ladder_are_bounds():
    found = [reach(LADDER, target, higher_is_better=True) for target in (0.7, 0.80, 0.94, 0.95)]
    assert found == [Reached(100, "<"), Reached(100, "<"), Reached(pytest.approx(400), ""), Reached(400, ">")]


def test_where_lower_is_better_the_value_has_to_fall():
    ladder = [(cost, 1 - value) for cost, value in LADDER]
    found = [reach(ladder, target, higher_is_better=False) for target in (0.3, 0.15, 0.01)]
    assert found == [Reached(100, "<"), Reached(pytest.approx(100 * math.sqrt(2)), ""), Reached(400, ">")]


def test_the_first_reach_counts_on_a_ladder_that_falls_back():
    ladder = [(1, 0.5), (2, 0.7), (4, 0.6), (8, 0.9)]
    assert reach(ladder, 0.7, higher_is_better=True) == Reached(pytest.approx(2), "")
    assert reach(ladder, 0.75, higher_is_better=True) == Reached(pytest.approx(4 * math.sqrt(2)), "")


def test_rungs_may_come_in_any_order_and_failed_ones_are_skipped():
    ladder = [(400, 0.94), (300, NAN), (100, 0.80), (50, None), (200, 0.90)]
    assert reach(ladder, 0.93, higher_is_better=True) == reach(LADDER, 0.93, higher_is_better=True)
    assert reach([(300, NAN), (50, None)], 0.9, higher_is_better=True) is None


def test_one_rung_gives_a_bound():
    assert [reach([(10, 0.5)], t, higher_is_better=True) for t in (0.5, 0.6)] == [Reached(10, "<"), Reached(10, ">")]


@pytest.mark.parametrize("cost", [0, -1, NAN])
def test_a_cost_that_has_no_logarithm_is_refused(cost):
    with pytest.raises(ValueError, match=f"a rung costs {cost}: costs are positive"):
        reach([(1, 0.5), (cost, 0.6)], 0.55, higher_is_better=True)


@given(
    st.lists(st.tuples(SECONDS, st.floats(0, 1)), min_size=1, max_size=6, unique_by=lambda rung: rung[0]),
    st.floats(0, 1),
)
def test_a_harder_target_never_costs_less(ladder, target):
    easier, harder = (reach(ladder, goal, higher_is_better=True) for goal in (target, target + 0.1))
    assert harder.cost >= easier.cost * (1 - 1e-9)
    assert "< >".index(easier.bound or " ") <= "< >".index(harder.bound or " ")


def design_of(*names, budget_s=None):
    arms = tuple(Arm(name, (Setting("", {}),)) for name in names)
    return Design("run.yaml", arms, names[0], (0, 1, 2), ("loss",), budget_s=budget_s)


def record_of(job, **more):
    return Record(**{**vars(Record.of(job)), "status": "finished", "values": {"loss": 1.0}, **more})


@pytest.mark.parametrize(("pause_s", "adjacent"), [(5, True), (3600, False)])
def test_runs_are_side_by_side_if_the_second_begins_soon_after_the_first(pause_s, adjacent):
    design = design_of("plain", "later")
    jobs, records, now = reported_jobs(design, {"plain": 0, "later": 0}), {}, 1e9
    for job in jobs:
        records[job.folder] = record_of(job, began=now, wall_s=10, seconds=10 if job.arm == "plain" else 20)
        now += 10 + pause_s
    ratio = findings(design, jobs, records, None)["arms"][1]["cost"]["ratio"]
    assert (ratio["median"], ratio["adjacent"]) == (2.0, adjacent)


@pytest.mark.parametrize(("unit", "tokens", "cost"), [("row passes", 7, 10), ("tokens", 7, 7), ("tokens", 0, None)])
def test_a_study_counts_the_compute_that_it_names(unit, tokens, cost):
    design = replace(design_of("plain"), compute=unit, target={"loss": 0.5})
    jobs = reported_jobs(design, {"plain": 0})
    counted = {"forward_rows": 4, "backward_rows": 3, "tokens": tokens}
    found = findings(design, jobs, {job.folder: record_of(job, **counted) for job in jobs}, None)
    (arm,) = found["arms"]
    assert (found["units"]["compute"], arm["ladder"][0]["compute"]) == (unit, cost)
    assert arm["to_target"]["loss"].get("compute", {}).get("cost") == cost


class Instant(Pool):
    """Trains nothing: each run takes ten seconds."""

    def submit(self, job, folder):
        self.begun.append(job.name)
        return self._executor.submit(self._end, job, folder)

    def _end(self, job, folder):
        self.together.wait()  # as many as train at once end together
        failed = {"status": "failed", "values": {}} if job.arm == "broken" else {}
        write_record(record := record_of(job, wall_s=10, **failed), folder / job.folder)
        return record


@pytest.mark.parametrize(
    ("width", "other", "budget_s", "begun"),
    [(1, "broken", 25, 2), (1, "broken", 35, 3), (2, "good", 15, 2), (2, "good", 25, 4)],
)
def test_the_budget_counts_failed_runs_and_those_that_still_train(tmp_path, width, other, budget_s, begun):
    # Each takes ten seconds.
    with ThreadPoolExecutor(width) as executor:
        pool = Instant(executor, width)
        pool.begun, pool.together = [], threading.Barrier(width, timeout=5)
        study = Study(design_of("plain", other, budget_s=budget_s), tmp_path)
        study.run(pool)
    assert len(pool.begun) == begun
    assert len(study.left_out) == 6 - begun
