"""An algorithm gives the examples of an epoch, in order: the loader follows, and so do clock, resume and ranks."""

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from engine_core import Algorithm, AlgorithmMetadata, Engine, Event, Logger, State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.callbacks.loss_guard import LossGuard
from engine_core.errors import ArgumentError, CheckpointError, EngineError, UnsupportedError
from engine_core.needs import EVERYTHING
from engine_core_author.ranks import ThreadRanks

from .parts import at, net, rows, same, trainer

ORDER = [12, 9, 9, 0, 3, 15, 1, 7, 8, 2]


class Ordered(Algorithm):
    """Gives orders to some epochs, and keeps the examples of each batch."""

    metadata = AlgorithmMetadata(
        name="ordered", events=("epoch_start", "after_dataloader"), writes=(), needs=("epoch_order",)
    )

    def __init__(self, orders):
        self.orders, self.seen = orders, []

    def match(self, event, state):
        return (event is Event.EPOCH_START and state.timestamp.epoch in self.orders) or event is Event.AFTER_DATALOADER

    def apply(self, event, state, logger):
        if event is Event.EPOCH_START:
            state.order_of_epoch(self.orders[state.timestamp.epoch])
        elif state.batch is not None:
            self.seen.append(state.batch[2].tolist())


def flat(batches):
    return [example for batch in batches for example in batch]


def examples(count=16):
    return TensorDataset(*rows(count), torch.arange(count))


def loader(**settings):
    return DataLoader(examples(), **{"batch_size": 4, "shuffle": True, **settings})


def epochs(orders, data=None, **settings):
    """Train for 3 epochs; return the trainer and the examples of each batch."""
    ordered = Ordered(orders)
    given = {"max_duration": "3ep", "seed": 3, **settings}
    forgotten, data = given.pop("forgets", None), loader() if data is None else data
    with trainer(data, algorithms=[ordered, *given.pop("algorithms", ())], **given) as made:
        ordered.orders = {epoch: order for epoch, order in orders.items() if epoch != forgotten}
        made.fit()
    return made, ordered.seen


pytestmark = pytest.mark.filterwarnings("ignore:nothing reads item 2 of the batch")


@pytest.mark.parametrize(
    "workers", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=["none", "two", "persist"]
)
def test_the_loader_gives_these_examples_in_this_order_for_one_epoch(workers):
    if workers:
        workers = {**workers, "multiprocessing_context": "fork"}
    made, seen = epochs({1: torch.tensor(ORDER)}, loader(**workers))
    assert seen[4:7] == [[12, 9, 9, 0], [3, 15, 1, 7], [8, 2]]
    for epoch in (seen[:4], seen[7:]):  # the sampler's
        assert sorted(flat(epoch)) == [*range(16)]
    assert made.state.timestamp[:3] == (3, 11, 42)


def test_batch_size_and_drop_last_are_the_loaders():
    _, seen = epochs({0: ORDER, 1: range(8), 2: ORDER}, loader(batch_size=3, drop_last=True))
    assert seen[:3] == seen[-3:] == [ORDER[:3], ORDER[3:6], ORDER[6:9]]
    assert seen[3:5] == [[0, 1, 2], [3, 4, 5]]


def test_the_clock_knows_the_length_of_the_epoch_and_forgets_it_after():
    found = []

    def note(state):
        found.append((state.dataloader_len, round(state.get_elapsed_duration().value * 36)))

    watching = [at(event, note) for event in ("epoch_start", "batch_start", "epoch_end")]
    epochs({1: ORDER}, callbacks=watching)
    plain, ordered = ([(length, done) for length, done in found if length == size] for size in (4, 3))
    assert ordered == [(3, 12), (3, 16), (3, 20)]
    assert plain == [(4, d) for d in (0, 0, 3, 6, 9, 12, 12, 24, 24, 24, 27, 30, 33, 36)]


