import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core import Time, Timestamp, TimeUnit

steps = st.lists(
    st.one_of(
        st.none(),  # the epoch ends
        st.tuples(st.integers(0, 100), st.integers(0, 1000), st.integers(0, 64)),  # samples, tokens, seconds
    ),
    max_size=30,
)


def walk(steps):
    timestamp = Timestamp()
    for step in steps:
        timestamp = timestamp.to_next_epoch() if step is None else timestamp.to_next_batch(*step)
    return timestamp


def test_a_batch_counts_in_total_and_within_the_epoch():
    after = Timestamp(epoch=1, batch=5, sample=50, token=500, batch_in_epoch=2, sample_in_epoch=20).to_next_batch(
        samples=10, tokens=100, duration_s=0.5
    )
    assert after == Timestamp(1, 6, 60, 600, 3, 30, 100, 0.5, 0.5)


def test_an_epoch_counts_and_resets_the_inner_counters():
    assert Timestamp(1, 6, 60, 600, 3, 30, 300, 2.5, 0.5).to_next_epoch() == Timestamp(2, 6, 60, 600, 0, 0, 0, 2.5, 0.0)


@settings(max_examples=50)
@given(steps)
def test_totals_are_sums_over_all_epochs_and_inner_counters_those_since_the_last_one_ended(steps):
    batches = [step for step in steps if step is not None]
    timestamp = walk(steps)
    assert timestamp[:4] == (len(steps) - len(batches), len(batches), *(sum(b[i] for b in batches) for i in (0, 1)))
    assert timestamp.elapsed_s == sum(b[2] for b in batches)
    ends = [place for place, step in enumerate(steps) if step is None]
    since = walk(steps[ends[-1] + 1 :] if ends else steps)
    assert timestamp[4:7] == since[1:4]
    assert timestamp.elapsed_s_in_epoch == since.elapsed_s
    assert [type(count) for count in timestamp] == [int] * 7 + [float] * 2


def test_get_gives_the_total_in_a_unit_and_cannot_know_the_fraction_of_the_whole():
    timestamp = Timestamp(1, 2, 3, 4, 5, 6, 7, 8.0, 9.0)
    for unit, total in {"ep": 1, "ba": 2, "sp": 3, "tok": 4, "sec": 8.0, TimeUnit.BATCH: 2}.items():
        assert timestamp.get(unit) == Time(total, unit)
    with pytest.raises(ValueError, match="use State"):
        timestamp.get("dur")
    with pytest.raises(AttributeError):
        timestamp.batch = 1
