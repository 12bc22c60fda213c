"""InfoBatch against its published rule by hand: what is skipped, what counts more, the last epochs, resume, ranks."""

import pytest
import torch
from parts import Memory, at, linear, net, same, trainer
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler, Subset, SubsetRandomSampler, TensorDataset

from engine_core import Loss, Objective
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.callbacks.loss_guard import LossGuard
from engine_core.errors import ArgumentError, EngineError
from engine_core_author.ranks import ThreadRanks
from sb_plugin import InfoBatch, SelectiveBackprop, WithIndex
from sb_plugin.info_batch import PLAIN, RESCALED, SKIPPED
from sb_plugin.skipping import fill_last_batch, skip_easy

ROWS = 22
LOSSES = torch.tensor([0.1, 2.0, 0.3, 5.0, 0.2, 0.9, 1.4, 0.05, 3.0, 0.4])  # the mean is 1.335
EASY = [0, 2, 4, 5, 7, 9]


def data(rows=ROWS):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(rows, 4, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 1).long())


def loader(dataset=None, **settings):
    return DataLoader(
        WithIndex(data()) if dataset is None else dataset, **{"batch_size": 4, "shuffle": True, **settings}
    )


def run(algorithm=None, source=None, model=None, **settings):
    """Train for 8 epochs; return the trainer, and the ids of each epoch."""
    ids = {}

    def note(state):
        ids.setdefault(state.timestamp.epoch, []).extend(state.batch[2].tolist())

    callbacks = [at("batch_start", note), *settings.pop("callbacks", ())]
    given = {"max_duration": "8ep", "seed": 7, "callbacks": callbacks, **settings}
    torch.manual_seed(0)
    algorithms = [] if algorithm is None else [algorithm]
    with trainer(loader() if source is None else source, model or net(), algorithms=algorithms, **given) as made:
        made.fit()
    return made, ids


def weights(made):
    return {name: value.clone() for name, value in made.state.model.state_dict().items()}


def test_easy_examples_are_skipped_where_the_draw_is_below_r():
    skipped, rescaled = skip_easy(LOSSES, 0.5, torch.Generator().manual_seed(4))
    draws = torch.rand(10, generator=torch.Generator().manual_seed(4))
    assert skipped.nonzero().flatten().tolist() == [n for n in EASY if draws[n] < 0.5]
    assert rescaled.nonzero().flatten().tolist() == [n for n in EASY if draws[n] >= 0.5]
    assert 0 < skipped.sum() < 6


@pytest.mark.parametrize("other", [torch.inf, torch.nan])
def test_examples_without_a_finite_loss_are_kept_and_do_not_count_in_the_mean(other):
    known = torch.cat([LOSSES, torch.tensor([other, other])])
    skipped, rescaled = skip_easy(known, 0.999, torch.Generator().manual_seed(4))
    assert (skipped | rescaled).nonzero().flatten().tolist() == EASY
    assert not any(each.any() for each in skip_easy(torch.full((5,), other), 0.5, torch.Generator()))


@pytest.mark.parametrize("r", [0.25, 0.5, 0.8])
def test_the_expected_gradient_is_that_of_all_examples(r):
    inputs, generator = torch.randn(10, 3, generator=torch.Generator().manual_seed(1)), torch.Generator().manual_seed(0)
    drawn = [skip_easy(LOSSES, r, generator) for _ in range(20_000)]
    skipped, rescaled = (torch.stack(each).double() for each in zip(*drawn, strict=True))
    mean = (1 - skipped + rescaled * (1 / (1 - r) - 1)).mean(0)  # the weight of each example
    assert (mean - 1).abs().max() < 5 * (r / (1 - r)) ** 0.5 / 20_000**0.5
    assert mean[[1, 3, 6, 8]].tolist() == [1, 1, 1, 1]
    gradients = inputs.double() * LOSSES.double()[:, None]  # of any loss: they add up
    torch.testing.assert_close(mean @ gradients, gradients.sum(0), rtol=0, atol=0.2)


