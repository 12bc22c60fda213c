"""What the clock counts: samples as loaded, seconds of training, the fraction of the whole."""

from collections.abc import Callable
from typing import Any

import pytest

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State, Time

from .parts import at, batches, trainer


class KeepOne(Algorithm):
    metadata = AlgorithmMetadata(events=(Event.AFTER_DATALOADER,))

    def match(self, event: Event, state: State) -> bool:
        return True

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        state.batch = tuple(item[:1] for item in state.batch)


def elapsed(state: State) -> float | None:
    done = state.get_elapsed_duration()
    return None if done is None else round(done.value, 4)


def test_samples_are_counted_as_loaded_before_any_pruning() -> None:
    made = trainer(batches(8, 5), algorithms=KeepOne())
    made.fit()
    assert made.state.timestamp.sample == 13


def test_the_batch_advances_before_batch_end_and_the_epoch_before_epoch_end() -> None:
    seen: list[tuple[str, int, int, int]] = []

    def note(event: str) -> Any:
        return at(event, lambda state: seen.append((event, *_position(state))))

    trainer(batches(8), callbacks=[note("after_train_batch"), note("batch_end"), note("epoch_end")]).fit()
    assert seen == [("after_train_batch", 0, 0, 0), ("batch_end", 0, 1, 1), ("epoch_end", 1, 1, 0)]


def _position(state: State) -> tuple[int, int, int]:
    return state.timestamp.epoch, state.timestamp.batch, state.timestamp.batch_in_epoch


@pytest.mark.parametrize(
    ("duration", "fractions"),
    [
        ("2ep", [0.0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75, 1.0]),
        ("4ba", [0.0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75, 1.0]),
        ("40sp", [0.0, 0.2, 0.2, 0.5, 0.5, 0.7, 0.7, 1.0]),
    ],
)
def test_the_fraction_of_the_whole_counts_the_batches_of_the_epoch(duration: str, fractions: list[float]) -> None:
    seen: list[float | None] = []
    notes = [at(event, lambda state: seen.append(elapsed(state))) for event in ("batch_start", "batch_end")]
    trainer(batches(8, 12), max_duration=duration, callbacks=notes).fit()
    assert seen == fractions


def test_the_fraction_is_the_same_while_evaluating_in_mid_epoch() -> None:
    seen: list[float | None] = []
    note = at("eval_batch_end", lambda state: seen.append(elapsed(state)))
    trainer(batches(8, 8, 8, 8), eval_interval="1ba", eval_dataloader=batches(3, 3, 3), callbacks=note).fit()
    assert seen == [0.25] * 3 + [0.5] * 3 + [0.75] * 3 + [1.0] * 3


def test_the_fraction_counts_whole_epochs_where_the_loader_has_no_length() -> None:
    class Unsized:
        def __iter__(self) -> Any:
            return iter(batches(8, 8))

    seen: list[float | None] = []
    trainer(Unsized(), max_duration="2ep", callbacks=at("batch_end", lambda state: seen.append(elapsed(state)))).fit()
    assert seen == [0.0, 0.0, 0.5, 0.5]


def test_seconds_leave_evaluation_out(wait: Callable[[float], None]) -> None:
    """In the loop's own evaluation, and in one that a callback asks for."""
    slow = [at("before_forward", lambda _: wait(1)), at("eval_batch_start", lambda _: wait(100))]
    made = trainer(batches(8, 8, 8), eval_interval="1ba", eval_dataloader=batches(3), callbacks=slow)
    made.state.callbacks.append(at("batch_start", lambda state: made.eval()))
    made.fit()
    assert made.state.timestamp.elapsed_s == 3


def test_seconds_count_training_and_loading_but_not_the_time_between_fits(wait: Callable[[float], None]) -> None:
    class Slow(list[Any]):
        def __iter__(self) -> Any:
            for batch in super().__iter__():
                wait(10)
                yield batch

    made = trainer(Slow(batches(8, 8)), max_duration="2ep", callbacks=at("before_forward", lambda _: wait(1)))
    made.fit("1ep")
    wait(100)
    made.fit("1ep")
    assert made.state.timestamp.elapsed_s == 4 * 11
    assert made.state.timestamp.elapsed_s_in_epoch == 0


def test_the_evaluations_clock_counts_its_own_batches() -> None:
    seen: list[tuple[int, int]] = []
    note = at("eval_batch_end", lambda state: seen.append((state.eval_timestamp.batch, state.eval_timestamp.sample)))
    made = trainer(eval_dataloader={"a": batches(3, 2), "b": batches(5)}, callbacks=note)
    made.eval()
    assert seen == [(1, 3), (2, 5), (1, 5)]
    assert made.state.timestamp.batch == 0


def test_without_a_horizon_there_is_no_fraction() -> None:
    assert trainer(max_duration=None).state.get_elapsed_duration() is None
    assert trainer(max_duration="2ep").state.get_elapsed_duration() == Time("0dur")
