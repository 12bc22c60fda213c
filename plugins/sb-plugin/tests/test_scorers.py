"""Scores from tables, functions and nowhere, in whole training runs; what is kept equals a hand-made record."""

import math
import time

import pytest
import torch
from parts import acting, at, same, trainer
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from engine_core import Callback, Event, Objective
from engine_core.errors import ArgumentError, EngineError
from engine_core_author import RecordingDestination
from sb_plugin import InfoBatch, SelectiveBackprop

ROWS, SIZE = 24, 8
ALWAYS = {"start": 0, "end": 1, "scale_factor": 1, "interrupt": 0}
CARRIED = {"scale_factor": 1, "interrupt": 0, "scorer": "carried", "index_key": 2}


X = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()
BATCHES = list(zip(X.split(SIZE), Y.split(SIZE), torch.arange(ROWS).split(SIZE), strict=True))


class Witness(Callback):
    """Records what a forward that trains gives each example, and how many rows each forward had."""

    def __init__(self, momentum=0.5):
        self.momentum = momentum
        self.table = {}
        self.picks = []
        self.scored = []

    def init(self, state, logger):
        def count(module, args):
            if not torch.is_grad_enabled():
                self.scored.append(len(args[0]))

        state.model.register_forward_pre_hook(count)

    def after_forward(self, state, logger):
        _, targets, ids = state.batch
        losses = F.cross_entropy(state.outputs.detach(), targets, reduction="none")
        for key, loss in zip(ids.tolist(), losses, strict=True):
            old = self.table.get(key)
            new = loss if old is None else self.momentum * torch.tensor(old) + (1 - self.momentum) * loss
            self.table[key] = new.item()
        self.picks.append(ids.tolist())


def train(algorithms, *callbacks, batches=BATCHES, epochs=4, **settings):
    torch.manual_seed(5)
    model = settings.pop("model", None) or nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 2))
    sgd = torch.optim.SGD(model.parameters(), lr=0.3)
    given = {"max_duration": f"{epochs}ep", "optimizers": sgd, "seed": 1, "callbacks": list(callbacks), **settings}
    with trainer(batches, model, algorithms=algorithms, **given) as made:
        made.fit()
    return made


def table_tensor(algorithm):
    return algorithm.state_dict()["table"]


def table_of(algorithm):
    return {key: value for key, value in enumerate(table_tensor(algorithm).tolist()) if value != math.inf}


@pytest.mark.parametrize(("momentum", "interval"), [(0.5, (0, 1)), (0.0, (0.5, 1)), (0.9, (0.5, 1))])
def test_the_carried_table_is_a_record_of_the_losses_that_trained(momentum, interval):
    """Also of the steps before the interval, which warm it up."""
    algorithm = SelectiveBackprop(
        *interval, scale_factor=1, interrupt=3, scorer="carried", index_key=2, momentum=momentum
    )
    witness = Witness(momentum)
    train(algorithm, witness)
    assert table_of(algorithm) == pytest.approx(witness.table, rel=1e-6)
    assert witness.scored == []


def test_carried_losses_are_taken_up_to_the_end_of_the_interval():
    algorithm, witness = SelectiveBackprop(0, 0.5, scale_factor=1, scorer="carried", index_key=2), Witness()
    train(algorithm, witness, epochs=2)
    half = Witness()
    train(SelectiveBackprop(0, 1, scale_factor=1, scorer="carried", index_key=2), half, epochs=1)
    assert table_of(algorithm) == pytest.approx(half.table, rel=1e-6)


def test_microbatches_leave_the_same_table():
    whole, split = (SelectiveBackprop(**ALWAYS, scorer="carried", index_key=2) for _ in range(2))
    for algorithm, size in ((whole, None), (split, 3)):
        torch.manual_seed(5)
        train(algorithm, model=nn.Linear(6, 2), microbatch_size=size)  # without dropout, which draws once for each
    assert table_of(split) == pytest.approx(table_of(whole), rel=1e-4)


def again(state):
    """Run a second forward and backward at other weights, as SAM does."""
    weight, closure = next(state.model.parameters()).data, state.loop.closure
    weight.add_(1)
    closure()
    weight.sub_(1)


def test_a_second_forward_of_the_step_is_not_recorded():
    once, twice = (SelectiveBackprop(**ALWAYS, scorer="carried", index_key=2) for _ in range(2))
    train(once, Witness(), max_duration="1ba")
    train(twice, at("after_train_batch", again), max_duration="1ba")
    assert table_of(twice) == table_of(once)
    assert len(table_of(once)) == SIZE // 2


