"""The order of a study's runs, and their folders: laws."""

from hypothesis import given
from hypothesis import strategies as st

from engine_core_study.design import Arm, Design, Setting, reported_jobs, slugs_of, tuning_jobs

NAMES = st.lists(st.text("aA =/.-_1é", min_size=1, max_size=5), min_size=2, max_size=7, unique=True)


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
            assert len(row) - 2 * place in (1, 2)  # in the middle, so that two others run right beside it


@given(designs())
def test_no_arm_is_always_first_and_each_comes_to_run_beside_the_baseline(design):
    others = [arm.name for arm in design.arms if arm.name != design.baseline]
    length = design.lengths[0]
    rows = [[j.arm for j in reported(design) if (j.seed, j.length) == (seed, length)] for seed in design.seeds]
    orders = [tuple(arm for arm in row if arm != design.baseline) for row in rows]
    assert len(set(orders)) == min(len(design.seeds), len(others))
    if len(design.seeds) >= len(others):
        beside = {arm for row in rows for n, arm in enumerate(row) if abs(n - row.index(design.baseline)) == 1}
        assert beside == set(others)


@given(NAMES)
def test_folders_are_words_without_spaces_that_differ_even_where_case_does_not_count(names):
    slugs = slugs_of(names)
    assert len({slug.lower() for slug in slugs.values()}) == len(names)
    assert all(slug and slug not in (".", "..") and not set(slug) & set(" /\\=") for slug in slugs.values())
