"""How long `fit` trains, where the next one continues, what the clock counts, and lengths as fractions of it all."""

import re
from functools import partial

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

from engine_core import Time
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import ArgumentError, DurationWarning

from .parts import at, batches, net, same, trainer, writing_down
from .test_schedules import four_batches

EPOCH_AND_BATCH = ("epoch_start", "batch_end", "epoch_end", "fit_end")


class Unsized:
    """A loader that does not say how long it is."""

    def __init__(self, *sizes):
        self.data = batches(*sizes)

    def __iter__(self):
        return iter(self.data)


def position(made):
    """Return epoch, batch, sample, and batch in the epoch."""
    now = made.state.timestamp
    return *now[:3], now.batch_in_epoch


LENGTHS = {
    "1ba": (0, 1, 8, 1),
    "4ba": (1, 4, 28, 1),
    "9sp": (0, 2, 16, 2),
    "16sp": (0, 2, 16, 2),
    "17sp": (1, 3, 20, 0),
}


@pytest.mark.parametrize(("duration", "end"), [*LENGTHS.items(), *((whole, (2, 6, 40, 0)) for whole in ("2ep", "6ba"))])
def test_fit_ends_with_the_batch_that_reaches_max_duration(duration, end):
    made = trainer(batches(8, 8, 4), max_duration=duration)
    made.fit()
    assert position(made) == end


def test_fit_ends_with_the_first_batch_after_so_many_seconds(wait):
    made = trainer(batches(2, 2) * 50, max_duration="4.5sec", callbacks=at("before_forward", lambda _: wait(1)))
    made.fit()
    assert (made.state.timestamp.batch, made.state.timestamp.elapsed_s) == (5, 5)


def test_fits_in_pieces_are_one_fit_bit_for_bit():
    whole, pieces = net(dropout=0.3), net(dropout=0.3)
    trainer(batches(8, 8, 4), whole, max_duration="3ep", seed=3).fit()
    made = trainer(batches(8, 8, 4), pieces, max_duration="3ep", seed=3)
    for duration in ("1ba", "1ep", "5sp", None):
        made.fit(duration)
    assert position(made) == (3, 9, 60, 0)
    assert same(whole.state_dict(), pieces.state_dict())


def test_fit_in_mid_epoch_continues_with_the_next_unseen_batch_and_no_second_epoch_start():
    events, sizes = [], []
    note = at("after_dataloader", lambda state: sizes.append(len(state.batch[0])))
    listens = writing_down(events, EPOCH_AND_BATCH)
    made = trainer(batches(8, 7, 6), max_duration="2ep", callbacks=[listens, note])
    for duration in ("1ba", "1ba", "1ep"):
        made.fit(duration)
    assert sizes == [8, 7, 6]
    first, second, third = ["epoch_start", "batch_end"], ["batch_end"], ["batch_end", "epoch_end"]
    assert events == [*first, "fit_end", *second, "fit_end", *third, "fit_end"]
    made.fit()
    assert position(made) == (2, 6, 42, 0)


def test_an_unsized_loader_ends_its_epoch_with_the_next_fit():
    events = []
    made = trainer(Unsized(8, 8), max_duration="4ba", callbacks=writing_down(events, EPOCH_AND_BATCH))
    made.fit("2ba")
    assert events == ["epoch_start", "batch_end", "batch_end", "fit_end"]
    assert position(made) == (0, 2, 16, 2)
    made.fit("1ba")
    assert events[4:] == ["epoch_end", "epoch_start", "batch_end", "fit_end"]
    assert position(made) == (1, 3, 24, 1)


def test_fit_at_the_horizon_warns_and_returns():
    events = []
    made = trainer(max_duration="1ep", callbacks=writing_down(events, ("fit_start",)))
    made.fit()
    says = r"fit\(\) has nothing to do: training has reached its max_duration of 1ep; fit\('1ep'\) continues it"
    with pytest.warns(DurationWarning, match=says) as caught:
        made.fit()
    assert [w.filename for w in caught] == [__file__]
    assert events == ["fit_start"]
    assert position(made) == (1, 2, 16, 0)


def test_fit_beyond_the_horizon_warns_and_moves_it_in_another_unit_too():
    made = trainer(max_duration="2ep")
    made.fit("1ep")
    says = r"fit\('3ep'\) goes past the max_duration of 2ep, so what algorithms schedule now ends at 4ep"
    with pytest.warns(DurationWarning, match=says) as caught:
        made.fit("3ep")
    assert caught[0].filename == __file__
    assert (made.state.max_duration, made.state.get_elapsed_duration()) == (Time("4ep"), Time("1dur"))
    with pytest.warns(DurationWarning, match="of 4ep, so what algorithms schedule now ends at 11ba"):
        made.fit("3ba")
    assert (made.state.max_duration, position(made)) == (Time("11ba"), (5, 11, 88, 1))


