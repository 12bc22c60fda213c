"""How long `fit` trains, and where the next one continues."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from engine_core import Time, Timestamp, Trainer
from engine_core.errors import ArgumentError, DurationWarning

from .parts import at, batches, net, same, trainer, writing_down

EPOCH_AND_BATCH = ("epoch_start", "batch_end", "epoch_end", "fit_end")


class Unsized:
    """A loader that does not say how long it is."""

    def __init__(self, *sizes: int) -> None:
        self.data = batches(*sizes)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)


def position(made: Trainer) -> tuple[int, int, int, int]:
    """Return epoch, batch, sample, and batch in the epoch."""
    now = made.state.timestamp
    return now.epoch, now.batch, now.sample, now.batch_in_epoch


@pytest.mark.parametrize(
    ("duration", "end"),
    [
        ("2ep", (2, 6, 40, 0)),
        ("1ba", (0, 1, 8, 1)),
        ("4ba", (1, 4, 28, 1)),
        ("6ba", (2, 6, 40, 0)),
        ("9sp", (0, 2, 16, 2)),
        ("16sp", (0, 2, 16, 2)),
        ("17sp", (1, 3, 20, 0)),
    ],
)
def test_fit_ends_with_the_batch_that_reaches_max_duration(duration: str, end: tuple[int, int, int, int]) -> None:
    made = trainer(batches(8, 8, 4), max_duration=duration)
    made.fit()
    assert position(made) == end


def test_fit_ends_with_the_first_batch_after_so_many_seconds(wait: Callable[[float], None]) -> None:
    seen: list[float] = []
    made = trainer(
        batches(2, 2) * 50,
        max_duration="4.5sec",
        callbacks=[
            at("before_forward", lambda state: wait(1)),
            at("batch_end", lambda state: seen.append(state.timestamp.elapsed_s)),
        ],
    )
    made.fit()
    assert seen == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("duration", ["1h30m", "90m", "5400sec", Time(5400, "sec")])
def test_hours_and_minutes_are_seconds(duration: str | Time) -> None:
    assert trainer(max_duration=duration).state.max_duration == Time("5400sec")


def test_fits_in_pieces_are_one_fit_bit_for_bit() -> None:
    whole, pieces = net(dropout=0.3), net(dropout=0.3)
    trainer(batches(8, 8, 4), whole, max_duration="3ep", seed=3).fit()
    made = trainer(batches(8, 8, 4), pieces, max_duration="3ep", seed=3)
    for duration in ("1ba", "1ep", "5sp", None):
        made.fit(duration)
    assert position(made) == (3, 9, 60, 0)
    assert same(whole.state_dict(), pieces.state_dict())


def test_fit_in_mid_epoch_continues_with_the_next_unseen_batch_and_no_second_epoch_start() -> None:
    events: list[str] = []
    sizes: list[int] = []
    made = trainer(
        batches(8, 7, 6),
        max_duration="2ep",
        callbacks=[
            writing_down(events, EPOCH_AND_BATCH),
            at("after_dataloader", lambda state: sizes.append(len(state.batch[0]))),
        ],
    )
    made.fit("1ba")
    made.fit("1ba")
    made.fit("1ep")
    assert sizes == [8, 7, 6]
    first, second, third = ["epoch_start", "batch_end"], ["batch_end"], ["batch_end", "epoch_end"]
    assert events == [*first, "fit_end", *second, "fit_end", *third, "fit_end"]
    made.fit()
    assert position(made) == (2, 6, 42, 0)


def test_the_last_batch_of_a_sized_loader_ends_the_epoch_where_batches_end_the_fit() -> None:
    events: list[str] = []
    trainer(batches(8, 8), max_duration="2ba", callbacks=writing_down(events, EPOCH_AND_BATCH)).fit()
    assert events == ["epoch_start", "batch_end", "batch_end", "epoch_end", "fit_end"]


def test_an_unsized_loader_ends_its_epoch_with_the_next_fit() -> None:
    events: list[str] = []
    made = trainer(Unsized(8, 8), max_duration="4ba", callbacks=writing_down(events, EPOCH_AND_BATCH))
    made.fit("2ba")
    assert events == ["epoch_start", "batch_end", "batch_end", "fit_end"]
    assert position(made) == (0, 2, 16, 2)
    made.fit("1ba")
    assert events[4:] == ["epoch_end", "epoch_start", "batch_end", "fit_end"]
    assert position(made) == (1, 3, 24, 1)


def test_an_exhausted_loader_fires_before_dataloader_but_not_after_dataloader() -> None:
    events: list[str] = []
    trainer(batches(8), callbacks=writing_down(events, ("before_dataloader", "after_dataloader", "epoch_end"))).fit()
    assert events == ["before_dataloader", "after_dataloader", "before_dataloader", "epoch_end"]


def test_fit_at_the_horizon_warns_and_returns() -> None:
    events: list[str] = []
    made = trainer(max_duration="1ep", callbacks=writing_down(events, ("fit_start",)))
    made.fit()
    with pytest.warns(DurationWarning) as caught:
        made.fit()
    assert [str(w.message) for w in caught] == [
        "fit() has nothing to do: training has reached its max_duration of 1ep; fit('1ep') continues it"
    ]
    assert caught[0].filename == __file__
    assert events == ["fit_start"]
    assert position(made) == (1, 2, 16, 0)


def test_fit_beyond_the_horizon_warns_and_moves_it() -> None:
    made = trainer(max_duration="2ep")
    made.fit("1ep")
    with pytest.warns(DurationWarning) as caught:
        made.fit("3ep")
    assert str(caught[0].message) == (
        "fit('3ep') goes past the max_duration of 2ep, so what algorithms schedule now ends at 4ep"
    )
    assert caught[0].filename == __file__
    assert made.state.max_duration == Time("4ep")
    assert made.state.get_elapsed_duration() == Time("1dur")


def test_fit_at_the_horizon_in_another_unit_moves_it_too() -> None:
    made = trainer(max_duration="1ep")
    made.fit()
    with pytest.warns(
        DurationWarning, match="past the max_duration of 1ep, so what algorithms schedule now ends at 5ba"
    ):
        made.fit("3ba")
    assert (made.state.max_duration, position(made)) == (Time("5ba"), (2, 5, 40, 1))


def test_fit_within_the_horizon_leaves_it() -> None:
    made = trainer(max_duration="4ep")
    made.fit("2ep")
    assert made.state.max_duration == Time("4ep")
    assert made.state.get_elapsed_duration() == Time("0.5dur")


def test_without_max_duration_each_fit_sets_the_horizon_and_none_warns() -> None:
    made = trainer(max_duration=None)
    horizons = []
    for duration in ("1ep", "1ep", "3ba", "8sp"):
        made.fit(duration)
        horizons.append((str(made.state.max_duration), made.state.get_elapsed_duration()))
    assert horizons == [(end, Time("1dur")) for end in ("1ep", "2ep", "7ba", "64sp")]


def test_stop_training_ends_fit_after_the_batch_and_the_next_fit_continues() -> None:
    events: list[str] = []
    stop = at("batch_start", lambda state: state.stop_training() if state.timestamp.batch == 1 else None)
    made = trainer(batches(8, 8, 4), callbacks=[stop, writing_down(events, EPOCH_AND_BATCH)])
    made.fit()
    assert events == ["epoch_start", "batch_end", "batch_end", "fit_end"]
    made.fit()
    assert events[4:] == ["batch_end", "epoch_end", "fit_end"]
    assert position(made) == (1, 3, 20, 0)


def test_stop_training_in_the_last_batch_ends_the_epoch() -> None:
    made = trainer(batches(8, 8), max_duration="3ep", callbacks=at("batch_end", _stop_at_the_second))
    made.fit()
    assert position(made) == (1, 2, 16, 0)


def _stop_at_the_second(state: Any) -> None:
    if state.timestamp.batch == 2:
        state.stop_training()


def test_stop_training_at_the_end_of_an_epoch_starts_no_other() -> None:
    made = trainer(max_duration="3ep", callbacks=at("epoch_end", lambda state: state.stop_training()))
    made.fit()
    assert position(made) == (1, 2, 16, 0)


def test_a_loader_whose_length_is_not_implemented_counts_as_one_without_length() -> None:
    class Endless(Unsized):
        def __len__(self) -> int:
            raise NotImplementedError

    made = trainer(Endless(8, 8))
    made.fit()
    assert (position(made), made.state.dataloader_len) == ((1, 2, 16, 0), None)


def test_a_length_of_the_whole_can_not_be_a_fraction_of_it() -> None:
    with pytest.raises(ArgumentError) as error:
        trainer(max_duration="0.5dur")
    assert str(error.value) == "max_duration: give it in ep, ba, sp, tok or sec, not as '0.5dur'"


def test_a_timestamp_is_a_snapshot() -> None:
    kept: list[Timestamp] = []
    trainer(batches(8, 8), callbacks=at("batch_end", lambda state: kept.append(state.timestamp))).fit()
    assert [(t.batch, t.sample, t.batch_in_epoch, t.sample_in_epoch) for t in kept] == [(1, 8, 1, 8), (2, 16, 2, 16)]


def test_a_distributed_sampler_is_given_the_epoch() -> None:
    class Sampler(torch.utils.data.SequentialSampler):
        epochs: list[int] = []  # noqa: RUF012

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    data = torch.utils.data.TensorDataset(*batches(8)[0])
    loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=Sampler(data))
    made = trainer(loader, max_duration="2ep")
    made.fit("1ba")
    made.fit()
    assert Sampler.epochs == [0, 1]