def test_the_last_batch_of_an_epoch_has_no_single_row_if_another_example_can_come():
    generator = torch.Generator().manual_seed(0)
    skipped = torch.tensor([True, True, False, False, False, False, False, True])
    drawn = [fill_last_batch(skipped, 4, generator) for _ in range(60)]
    assert {tuple((skipped & ~each).nonzero().flatten().tolist()) for each in drawn} == {(0,), (1,), (7,)}
    for size in (1, 3):
        assert fill_last_batch(skipped, size, generator) is skipped
    none = torch.zeros(5, dtype=torch.bool)
    assert fill_last_batch(none, 4, generator) is none


def by_hand(made_of):
    """Train as the rule says, with the draws and the order of the run's own generators."""
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = data().tensors
    scores, seen = torch.full((ROWS,), torch.inf), {}
    for epoch, plain in enumerate(made_of["plain"]):
        marks = torch.ones(ROWS)
        if plain is None:
            named = [f"info_batch/{epoch}/{what}" for what in ("skipped", "order")]
            seeds = [made_of["state"].derive_seed(name, shared=True) for name in named]
            draws, order = (torch.Generator().manual_seed(seed) for seed in seeds)
            easy = scores < scores[scores < torch.inf].double().mean()
            draw = torch.rand(ROWS, generator=draws)
            marks[easy & (draw >= 0.5)] = 2
            stays = ~easy | (draw >= 0.5)
            if stays.sum() % 4 == 1 and not stays.all():  # BatchNorm
                others = (~stays).nonzero().flatten()
                stays[others[torch.randint(len(others), (1,), generator=draws)]] = True
            kept = stays.nonzero().flatten()
            ids = kept[torch.randperm(len(kept), generator=order)]
        else:
            ids = torch.tensor(plain)
        seen[epoch] = ids.tolist()
        for rows in ids.split(4):
            losses = F.cross_entropy(model(x[rows]), y[rows], reduction="none")
            optimizer.zero_grad()
            (losses * marks[rows]).mean().backward()
            optimizer.step()
            scores[rows] = losses.detach()
    return model, seen


def test_a_run_is_the_published_rule_by_hand_and_all_examples_train_in_the_last_eighth():
    made, ids = run(InfoBatch())
    last = ids[7]
    assert sorted(last) == [*range(ROWS)]
    assert all(len(ids[epoch]) == len({*ids[epoch]}) < ROWS for epoch in range(1, 7))
    assert sorted(ids[0]) == [*range(ROWS)]  # nothing is known yet
    model, seen = by_hand({"state": made.state, "plain": [None] * 7 + [last]})
    assert seen == ids
    for name, value in model.state_dict().items():
        torch.testing.assert_close(made.state.model.state_dict()[name], value, rtol=0, atol=1e-6)


def test_the_last_epochs_are_those_of_the_sampler():
    _, ids = run(InfoBatch(delta=0.5), max_duration="4ep")
    assert [len(each) < ROWS for each in ids.values()] == [False, True, False, False]
    _, ids = run(InfoBatch(delta=0.0), max_duration="2ep")
    assert [sorted(each) for each in ids.values()] == [[*range(ROWS)]] * 2


def test_with_r_0_it_is_plain_training_bit_for_bit():
    with_it, ids = run(InfoBatch(r=0.0), callbacks=[])
    plain, others = run()
    assert ids == others
    assert same(weights(with_it), weights(plain))


MODEL_LOSSES = {
    "a mean of rows": (nn.CrossEntropyLoss(), lambda w, rows, marks: (rows * marks).sum() / len(rows)),
    "a sum": (nn.CrossEntropyLoss(reduction="sum"), lambda w, rows, marks: (rows * marks).sum()),
    "class weights": (
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0])),
        lambda w, rows, marks: (rows * w * marks).sum() / w.sum(),
    ),
    "a Loss": (
        lambda o, t, reduction="mean": (
            F.cross_entropy(o, t, reduction="none")
            if reduction == "none"
            else Loss(F.cross_entropy(o, t, reduction="sum"), len(t))
        ),
        lambda w, rows, marks: (rows * marks).sum() / len(rows),
    ),
    "parts": (
        lambda o, t, reduction="mean": {
            "ce": F.cross_entropy(o, t, reduction=reduction),
            "small": o.square().mean(1) if reduction == "none" else o.square().mean(),
        },
        lambda w, rows, marks: (rows * marks).sum() / len(rows),
    ),
}