def test_without_max_duration_each_fit_sets_the_horizon_and_none_warns():
    made = trainer(max_duration=None)
    horizons = []
    for duration in ("1ep", "1ep", "3ba", "8sp"):
        made.fit(duration)
        horizons.append((str(made.state.max_duration), made.state.get_elapsed_duration()))
    assert horizons == [(end, Time("1dur")) for end in ("1ep", "2ep", "7ba", "64sp")]


def test_stop_training_ends_fit_after_the_batch_and_the_next_fit_continues():
    events = []
    stop = at("batch_start", lambda state: state.stop_training() if state.timestamp.batch == 1 else None)
    made = trainer(batches(8, 8, 4), callbacks=[stop, writing_down(events, EPOCH_AND_BATCH)])
    made.fit()
    assert events == ["epoch_start", "batch_end", "batch_end", "fit_end"]
    made.fit()
    assert events[4:] == ["batch_end", "epoch_end", "fit_end"]
    assert position(made) == (1, 3, 20, 0)


@pytest.mark.parametrize("event", ["batch_end", "epoch_end"])
def test_a_stop_with_the_last_batch_ends_the_epoch_and_starts_no_other(event):
    stop = at(event, lambda state: state.timestamp.batch == 2 and state.stop_training())
    made = trainer(batches(8, 8), max_duration="3ep", callbacks=stop)
    made.fit()
    assert position(made) == (1, 2, 16, 0)


def test_a_loader_whose_length_is_not_implemented_counts_as_one_without_length():
    class Endless(Unsized):
        def __len__(self):
            raise NotImplementedError

    made = trainer(Endless(8, 8))
    made.fit()
    assert (position(made), made.state.dataloader_len) == ((1, 2, 16, 0), None)


def test_a_distributed_sampler_is_given_the_epoch():
    class Sampler(torch.utils.data.SequentialSampler):
        epochs = []  # noqa: RUF012

        def set_epoch(self, epoch):
            self.epochs.append(epoch)

    data = torch.utils.data.TensorDataset(*batches(8)[0])
    loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=Sampler(data))
    made = trainer(loader, max_duration="2ep")
    made.fit("1ba")
    made.fit()
    assert Sampler.epochs == [0, 1]


QUARTERS = [0.0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75, 1.0]


def test_the_batch_advances_before_batch_end_and_the_epoch_before_epoch_end():
    seen = []

    def note(event):
        return at(event, lambda state: seen.append((event, *state.timestamp[:2], state.timestamp.batch_in_epoch)))

    trainer(batches(8), callbacks=[note("after_train_batch"), note("batch_end"), note("epoch_end")]).fit()
    assert seen == [("after_train_batch", 0, 0, 0), ("batch_end", 0, 1, 1), ("epoch_end", 1, 1, 0)]


@pytest.mark.parametrize(
    ("duration", "fractions"),
    [("2ep", QUARTERS), ("4ba", QUARTERS), ("40sp", [0.0, 0.2, 0.2, 0.5, 0.5, 0.7, 0.7, 1.0])],
)
def test_the_fraction_of_the_whole_counts_the_batches_of_the_epoch(duration, fractions):
    seen = []
    events = ("batch_start", "batch_end")
    notes = [at(event, lambda state: seen.append(state.get_elapsed_duration().value)) for event in events]
    trainer(batches(8, 12), max_duration=duration, callbacks=notes).fit()
    assert seen == pytest.approx(fractions)


def test_the_fraction_counts_whole_epochs_where_the_loader_has_no_length():
    seen = []
    note = at("batch_end", lambda state: seen.append(state.get_elapsed_duration().value))
    trainer(Unsized(8, 8), max_duration="2ep", callbacks=note).fit()
    assert seen == [0.0, 0.0, 0.5, 0.5]


def test_seconds_leave_evaluation_out(wait):
    """In the loop's own evaluation, and in one that a callback asks for."""
    slow = [at("before_forward", lambda _: wait(1)), at("eval_batch_start", lambda _: wait(100))]
    made = trainer(batches(8, 8, 8), eval_interval="1ba", eval_dataloader=batches(3), callbacks=slow)
    made.state.callbacks.append(at("batch_start", lambda state: made.eval()))
    made.fit()
    assert made.state.timestamp.elapsed_s == 3