def test_an_example_that_was_never_trained_on_counts_as_hardest():
    """Of batches of 8 with keep .5, the second epoch takes those that the first has left out."""
    witness = Witness()
    train(SelectiveBackprop(**ALWAYS, scorer="carried", index_key=2, selector="topk"), witness, epochs=2)
    for batch, first, second in zip(BATCHES, witness.picks[:3], witness.picks[3:], strict=True):
        assert sorted(first + second) == batch[2].tolist()


@pytest.mark.parametrize("refresh", [1, 2, 9])
def test_stale_scores_are_the_losses_of_their_last_forward_and_renewed_every_few_visits(refresh):
    record = {}

    class Oracle(Witness):
        def init(self, state, logger):
            super().init(state, logger)
            state.model.register_forward_hook(self.note)

        def note(self, module, args, outputs):
            if not outputs.requires_grad:
                ids = (args[0][:, None] == X).all(2).nonzero()[:, 1]
                losses = F.cross_entropy(outputs, Y[ids], reduction="none")
                record.update(zip(ids.tolist(), losses.tolist(), strict=True))

    algorithm, oracle = SelectiveBackprop(**ALWAYS, scorer="stale", index_key=2, refresh=refresh), Oracle()
    train(algorithm, oracle)
    assert len(record) == ROWS
    assert table_of(algorithm) == record
    assert oracle.scored == [SIZE] * 3 * sum(epoch % refresh == 0 for epoch in range(4))


def test_the_uniform_selector_scores_nothing():
    witness, destination = Witness(), RecordingDestination()
    train(SelectiveBackprop(**ALWAYS, selector="uniform"), witness, epochs=2, loggers=[destination])
    assert witness.scored == []
    assert {len(picks) for picks in witness.picks} == {SIZE // 2}
    names = {name for _, metrics in destination.metrics for name in metrics if name.startswith("selective")}
    assert names == {"selective_backprop/kept", "selective_backprop/kept_fraction"}


def test_a_function_of_the_batch_and_the_state_gives_scores():
    """The reducible loss of Mindermann et al. 2022 (arXiv 2206.07137): the loss less what a table says is left."""
    irreducible = torch.linspace(0, 3, ROWS)
    hardest = []

    def reducible(batch, state):
        x, y, ids = batch
        assert state.model is not None
        assert not torch.is_grad_enabled()
        scores = F.cross_entropy(state.model(x), y, reduction="none") - irreducible[ids]
        hardest.append(ids[scores.topk(4).indices.sort().values].tolist())
        return scores

    witness = Witness()
    train(SelectiveBackprop(**ALWAYS, scorer=reducible, selector="topk"), witness, epochs=1)
    assert witness.picks == hardest


def test_what_a_scorer_function_gives_has_to_be_a_score_for_each_row(engine_of, pruned):
    for given, words in ((lambda b, s: [1.0], "not a tensor of shape"), (lambda b, s: b[0], r"not \(8,\), a score")):
        engine = engine_of(SelectiveBackprop(**ALWAYS, scorer=given))
        with pytest.raises((ValueError, TypeError), match=words):
            pruned(engine)


def test_a_loop_that_reports_no_loss_gets_an_error(engine_of, pruned):
    engine = engine_of(SelectiveBackprop(**ALWAYS, scorer="carried", index_key=2))
    batch = (torch.randn(8, 3), torch.zeros(8).long(), torch.arange(8))
    for _ in range(3):
        pruned(engine, batch)
    with pytest.raises(EngineError, match=r"got no losses for the last 3 batches.*AFTER_LOSS"):
        pruned(engine, batch)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (torch.arange(8.0), "float32"),
        (torch.ones(8).bool(), "bool"),
        (torch.arange(8) * 2**40, "number the examples from 0"),
        (torch.arange(7), r"\(7,\)"),
        (list(range(8)), r"not a tensor \(8,\) with the id"),
        (None, "has no item 2.*sb_plugin.WithIndex"),
    ],
)
def test_anything_but_an_id_is_refused_at_the_first_batch(engine_of, ids, words):
    batch = (torch.randn(8, 3), torch.zeros(8).long(), *(() if ids is None else (ids,)))
    algorithm = SelectiveBackprop(0.5, 1, scale_factor=1, scorer="carried", index_key=2)
    engine = engine_of(algorithm, max_duration="9ba", batch=batch)
    with pytest.raises((TypeError, ValueError, LookupError), match=words):
        engine.run_event(Event.AFTER_DATALOADER)


