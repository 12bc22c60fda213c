"""Which steps are due, and how that is saved."""

import pytest

from engine_core import State, Timestamp
from engine_core.errors import ArgumentError
from insight_plugin.pace import Pace


def due(pace: Pace, *batches: int) -> list[int]:
    return [batch for batch in batches if pace.is_due(Timestamp(batch=batch))]


def begun(interval: str, state: State | None = None) -> Pace:
    pace = Pace(interval)
    pace.begin(state or State())
    return pace


def test_a_run_that_is_resumed_goes_on_in_its_interval() -> None:
    whole = due(begun("3ba"), *range(12))
    for cut in range(12):
        first, second = begun("3ba"), begun("3ba")
        seen = due(first, *range(cut))
        second.load_state_dict(first.state_dict())
        assert seen + due(second, *range(cut, 12)) == whole == [0, 3, 6, 9]


def test_of_an_interval_that_a_step_jumps_over_the_next_step_is_due() -> None:
    pace = begun("10sp")
    assert [sample for sample in (0, 8, 16, 24, 45, 48) if pace.is_due(Timestamp(sample=sample))] == [0, 16, 24, 45]


def test_another_fit_may_be_longer_and_a_new_run_begins_anew() -> None:
    pace = begun("0.5dur", State(max_duration="4ba"))
    assert due(pace, 0, 1, 2) == [0, 2]
    pace.locate(State(max_duration="8ba"))
    assert due(pace, 3, 4, 5) == [3, 4]
    pace.begin(State(max_duration="8ba"))
    assert due(pace, 5) == [5]


def test_a_fraction_of_a_training_without_an_end_is_refused() -> None:
    with pytest.raises(ArgumentError, match="interval: max_duration is not known"):
        begun("0.1dur")


@pytest.mark.parametrize("saved", [{"begun": -1}, {"begun": "x"}, {"begun": 0.5}])
def test_what_it_never_saved_is_refused(saved: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError), match="begun="):
        begun("1ba").load_state_dict(saved)
