"""Loaders whose `len` is wrong: their iterator's end counts, no batch is lost, and one warning has both numbers."""

import warnings

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import DurationWarning

from .parts import at, batches, same, trainer, writing_down


class Says:
    """Gives some batches, and says that it gives another number of them."""

    def __init__(self, said, gives):
        self.said, self.data, self.place = said, batches(*[8] * gives), 0

    def __len__(self):
        return self.said

    def __iter__(self):
        return iter(self.data)


class Keeping(Says):
    """Keeps its own position, as a StatefulDataLoader does."""

    def __iter__(self):
        while self.place < len(self.data):
            self.place += 1
            yield self.data[self.place - 1]
        self.place = 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


class Numbers(IterableDataset):
    """Ten rows, dealt to the workers, each of which makes a last batch of its own."""

    def __len__(self):
        return 10

    def __iter__(self):
        worker = get_worker_info()
        for number in range(worker.id, 10, worker.num_workers):
            yield torch.full((4,), float(number)), number % 3


def in_workers(batch_size, *, drop_last):
    return DataLoader(Numbers(), batch_size, num_workers=2, drop_last=drop_last, multiprocessing_context="fork")


LOADERS = {
    "more": lambda: Says(3, 4),
    "fewer": lambda: Says(3, 2),
    "more, with a state": lambda: Keeping(3, 4),
    "fewer, with a state": lambda: Keeping(3, 2),
    "more, of workers": lambda: in_workers(4, drop_last=False),
    "fewer, of workers": lambda: in_workers(3, drop_last=True),
}
pytestmark = pytest.mark.filterwarnings(
    "ignore:the train_dataloader says len:engine_core.errors.DurationWarning",
    "ignore:this run can't be resumed exactly:engine_core.errors.CheckpointWarning",  # its batches are read again
    "ignore:Length of IterableDataset:UserWarning",  # torch's own
    "ignore:This process:DeprecationWarning",  # of forks
)


def trained(data, *fits):
    """Return the model after these fits to two epochs, and its events."""
    events = []
    with trainer(data, max_duration="2ep", callbacks=writing_down(events, EPOCHS_AND_BATCHES)) as run:
        for duration in fits:
            run.fit(duration)
        return run.state.model.state_dict(), events


EPOCHS_AND_BATCHES = ("epoch_start", "batch_end", "epoch_end")
OTHERS = [kind for kind in LOADERS if "workers" not in kind]
PARTS = [(kind, f"{first}ba") for kind in OTHERS for first in (2, 3, 4, 5)]
PARTS += [(kind, "3ba") for kind in LOADERS if kind not in OTHERS]


@pytest.mark.parametrize(("kind", "first"), PARTS)
def test_a_fit_may_end_at_any_batch(kind, first):
    make = LOADERS[kind]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(past the max_duration|nothing to do)")  # 4 batches may be all
        whole, parts = trained(make(), None), trained(make(), first, None)
    if not (first == "5ba" and "fewer" in kind):  # longer than the training
        assert same(whole, parts)


@pytest.mark.parametrize(
    ("said", "gives", "expected"),
    [(2, 3, [1 / 4, 2 / 4, 2 / 4, 4 / 6, 5 / 6, 1]), (4, 3, [1 / 8, 2 / 8, 3 / 8, 4 / 6, 5 / 6, 1])],
)
def test_one_warning_has_both_numbers_and_fractions_are_of_the_real_length_from_epoch_1_on(said, gives, expected):
    seen = []
    note = at("batch_end", lambda state: seen.append(state.get_elapsed_duration().value))
    with (
        trainer(Says(said, gives), max_duration="2ep", callbacks=note) as run,
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always")
        run.fit()
    (only,) = told
    assert f"says len {said}, and epoch 0 gave {gives} batches" in str(only.message)
    assert only.category is DurationWarning and "T_max='1dur' or steps" in str(only.message)
    assert seen == expected


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5])
def test_a_resumed_run_is_the_whole_one(kind, batch, tmp_path):
    """It knows the real length too, and does not warn again."""
    seen = {False: [], True: []}

    def run(*, resumes, **settings):
        made = trainer(LOADERS[kind](), max_duration="3ep", **settings)
        made.state.callbacks.append(at("batch_end", lambda s: seen[resumes].append(s.get_elapsed_duration().value)))
        with made, warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            made.fit()
        return made.state.model.state_dict(), sum(each.category is DurationWarning for each in told)

    saver = CheckpointSaver(tmp_path, interval="1ba", keep_last=None)
    whole, _ = run(resumes=False, callbacks=[saver], seed=3)
    resumed, told = run(resumes=True, load_path=next(tmp_path.glob(f"*-ba{batch}")))
    ended = batch > (4 if "more" in kind else 2)  # that of the first epoch is saved before its end
    assert same(whole, resumed) and seen[True] == seen[False][batch:]
    assert told == (not ended)


@pytest.mark.parametrize("kind", ["more", "more, with a state"])
def test_what_is_saved_after_the_loader_was_asked_for_more_lacks_no_batch(kind):
    taken = []
    saved = at("fit_end", lambda state: taken.append(state.loop.snapshot().state["feed"]))
    with trainer(LOADERS[kind](), max_duration="2ep", callbacks=[saved]) as run:
        run.fit("3ba")
        run.fit("1ba")
    assert [position["taken"] for position in taken[:1]] == [3]
    assert "loader" not in taken[0] or taken[0]["loader"] == {"place": 3}
    assert taken[1]["in_epoch"] is False  # the fourth is the last, as it was asked


def test_an_error_of_the_batch_that_is_asked_for_is_the_loaders():
    class Fails(Says):
        def __iter__(self):
            yield from self.data
            raise OSError("gone")

    with trainer(Fails(2, 2), max_duration="2ep") as run, pytest.raises(OSError, match="gone") as error:
        run.fit("2ba")
    assert "failed at batch 2 of epoch 0" in error.value.__notes__[0]
