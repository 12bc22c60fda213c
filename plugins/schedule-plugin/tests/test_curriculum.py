"""The curriculum against its rule by hand: which examples an epoch loads, in which order, what a resumed run keeps."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from parts import Memory, at, net, rows, same, trainer
from torch.utils.data import DataLoader, RandomSampler, Subset, SubsetRandomSampler, TensorDataset

from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import ArgumentError, ArgumentTypeError
from schedule_plugin import Curriculum, admitted_share
from schedule_plugin.pacing import easiest

pytestmark = pytest.mark.filterwarnings("ignore:nothing reads item 2 of the batch")
SIZE = 12
SCORES = [5, 2, 9, 2, 7, 1, 8, 3, 11, 4, 10, 6]
ORDER = [5, 1, 3, 7, 9, 0, 11, 4, 6, 2, 10, 8]
"""From easy to hard; of the two with 2 the first comes first."""


def loader(dataset=None, **settings):
    whole = TensorDataset(*rows(SIZE), torch.arange(SIZE))
    return DataLoader(whole if dataset is None else dataset, **{"batch_size": 4, "shuffle": True, **settings})


def epochs(curriculum, data=None, **settings):
    """Train for 6 epochs; return the trainer, and the examples of each epoch."""
    seen = {}

    def note(state):
        seen.setdefault(state.timestamp.epoch, []).extend(state.batch[2].tolist())

    callbacks = [at("batch_start", note), *settings.pop("callbacks", ())]
    given = {"max_duration": "6ep", "seed": 3, "model": net(dropout=0.3), **settings}
    torch.manual_seed(0)
    with trainer(loader() if data is None else data, algorithms=[curriculum], callbacks=callbacks, **given) as made:
        made.fit()
    return made, seen


@pytest.mark.parametrize(
    "difficulty",
    [SCORES, torch.tensor(SCORES), lambda dataset: [SCORES[row] for row in dataset.tensors[2].tolist()]],
    ids=["list", "tensor", "function"],
)
def test_an_epoch_loads_the_easiest_share_in_a_drawn_order(difficulty):
    memory = Memory()
    made, seen = epochs(Curriculum(difficulty, start=0.25, end=2 / 3), loggers=[memory])
    for epoch, count in enumerate([4, 6, 8, 10]):  # 3 are not a batch; then 5.25, 7.5, 9.75
        seed = made.state.derive_seed(f"curriculum/{epoch}", shared=True)
        drawn = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        assert seen[epoch] == [ORDER[place] for place in drawn]
    assert sorted(seen[4]) == sorted(seen[5]) == [*range(SIZE)]
    assert made.state.timestamp[:3] == (6, 14, 52)
    assert [share for _, share in memory.values("curriculum/admitted_fraction")] == [4 / 12, 6 / 12, 8 / 12, 10 / 12]


def test_a_function_is_asked_once_and_its_draws_leave_the_run_as_it_is():
    asked = []

    def difficulty(dataset):
        torch.rand(asked.append(len(dataset)) or 5)
        return SCORES

    (drawing, drawn), (plain, listed) = (epochs(Curriculum(each)) for each in (difficulty, SCORES))
    assert asked == [SIZE]
    assert drawn == listed
    assert same(drawing.state.model.state_dict(), plain.state.model.state_dict())


@pytest.mark.parametrize("pause", [1, 3])  # at the end of an epoch, and within one
def test_a_resumed_run_keeps_what_a_function_had_said(tmp_path, pause):
    def run(difficulty, pauses=(), **settings):
        pausing = at("batch_end", lambda s: s.timestamp.batch in pauses and s.pause_training())
        return epochs(Curriculum(difficulty, end=0.9), callbacks=[pausing, *settings.pop("callbacks", ())], **settings)

    saver = {"callbacks": [CheckpointSaver(tmp_path, interval="100ba")], "autoresume": True}
    whole, seen = run(lambda dataset: SCORES)
    _, first = run(lambda dataset: SCORES, [pause], **saver)
    saver["callbacks"] = [CheckpointSaver(tmp_path, interval="100ba")]
    made, rest = run(lambda dataset: [-score for score in SCORES], **saver)
    assert {epoch: first.get(epoch, []) + rest.get(epoch, []) for epoch in seen} == seen
    assert same(made.state.model.state_dict(), whole.state.model.state_dict())


def test_a_config_may_name_what_is_to_be_imported(monkeypatch, tmp_path):
    (tmp_path / "of_texts.py").write_text(f"scores = {SCORES}\ndef by_hand(dataset):\n    return scores\nname = 'x'\n")
    monkeypatch.syspath_prepend(tmp_path)
    _, seen = epochs(Curriculum(SCORES))
    assert epochs(Curriculum("of_texts:scores"))[1] == epochs(Curriculum("of_texts:by_hand"))[1] == seen
    with pytest.raises(ArgumentTypeError, match="difficulty='of_texts:name' has to be a number for each example"):
        Curriculum("of_texts:name")


unit = st.floats(0.01, 1)


@given(st.floats(0, 1), st.floats(0, 1), unit, unit, st.floats(1, 20))
def test_the_share_grows_from_start_to_all(done, later, start, end, root):
    share = admitted_share(done, start, end, root)
    assert start - 1e-9 <= share <= admitted_share(max(done, later), start, end, root) <= 1
    assert admitted_share(0, start, end, root) == pytest.approx(start)
    if done < end:  # the paper's c**p grows linearly
        assert share**root == pytest.approx(start**root + (1 - start**root) * done / end)
    else:
        assert share == 1


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), unit, st.integers(1, 9))
def test_nobody_admitted_is_harder_than_who_is_not(scores, share, batch_size):
    admitted = easiest(torch.tensor(scores, dtype=torch.float64), share, batch_size).tolist()
    others = set(range(len(scores))) - set(admitted)
    assert max(scores[place] for place in admitted) <= min((scores[place] for place in others), default=5)
    assert min(batch_size, len(scores)) <= len(admitted) <= max(share * len(scores) + 2, batch_size)
    assert len(admitted) >= share * len(scores) - 1e-6
    assert not others or batch_size == 1 or len(admitted) % batch_size != 1  # BatchNorm


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"difficulty": SCORES, "start": 0}, ArgumentError, r"start=0 has to be within \(0, 1\]"),
        ({"difficulty": SCORES, "end": 1.5}, ArgumentError, r"end=1.5 has to be within \(0, 1\]"),
        ({"difficulty": SCORES, "root": 0.5}, ArgumentError, r"root=0.5 has to be within \[1, inf\)"),
        ({"difficulty": 3}, ArgumentTypeError, "difficulty=3 has to be a number for each example"),
        ({"difficulty": "nowhere:at_all"}, ArgumentError, "difficulty='nowhere:at_all' can't be imported .*nowhere"),
    ],
)
def test_a_wrong_argument_is_refused(arguments, error, says):
    with pytest.raises(error, match=says):
        Curriculum(**arguments)


@pytest.mark.parametrize(
    ("difficulty", "data", "says"),
    [
        (SCORES[:5], {}, r"of shape \(5,\) for the 12 examples .*; for a Subset scores\[subset.indices\]"),
        (SCORES, {"dataset": Subset(TensorDataset(*rows(9)), range(4))}, r"of shape \(12,\) for the 4 examples"),
        (["hard"] * SIZE, {}, r"have to be numbers \(n,\), not \['hard'"),
        ([*SCORES[:3], float("nan"), *SCORES[4:]], {}, "the difficulty of example 3 is NaN"),
        (
            SCORES,
            {"sampler": SubsetRandomSampler(range(5)), "shuffle": False},
            "SubsetRandomSampler does not load each",
        ),
        (SCORES, {"sampler": RandomSampler(range(SIZE), replacement=True), "shuffle": False}, "RandomSampler does not"),
    ],
)
def test_data_that_can_not_be_placed_is_refused_before_training(difficulty, data, says):
    with pytest.raises(ArgumentError, match=says):
        epochs(Curriculum(difficulty), loader(**data))


def test_a_loader_that_takes_no_order_is_refused():
    with pytest.raises(ArgumentError, match="the examples of the train_dataloader, a list with no sampler, can't be put in order"):
        epochs(Curriculum(SCORES), [rows(4)])
