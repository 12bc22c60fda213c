"""The order of a study's runs, and their folders: laws."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.errors import ArgumentError
from engine_core_study.design import LONGEST_SLUG, Arm, Design, Setting, reported_jobs, slug_of, tuning_jobs

NAMES = st.lists(
    st.text("aA =/.-_1é", min_size=1, max_size=5), min_size=2, max_size=7, unique_by=lambda name: slug_of(name).lower()
)


@st.composite
def designs(draw):
    names = draw(NAMES)
    arms = tuple(
        Arm(name, tuple(Setting(str(n), {"number": n}) for n in range(draw(st.integers(1, 3))))) for name in names
    )
    seeds = tuple(draw(st.lists(st.integers(0, 99), min_size=1, max_size=9, unique=True)))
    lengths = draw(st.sampled_from([(None,), ("1ep",), ("1ep", "2ep", "4ep")]))
    return Design("run.yaml", arms, draw(st.sampled_from(names)), seeds, ("eval/loss",), lengths)


def reported(design):
    return reported_jobs(design, {arm.name: len(arm.settings) - 1 for arm in design.arms})


@given(designs())
def test_each_arm_trains_once_with_each_seed_and_length_in_a_folder_of_its_own(design):
    jobs, tuning = reported(design), tuning_jobs(design)
    wanted = {(arm.name, seed, length) for arm in design.arms for seed in design.seeds for length in design.lengths}
    assert {(job.arm, job.seed, job.length) for job in jobs} == wanted
    assert len(jobs) == len(wanted)
    assert len({job.folder.lower() for job in [*jobs, *tuning]}) == len(jobs) + len(tuning)
    several = [arm for arm in design.arms if len(arm.settings) > 1]
    assert {(job.arm, job.setting) for job in tuning} == {(a.name, n) for a in several for n in range(len(a.settings))}


@given(designs())
def test_all_runs_of_a_seed_come_before_the_next_and_the_baseline_runs_beside_others(design):
    jobs = reported(design)
    assert [seed for n, seed in enumerate(job.seed for job in jobs) if not n or jobs[n - 1].seed != seed] == [
        *design.seeds
    ]
    for seed in design.seeds:
        for length in design.lengths:
            row = [job.arm for job in jobs if (job.seed, job.length) == (seed, length)]
            place = row.index(design.baseline)
            assert len(row) - 2 * place in (0, 1, 2)  # in the middle, so that others run right beside it


@given(designs())
def test_no_arm_is_always_first_and_each_comes_to_run_beside_the_baseline(design):
    others = [arm.name for arm in design.arms if arm.name != design.baseline]
    length = design.lengths[0]
    rows = [[j.arm for j in reported(design) if (j.seed, j.length) == (seed, length)] for seed in design.seeds]
    orders = [tuple(arm for arm in row if arm != design.baseline) for row in rows]
    assert len(set(orders)) == min(len(design.seeds), len(others))
    if len(design.seeds) > 1:
        assert len({row[0] for row in rows}) > 1  # the first of a machine that warms up
    if len(design.seeds) >= len(others):
        beside = {arm for row in rows for n, arm in enumerate(row) if abs(n - row.index(design.baseline)) == 1}
        assert beside == set(others)


@given(designs())
def test_other_arms_and_another_order_leave_each_run_its_folder(design):
    folders = {(job.arm, job.seed, job.length): job.folder for job in reported(design)}
    fewer = replace(design, arms=design.arms[:0:-1], baseline=design.arms[-1].name)
    assert {(job.arm, job.seed, job.length): job.folder for job in reported(fewer)}.items() <= folders.items()


@given(st.text("aA =/.-_1é", min_size=1, max_size=200))
def test_a_folder_is_a_word_without_spaces_as_long_as_a_file_system_takes(name):
    slug = slug_of(name)
    assert slug and slug not in (".", "..") and not set(slug) & set(" /\\=") and len(slug) <= LONGEST_SLUG


@given(st.text("a=", min_size=60, max_size=80), st.text("bc", min_size=1), st.text("bc", min_size=1))
def test_long_names_that_begin_alike_have_folders_of_their_own(start, one, other):
    assert (slug_of(start + one) == slug_of(start + other)) == (one == other)


@pytest.mark.parametrize(("one", "other"), [("no noise", "no/noise"), ("Mixup", "mixup"), ("-", "/")])
def test_arms_that_would_share_a_folder_are_refused(one, other):
    with pytest.raises(ArgumentError, match=f"'{one}' and '{other}' would share the folder"):
        Design("run.yaml", (Arm(one, (Setting("", {}),)), Arm(other, (Setting("", {}),))), one, (0,), ("eval/loss",))