@pytest.mark.parametrize("kind", MODEL_LOSSES)
@pytest.mark.parametrize("size", [None, 3])
def test_rows_count_1_over_1_minus_r_times_in_losses_of_each_form(kind, size):
    loss_fn, expected = MODEL_LOSSES[kind]
    x, y = data(8).tensors
    algorithm, model, found = InfoBatch(r=0.75), nn.Linear(4, 3), []
    by_id = torch.tensor([PLAIN, RESCALED, SKIPPED, RESCALED] * 3, dtype=torch.uint8)
    ids = torch.tensor([0, 1, 3, 4, 5, 7, 8, 9])

    def plan(state):
        algorithm.load_state_dict({"epoch": 1, "by_id": by_id})

    def note(state):
        if state.timestamp.epoch == 1:
            with torch.no_grad():
                rows, out = F.cross_entropy(model(x), y, reduction="none"), model(x)
            of_class = torch.tensor([1.0, 2.0, 5.0])[y]
            marks = torch.where(by_id[ids] == RESCALED, 4.0, 1.0)
            rows = rows + out.square().mean(1) if kind == "parts" else rows
            found.append((state.loss.item(), expected(of_class, rows, marks).item()))

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, place):
            return x[place], y[place], ids[place]

    batches = DataLoader(Rows(), 8)
    algorithm.metadata = algorithm.metadata.replace(events=("init", "after_loss"))  # with a plan from outside
    watching = [at("epoch_start", plan), at("after_train_batch", note)]
    settings = {"microbatch_size": size, "max_duration": "2ep", "callbacks": watching, "loss_fn": loss_fn}
    with trainer(batches, model, algorithms=[algorithm], **settings) as made:
        made.fit()
    ((loss, right),) = found
    assert loss == pytest.approx(right, rel=1e-5)


@pytest.mark.parametrize("pause", [7, 9, 13, 30])
def test_a_run_resumed_in_mid_epoch_is_the_uninterrupted_one_bit_for_bit(tmp_path, pause):
    def part(folder=None, at_batch=None):
        pausing = at("batch_end", lambda s: s.timestamp.batch == at_batch and s.pause_training())
        saver = [CheckpointSaver(folder, interval="100ba")] if folder else []
        return run(InfoBatch(), model=net(dropout=0.2), callbacks=[pausing, *saver], autoresume=bool(folder))

    whole, ids = part()
    first, before = part(tmp_path, pause)
    assert first.state.timestamp.batch_in_epoch
    rest, after = part(tmp_path)
    assert {epoch: before.get(epoch, []) + after.get(epoch, []) for epoch in ids} == ids
    assert same(weights(rest), weights(whole))
    assert same(rest.state.algorithms[0].state_dict(), whole.state.algorithms[0].state_dict())


def test_a_run_that_goes_back_keeps_the_plan_of_its_epoch(tmp_path):
    def spoil(state):
        if state.timestamp.batch == 8:
            state.batch = (state.batch[0] * torch.nan, *state.batch[1:])

    algorithm, plans = InfoBatch(), []
    noting = at("batch_end", lambda s: s.timestamp.epoch == 1 and plans.append(algorithm._plan_of(s)))
    saver, guard = CheckpointSaver(tmp_path, interval="1ep"), LossGuard("rollback")
    with pytest.warns(match="the weights are restored"):
        run(algorithm, callbacks=[saver, guard, noting, at("before_train_batch", spoil)], max_duration="2ep")
    assert len(plans) > 3
    assert all(plan is plans[0] for plan in plans)


def test_two_ranks_are_one_process():
    def program(ranks):
        torch.set_num_threads(1)
        made, ids = run(InfoBatch(), model=linear(), parallel=ranks)
        return weights(made), ids, made.state.algorithms[0].state_dict()

    one, ids = run(InfoBatch(), model=linear())
    (first, of_first, saved), (second, of_second, others) = ThreadRanks.run(program)
    assert same(first, second)
    assert same(saved, others)
    for epoch, own in ids.items():
        shares = of_first[epoch] + of_second[epoch]
        assert {*shares} == {*own}
    for name, value in weights(one).items():
        torch.testing.assert_close(first[name], value, rtol=0, atol=2e-6)


