import pytest
from hypothesis import given
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


def test_a_timestamp_starts_at_zero():
    assert Timestamp() == Timestamp(0, 0, 0, 0, 0, 0, 0, 0.0, 0.0)


def test_a_batch_counts_in_total_and_within_the_epoch():
    after = Timestamp(epoch=1, batch=5, sample=50, token=500, batch_in_epoch=2, sample_in_epoch=20).to_next_batch(
        samples=10, tokens=100, duration_s=0.5
    )
    assert after == Timestamp(1, 6, 60, 600, 3, 30, 100, 0.5, 0.5)


def test_an_epoch_counts_and_resets_the_inner_counters():
    assert Timestamp(1, 6, 60, 600, 3, 30, 300, 2.5, 0.5).to_next_epoch() == Timestamp(2, 6, 60, 600, 0, 0, 0, 2.5, 0.0)


@given(steps)
def test_totals_are_sums_over_all_epochs(steps):
    batches = [step for step in steps if step is not None]
    timestamp = walk(steps)
    assert timestamp[:4] == (len(steps) - len(batches), len(batches), *(sum(b[i] for b in batches) for i in (0, 1)))
    assert timestamp.elapsed_s == sum(b[2] for b in batches)


@given(steps)
def test_the_inner_counters_are_those_of_a_walk_since_the_last_epoch(steps):
    ends = [place for place, step in enumerate(steps) if step is None]
    since = walk(steps[ends[-1] + 1 :] if ends else steps)
    assert walk(steps)[4:7] == since[1:4]
    assert walk(steps).elapsed_s_in_epoch == since.elapsed_s


def test_counters_are_plain_numbers():
    assert [type(count) for count in walk([(8, 80, 0.5), None])] == [int] * 7 + [float] * 2


@pytest.mark.parametrize("unit", ["ep", "ba", "sp", "tok", "sec", TimeUnit.BATCH])
def test_get_gives_the_total_in_a_unit(unit):
    totals = {"ep": 1, "ba": 2, "sp": 3, "tok": 4, "sec": 8.0}
    assert Timestamp(1, 2, 3, 4, 5, 6, 7, 8.0, 9.0).get(unit) == Time(totals[str(unit)], unit)


def test_get_cannot_know_the_fraction_of_the_whole():
    with pytest.raises(ValueError, match="use State"):
        Timestamp().get("dur")


def test_a_timestamp_is_immutable():
    with pytest.raises(AttributeError):
        Timestamp().batch = 1