def test_an_evaluation_at_the_end_of_a_shorter_epoch_belongs_to_that_epoch():
    found = []
    evaluated = at("eval_end", lambda state: found.append((state.timestamp.epoch, state.timestamp.batch)))
    data = DataLoader(TensorDataset(*rows(8)), 4)
    epochs({0: [1, 2, 3], 2: ORDER}, eval_dataloader=data, eval_interval="1ep", callbacks=[evaluated])
    assert found == [(1, 1), (2, 5), (3, 8)]


def test_the_size_of_the_data_is_known_where_the_loader_knows_it():
    assert State(train_dataloader=loader()).dataset_size == 16
    assert State(train_dataloader=[1, 2]).dataset_size is None


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pause", [5, 6, 7])
def test_a_run_resumed_in_an_ordered_epoch_is_the_uninterrupted_one_bit_for_bit(tmp_path, pause, workers):
    more = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}

    def run(at_batch=None, folder=None, forgets=None):
        pausing = at("batch_end", lambda s: s.timestamp.batch == at_batch and s.pause_training())
        savers = [] if folder is None else [CheckpointSaver(folder, interval="100ba")]
        torch.manual_seed(0)
        given = {"model": net(dropout=0.3), "callbacks": [pausing, *savers], "autoresume": bool(folder)}
        return epochs({1: ORDER, 2: [4, 4, 5]}, loader(**more), forgets=forgets, **given)

    whole, seen = run()
    _, first = run(pause, tmp_path)
    # The order of the running epoch is the checkpoint's: the algorithm is not asked again.
    made, rest = run(None, tmp_path, forgets=1)
    assert first + rest == seen
    assert same(made.state.model.state_dict(), whole.state.model.state_dict())
    assert made.state.timestamp[:7] == whole.state.timestamp[:7]


def test_an_order_that_the_loader_can_not_have_is_a_broken_checkpoint(tmp_path):
    pausing = at("batch_end", lambda s: s.timestamp.batch == 2 and s.pause_training())
    epochs({0: ORDER}, callbacks=[pausing, CheckpointSaver(tmp_path, interval="100ba")])
    with pytest.raises(
        CheckpointError, match="no valid order of the train_dataloader: an epoch's order goes from 0 to 15"
    ):
        epochs({0: ORDER}, DataLoader(examples(15), 4, shuffle=True), load_path=tmp_path)


def test_a_fit_that_an_exception_ended_continues_in_the_same_order():
    once = [True]

    def fail(state):
        if state.timestamp.batch == 5 and once.pop():
            once.append(False)
            raise OSError("no more")

    ordered = Ordered({1: ORDER})
    with trainer(loader(), algorithms=[ordered], max_duration="2ep", callbacks=[at("batch_end", fail)]) as made:
        with pytest.raises(OSError, match="no more"):
            made.fit()
        made.fit()
    assert flat(ordered.seen[4:]) == ORDER
    assert made.state.timestamp[:2] == (2, 7)


@pytest.mark.filterwarnings("ignore:the loss is nan")
def test_going_back_leaves_the_order(tmp_path):
    def spoil(state):
        if state.timestamp.batch == 5:
            state.batch = (state.batch[0] * torch.nan, *state.batch[1:])

    savers = [CheckpointSaver(tmp_path, interval="2ba"), LossGuard("rollback")]
    _, seen = epochs({1: ORDER}, callbacks=[*savers, at("before_train_batch", spoil)])
    assert flat(seen[4:7]) == ORDER


def test_two_ranks_take_their_shares_of_the_one_order():
    def program(ranks):
        torch.set_num_threads(1)
        made, seen = epochs({0: ORDER, 2: ORDER[:5]}, parallel=ranks)
        return seen, {name: value.clone() for name, value in made.state.model.state_dict().items()}

    one, _ = epochs({0: ORDER, 2: ORDER[:5]})
    (first, weights), (second, others) = ThreadRanks.run(program)
    assert first[:3] == [[12, 9], [3, 15], [8]]
    assert second[:3] == [[9, 0], [1, 7], [2]]
    assert (first[-2:], second[-2:]) == ([[12, 9], [3]], [[9, 0], [3]])  # the last has one row: a placeholder
    assert same(weights, others)
    for name, value in one.state.model.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-6)