def test_seconds_count_training_and_loading_but_not_the_time_between_fits(wait):
    class Slow(list):
        def __iter__(self):
            for batch in super().__iter__():
                wait(10)
                yield batch

    made = trainer(Slow(batches(8, 8)), max_duration="2ep", callbacks=at("before_forward", lambda _: wait(1)))
    made.fit("1ep")
    wait(100)
    made.fit("1ep")
    assert made.state.timestamp.elapsed_s == 4 * 11
    assert made.state.timestamp.elapsed_s_in_epoch == 0


def test_the_evaluations_clock_counts_its_own_batches():
    seen = []
    note = at("eval_batch_end", lambda state: seen.append((state.eval_timestamp.batch, state.eval_timestamp.sample)))
    made = trainer(eval_dataloader={"a": batches(3, 2), "b": batches(5)}, callbacks=note)
    made.eval()
    assert seen == [(1, 3), (2, 5), (1, 5)]
    assert made.state.timestamp.batch == 0


def of_steps(optimizer, steps):
    return StepLR(optimizer, steps + 1)


HALVE = partial(StepLR, step_size="0.5dur")
SAVER = ("checkpoint_saver", {"folder": "unused", "interval": "0.1dur"})
UNSIZED, STEP = {"data": Unsized(8, 8, 8, 8)}, "schedulers: StepLR: step_size="


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_duration": None, "schedulers": HALVE}, f"{STEP}'0.5dur': max_duration is not known, so"),
        ({"max_duration": "1h", "schedulers": (HALVE, "1sec")}, f"{STEP}'0.5dur': max_duration is '3600sec', so"),
        ({"max_duration": None, "eval_interval": "0.1dur"}, "eval_interval: max_duration is not known, so '0.1dur' of"),
        ({**UNSIZED, "schedulers": (HALVE, "1ba")}, f"{STEP}'0.5dur': '0.5dur' can't be counted in ba: the train_data"),
        ({**UNSIZED, "eval_interval": "0.3dur"}, "eval_interval: '0.3dur' can't be counted in ba: the train_data"),
        ({"schedulers": (HALVE, "8sp")}, f"{STEP}'0.5dur': '0.5dur' can't be counted in sp: give it in sp"),
        ({"schedulers": partial(StepLR, step_size="0.5ba")}, f"{STEP}'0.5ba': '0.5ba': batches are counted in whole"),
        ({"schedulers": partial(StepLR, step_size="-1ep")}, f"{STEP}'-1ep': a length can't be negative"),
        ({"schedulers": (of_steps, "1ba"), "max_duration": None}, "schedulers: of_steps: steps='1dur': max_duration"),
        ({"schedulers": (HALVE, "2dur")}, "the interval='2dur' has to be within the training: 0 or more, and at most"),
        ({"max_duration": "0.5dur"}, "max_duration: give it in ep, ba, sp, tok or sec, not as '0.5dur'"),
        ({"max_duration": None, "callbacks": [SAVER]}, "interval: max_duration is not known, so '0.1dur' of it can't"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_counted_is_refused_at_construction(settings, message):
    with pytest.raises(ArgumentError, match=re.escape(message)):
        trainer(**{"data": four_batches(), **settings})


def test_no_length_is_needed_where_units_are_the_same():
    made = trainer(Unsized(8), max_duration="3ep", eval_interval="1dur", schedulers=HALVE)
    assert made.state.schedulers[0].step_size == 1


@pytest.mark.parametrize(
    ("duration", "interval", "at_batches"),
    [("4ep", "0.5dur", [8, 16]), ("2ep", "0.25dur", [2, 4, 6, 8]), ("10ba", "0.29dur", [2, 4, 6, 8, 10])],
)
def test_intervals_are_fractions_of_the_training(duration, interval, at_batches, tmp_path):
    seen = []
    saver = CheckpointSaver(tmp_path, interval, keep_last=None)
    note = at("eval_start", lambda state: seen.append(state.timestamp.batch))
    evaluating = {"eval_dataloader": four_batches(), "eval_interval": interval}
    with trainer(four_batches(), max_duration=duration, callbacks=[saver, note], **evaluating) as made:
        made.fit()
    assert seen == at_batches
    assert sorted({int(path.name.rpartition("ba")[2]) for path in tmp_path.glob("ep*")}) == at_batches


def test_fit_takes_a_fraction_of_the_training():
    made = trainer(four_batches(), max_duration="3ep")
    made.fit("0.5dur")
    assert made.state.timestamp.batch == 6
    made.fit("0.5dur")
    assert made.state.timestamp.epoch == 3