@pytest.mark.parametrize(("key", "settings"), [(-1, {}), (-2, {}), (0, {"input_key": -2})])
def test_targets_and_inputs_are_not_taken_for_ids(engine_of, key, settings):
    """As when the examples were never numbered, and the ids are looked for at the end."""
    batch = (torch.arange(8), torch.arange(8) % 2)
    algorithm = SelectiveBackprop(0, 1, scale_factor=1, scorer="carried", index_key=key, **settings)
    engine = engine_of(algorithm, model=nn.Embedding(8, 2), batch=batch)
    with pytest.raises(ArgumentError, match=rf"index_key={key} finds the inputs or the targets.*WithIndex"):
        engine.run_event(Event.AFTER_DATALOADER)


def noisy(outputs, targets, reduction="mean"):
    return F.cross_entropy(outputs + 0.5 * torch.randn_like(outputs), targets, reduction=reduction)


def test_up_to_start_a_run_is_bit_identical_with_a_loss_that_draws_too():
    def weights(algorithms):
        seen = []
        note = at("batch_end", lambda state: seen.append(next(state.model.parameters()).detach().clone()))
        train(algorithms, note, loss_fn=noisy)
        return seen

    pairs = zip(weights([]), weights(SelectiveBackprop(0.5, 1, **CARRIED)), strict=True)
    assert [torch.equal(a, b) for a, b in pairs] == [True] * 6 + [False] * 6


class Counting(nn.CrossEntropyLoss):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, outputs, targets):
        self.calls += 1
        return super().forward(outputs, targets)


@pytest.mark.filterwarnings("ignore::engine_core.errors.UnreadItemWarning")  # the ids, where losses are not kept
@pytest.mark.parametrize("given", [CARRIED, {**CARRIED, "scorer": "stale"}, {"scale_factor": 1, "interrupt": 0}])
def test_buffers_of_a_loss_module_are_left_as_they_were(given):
    loss = Counting()
    train(SelectiveBackprop(0, 1, **given), loss_fn=loss)
    assert loss.calls == 12


def test_it_is_the_loss_that_trains_that_is_carried():
    """As MixUp and label smoothing change it."""
    trained = []

    def blur(event, state):
        targets = F.one_hot(state.batch[1], 2) * 0.5 + 0.25 if event is Event.BEFORE_LOSS else state.batch[1].argmax(1)
        state.batch = (state.batch[0], targets, state.batch[2])

    algorithm = SelectiveBackprop(0, 1, **CARRIED)
    note = at("before_backward", lambda state: trained.append(state.loss.item()))
    blurring = acting(blur, "before_loss", "after_loss", writes=("batch",))
    train([algorithm, blurring], note, max_duration="1ba")
    assert sum(table_of(algorithm).values()) / 4 == pytest.approx(trained[0], rel=1e-6)


def test_losses_of_half_precision_are_taken_in_single_precision():
    algorithm, seen = SelectiveBackprop(0, 1, **CARRIED), []
    note = at("after_loss", lambda state: seen.append((state.outputs.detach(), *state.batch[1:])))
    train(algorithm, note, max_duration="1ba", precision="amp_bf16")
    ((outputs, targets, ids),) = seen
    assert outputs.dtype is torch.bfloat16
    assert torch.equal(table_tensor(algorithm)[ids], F.cross_entropy(outputs.float(), targets, reduction="none"))


class Asked(Objective):
    asked = 0

    def row_losses(self, model, outputs, batch):
        self.asked += 1
        return super().row_losses(model, outputs, batch)


@pytest.mark.parametrize("algorithm", [SelectiveBackprop(0, 1, **CARRIED), InfoBatch(r=0.5)])
def test_the_losses_of_a_step_are_computed_once_for_all_who_ask(algorithm):
    """Both keep them in the same kind of table, by the same ids."""
    objective, last = Asked(F.cross_entropy), {}
    note = at("after_loss", lambda state: last.update(zip(state.batch[2].tolist(), state.row_losses(), strict=True)))
    data = TensorDataset(X, Y, torch.arange(ROWS))
    made = train(algorithm, note, batches=DataLoader(data, SIZE), epochs=2, objective=objective, loss_fn=None)
    assert objective.asked == made.state.timestamp.batch
    assert isinstance(algorithm, SelectiveBackprop) or table_of(algorithm) == last