def test_ranks_that_give_different_orders_are_told():
    def program(ranks):
        torch.set_num_threads(1)
        with pytest.raises(EngineError, match="draws other rows on rank 1 than on rank 0"):
            made = trainer(loader(), algorithms=[Ordered({})], parallel=ranks)
            with made:
                made.state.algorithms[0].orders[0] = ORDER if ranks.rank else [*ORDER[:-1], 5]
                made.fit()

    ThreadRanks.run(program)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(*rows(8), torch.arange(8), strict=True))


class Pairs(BatchSampler):
    """A batch sampler with rules of its own."""


REFUSED = {
    "a list with no sampler": lambda: list(loader()),
    "a DataLoader of an IterableDataset": lambda: DataLoader(Stream(), 4),
    "a DataLoader with batch_size=None": lambda: DataLoader(examples(), batch_size=None),
    "a DataLoader with Pairs of its own": lambda: DataLoader(
        examples(), batch_sampler=Pairs(SequentialSampler(range(16)), 4, drop_last=False)
    ),
    "a StatefulDataLoader": lambda: StatefulDataLoader(examples(), 4),
}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("kind", REFUSED)
def test_a_loader_that_can_not_be_put_in_order_is_refused_with_the_line_to_write(kind):
    with pytest.raises(ArgumentError) as caught:
        epochs({0: ORDER}, REFUSED[kind]())
    assert str(caught.value) == (
        f"the examples of the train_dataloader, {kind}, can't be put in order: give "
        "DataLoader(dataset, batch_size=..., shuffle=True), whose dataset has examples by index"
    )


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ([], "an epoch's order has to be whole numbers"),
        (torch.empty(0, dtype=torch.int64), "of 0 examples gives no batch"),
        ([0.5, 1.0], r"whole numbers \(n,\), not torch.float32 \(2,\)"),
        ([[1, 2]], r"not torch.int64 \(1, 2\)"),
        ([True, False], "not torch.bool"),
        ([3, 16], "goes from 3 to 16, and the dataset has 16 examples"),
        ([-1, 3], "goes from -1 to 3"),
    ],
)
def test_what_is_no_order_of_the_examples_is_refused(order, says):
    with pytest.raises(ArgumentError, match=says):
        epochs({0: order})


def test_a_second_order_in_one_epoch_is_refused():
    with pytest.raises(EngineError, match="another algorithm gave the order of this epoch already: leave one"):
        epochs({0: ORDER}, algorithms=[Ordered({0: ORDER})])


def test_an_order_is_given_when_the_epoch_starts_and_not_later():
    late = at("batch_end", lambda state: state.order_of_epoch(ORDER))
    with pytest.raises(EngineError, match="an epoch's order is given at EPOCH_START"):
        epochs({}, callbacks=[late])


def test_rows_of_each_ranks_own_have_no_order_in_common():
    def program(ranks):
        torch.set_num_threads(1)
        with pytest.raises(ArgumentError, match="is that of all ranks: give all one DataLoader, parallel='ddp'"):
            epochs({0: ORDER}, parallel=ranks)

    class Local(ThreadRanks):
        is_local = True

    Local.run(program)


def test_a_loop_that_takes_no_order_refuses_the_algorithm_by_name():
    state = State(algorithms=[Ordered({})])
    state.loop.offers = EVERYTHING.without("epoch_order", why="its data is a stream; leave it out")
    with pytest.raises(UnsupportedError, match=r"Ordered .*: no epoch_order: its data is a stream; leave it out"):
        Engine(state, Logger())