def test_a_subset_has_the_ids_of_the_whole():
    _, ids = run(InfoBatch(), loader(Subset(WithIndex(data()), [*range(20, 4, -1)])))
    assert {*ids[0]} == {*range(5, 21)}
    assert {*ids[3]} < {*range(5, 21)}
    assert {*ids[7]} == {*range(5, 21)}


def test_ids_that_are_not_the_places_of_examples_are_refused():
    examples = [(*pair, 2 * n + 1) for n, pair in enumerate(data())]
    with pytest.raises(ArgumentError, match=r"ids that are not the places of .* wrap that dataset last"):
        run(InfoBatch(), loader(examples))


def test_the_loader_is_refused_in_the_first_epoch():
    with pytest.raises(ArgumentError, match="the train_dataloader, a list with no sampler, can't be put in order"):
        run(InfoBatch(), list(loader()))


@pytest.mark.parametrize(
    "sampler", [SubsetRandomSampler(range(20)), RandomSampler(range(ROWS), replacement=True), RandomSampler(range(9))]
)
def test_a_sampler_that_leaves_examples_out_is_refused_as_they_may_be_for_validation(sampler):
    with pytest.raises(
        ArgumentError, match=r"RandomSampler does not load each of them once: give DataLoader\(Subset\("
    ):
        run(InfoBatch(), loader(shuffle=False, sampler=sampler))


def test_it_is_refused_beside_what_chooses_rows_too_or_mixes_them():
    with pytest.raises(EngineError, match="conflict"):
        trainer(loader(), algorithms=[InfoBatch(), SelectiveBackprop(scale_factor=1)])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [({"r": 1.0}, "r=1.0"), ({"r": -0.1}, "r=-0.1"), ({"delta": 1.1}, "delta=1.1"), ({"index_key": 1.5}, "index_key")],
)
def test_wrong_arguments_are_refused_at_once(arguments, says):
    with pytest.raises((ValueError, TypeError), match=says):
        InfoBatch(**arguments)


@pytest.mark.parametrize(
    "state", [{"epoch": 1, "by_id": torch.zeros(3)}, {"epoch": -1, "by_id": torch.zeros(3).byte()}]
)
def test_a_state_that_is_not_its_own_is_refused(state):
    made, _ = run(InfoBatch(), max_duration="1ep")
    with pytest.raises(ArgumentError):
        made.state.algorithms[0].load_state_dict(state)


def test_the_kept_fraction_is_logged_when_an_epoch_begins():
    logs = Memory()
    _, ids = run(InfoBatch(), loggers=[logs])
    found = [value for _, value in logs.values("info_batch/kept_fraction")]
    assert found == [len(ids[epoch]) / ROWS for epoch in range(7)]


def ascend_and_repeat(state):
    """Compute the gradients again at other weights, as SAM does."""
    weight = next(state.model.parameters()).data
    weight += 0.1
    state.loop.closure()
    weight -= 0.1


@pytest.mark.parametrize("others", [[], [at("after_train_batch", ascend_and_repeat)]])
def test_the_losses_of_the_first_forward_of_a_step_are_recorded(others):
    algorithm, first, table = InfoBatch(delta=1), {}, torch.zeros(ROWS)

    def note(state):
        if first.setdefault(state.timestamp.batch, state.outputs) is state.outputs:
            table[state.batch[2]] = F.cross_entropy(state.outputs.detach(), state.batch[1], reduction="none")

    noting = at("after_loss", note)
    callbacks = [noting, *others]
    with trainer(loader(), linear(), algorithms=[algorithm], max_duration="2ep", callbacks=callbacks) as made:
        made.fit()
    assert made.state.timestamp.batch < 12
    assert torch.equal(algorithm.state_dict()["table"], table)


def test_an_objective_of_ones_own_gives_the_losses_of_rows():
    class Own(Objective):
        def loss(self, model, outputs, batch):
            return Loss(self.row_losses(model, outputs, batch).sum(), len(batch[1]))

        def row_losses(self, model, outputs, batch):
            return F.cross_entropy(outputs, batch[1], reduction="none")

    own, ids = run(InfoBatch(), objective=Own(nn.CrossEntropyLoss()), loss_fn=None)
    torchs, others = run(InfoBatch())
    assert ids == others
    for name, value in weights(torchs).items():
        torch.testing.assert_close(weights(own)[name], value, rtol=0, atol=1e-6)