@pytest.mark.filterwarnings("ignore::engine_core.errors.NonFiniteLossWarning")
def test_one_bad_forward_excludes_no_example_for_good():
    """As it would if NaN took the place of what was known: rows of NaN are not drawn while there are others."""
    visits = torch.zeros(ROWS)

    def spoil(state):
        if state.timestamp.batch == 15:
            state.batch = (state.batch[0] * math.nan, *state.batch[1:])
        elif state.timestamp.batch > 15:
            visits[state.batch[2]] += 1

    algorithm = SelectiveBackprop(0, 1, **CARRIED)
    train(algorithm, at("before_forward", spoil), "loss_guard", epochs=20)
    assert table_tensor(algorithm).isfinite().all()
    assert visits.min() > 0


@pytest.mark.filterwarnings("ignore::engine_core.errors.NonFiniteLossWarning")
def test_a_row_that_was_never_finite_is_not_chosen_while_others_are_left():
    batches = [(x.clone(), y, ids) for x, y, ids in BATCHES]
    batches[0][0][3] = math.nan
    seen = []
    picks = at("before_forward", lambda state: seen.append(state.batch[2].tolist()))
    train(SelectiveBackprop(0, 1, **CARRIED), picks, "loss_guard", batches=batches, epochs=9)
    assert sum(3 in picks for picks in seen) == 1


def test_a_first_step_that_fails_is_not_a_loop_that_reports_no_loss():
    left = iter([1, 1, *[0] * 9])
    fail_twice = at("after_forward", lambda state: 1 / (1 - next(left)))
    algorithm = SelectiveBackprop(0, 1, **CARRIED)
    with trainer(BATCHES, nn.Linear(6, 2), algorithms=algorithm, callbacks=fail_twice) as made:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                made.fit()
        made.fit()
    assert len(table_tensor(algorithm)) > 0


def logged(destination, name):
    return [metrics[name] for _, metrics in destination.metrics if name in metrics]


def test_examples_never_trained_on_are_counted_and_in_no_mean_and_so_are_refreshed_ones():
    destination, refreshed = RecordingDestination(), RecordingDestination()
    train(SelectiveBackprop(0, 1, **CARRIED), loggers=[destination], epochs=2)
    assert logged(destination, "selective_backprop/unseen") == [8, 8, 8, 4, 4, 4]
    means = logged(destination, "selective_backprop/loss_mean")
    assert (len(means), max(means) < 10) == (3, True)
    assert logged(destination, "selective_backprop/nonfinite") == [0] * 6
    assert logged(destination, "selective_backprop/kept_fraction") == [0.5]
    stale = SelectiveBackprop(0.5, 1, **{**CARRIED, "scorer": "stale"}, refresh=2)
    train(stale, loggers=[refreshed])
    assert logged(refreshed, "selective_backprop/refreshed") == [8, 8, 8, 0, 0, 0]
    assert logged(refreshed, "selective_backprop/kept_fraction") == [0.75]


def test_the_share_of_time_spent_scoring_is_that_of_the_whole_run():
    """If one of its two parts began again with the second fit, it would be near 2, or near a half."""

    def slow(batch, state):
        time.sleep(0.1)
        return batch[0].sum(1)

    destination = RecordingDestination()
    algorithm = SelectiveBackprop(0, 1, scale_factor=1, interrupt=0, scorer=slow)
    with trainer(BATCHES[:2], nn.Linear(6, 2), max_duration="2ep", algorithms=algorithm, loggers=destination) as made:
        made.fit(duration="1ep")
        made.fit()
    shares = logged(destination, "time/selective_backprop/scoring_fraction")
    assert len(shares) == 2 and all(0.55 < share < 1 for share in shares)


def test_a_refused_state_changes_nothing_and_a_table_is_taken_without_visits():
    carried = SelectiveBackprop(0, 1, **CARRIED)
    train(carried)
    stale = SelectiveBackprop(0, 1, **{**CARRIED, "scorer": "stale"})
    stale.load_state_dict(carried.state_dict())
    before = carried.state_dict()
    with pytest.raises(ArgumentError, match="'table' in the state"):
        carried.load_state_dict({**stale.state_dict(), "table": torch.zeros(3, 3)})
    assert same(before, carried.state_dict())
