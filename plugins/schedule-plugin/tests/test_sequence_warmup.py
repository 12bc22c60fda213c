"""Sequence warm-up against training by hand, and the laws of its lengths and cuts."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from parts import Memory, acting, at, same
from schedule_parts import LENGTH, Masked, Texts, texts, texts_trainer
from torch.nn import functional as F

from engine_core import Algorithm, AlgorithmMetadata, Objective
from engine_core.batch import Batches
from engine_core.errors import ArgumentError, ArgumentTypeError, BatchKeyError
from schedule_plugin import SequenceWarmup, warmup_length
from schedule_plugin.cutting import cut_up, guess_keys
from schedule_plugin.lengths import cut_length

GROWING = {True: [3, 6, 9, 12, 15, 18, 24, 24], False: [3, 6, 6, 12, 12, 12, 24, 24]}
"""The lengths of 8 steps, truncated or cut up: 24 tokens are cut without a rest into 3, 6, 12 and 24."""


def shapes_in(batches_seen):
    return at("before_forward", lambda state: batches_seen.append(tuple(state.batch[0].shape)))


@pytest.mark.parametrize("truncate", [True, False])
def test_a_run_is_training_by_hand_on_shorter_rows(truncate):
    model = Texts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (tokens, after), length in zip(texts(2, 2, 2, 2) * 2, GROWING[truncate], strict=True):
        optimizer.zero_grad()
        ends = [length] if truncate else range(length, LENGTH + 1, length)
        x, y = ([each[row, end - length : end] for row in range(2) for end in ends] for each in (tokens, after))
        F.cross_entropy(model(torch.stack(x)), torch.stack(y)).backward()
        optimizer.step()
    memory = Memory()
    warmup = SequenceWarmup("6ba", min_seq_length=3, step_size=3, truncate=truncate)
    with texts_trainer(algorithms=[warmup], loggers=[memory]) as made:
        made.fit()
    assert [length for _, length in memory.values("sequence_warmup/length")] == GROWING[truncate][:6]
    assert same(made.state.model.state_dict(), model.state_dict())


def test_mask_and_labels_are_cut_with_the_tokens_and_what_belongs_to_a_row_goes_to_each_piece():
    seen = []
    tokens, labels = texts(2, length=8)[0]
    mask = torch.ones(2, 8, dtype=torch.long).tril(5)
    batch = {"input_ids": tokens, "attention_mask": mask, "labels": labels, "source": ["a", "b"], "scale": 2.0}
    warmup = SequenceWarmup("1dur", min_seq_length=4, step_size=4)
    reading = acting(lambda event, state: seen.append(state.batch), "before_forward")
    with texts_trainer([batch], Masked(), loss_fn=None, max_duration="1ba", algorithms=[warmup, reading]) as made:
        made.fit()
    expected = {name: batch[name].view(4, 4) for name in ("input_ids", "attention_mask", "labels")}
    assert same(seen[0], {**expected, "source": ["a", "a", "b", "b"], "scale": 2.0})


def test_the_clock_counts_what_the_loader_gave_and_its_tokens_may_end_the_warmup():
    seen = []
    data = [{"input_ids": x, "labels": y} for x, y in texts(2, 2, 2, 2)]
    objective = Objective(F.cross_entropy, inputs="input_ids", targets="labels")
    given = {"loss_fn": None, "objective": objective, "max_duration": "288tok"}
    noting = at("before_forward", lambda state: seen.append(state.batch["input_ids"].shape[1]))
    warmup = SequenceWarmup("240tok", min_seq_length=6, step_size=6)
    with texts_trainer(data, algorithms=[warmup], callbacks=[noting], **given) as made:
        made.fit()
    assert seen == [6, 6, 12, 12, 12, 24]  # of 48 tokens each: 0, 1/5, 2/5 and so on of the warm-up
    assert made.state.timestamp[:4] == (1, 6, 12, 288)


def test_rows_of_several_lengths_grow_up_to_the_longest_that_is_said():
    seen, data = [], [*texts(1, 1, length=40), *texts(1, length=12), *texts(1, length=40)]
    warmup = SequenceWarmup("4ba", max_seq_length=24, truncate=True)
    with texts_trainer(data, max_duration="5ba", algorithms=[warmup], callbacks=[shapes_in(seen)]) as made:
        made.fit()
    assert seen == [(1, 8), (1, 8), (1, 12), (1, 16), (1, 40)]


def test_rows_are_chosen_before_they_are_cut():
    seen = []

    class FirstRow(Algorithm):
        metadata = AlgorithmMetadata(events=("after_dataloader",), writes=("batch",), tags=("batch_pruning",))

        def match(self, event, state):
            return True

        def apply(self, event, state, logger):
            seen.append(tuple(state.batch[0].shape))
            state.batch = state.batches.part(state.batch, slice(0, 1))

    warmup = SequenceWarmup("1dur", min_seq_length=6)
    with texts_trainer(max_duration="1ba", algorithms=[warmup, FirstRow()], callbacks=[shapes_in(seen)]) as made:
        made.fit()
    assert seen == [(2, 24), (4, 6)]


@given(st.floats(0, 1.5), st.floats(0, 1.5), st.integers(1, 300), st.integers(1, 300), st.integers(1, 40))
def test_lengths_grow_from_the_first_to_the_full_one_in_multiples_of_the_step(done, later, full, least, step):
    length = warmup_length(done, full, least, step)
    assert length in (least, full) or (length % step == 0 and least < length < full)
    assert length <= warmup_length(max(done, later), full, least, step)
    if done < 1 and full > least:  # the paper's line, rounded down
        line = least + (full - least) * done
        assert length == least or line - step < length <= line + 1e-6


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 6), st.data())
def test_pieces_hold_all_tokens_once_and_in_order(pieces, length, n, data):
    full, least = pieces * length, data.draw(st.sampled_from([d for d in range(1, length + 1) if length % d == 0]))
    cut = cut_length(length, full, least, step=length)
    assert cut == length
    batch = (torch.arange(n * full).view(n, full), torch.arange(n), torch.randn(n, full, 2))
    tokens, rows, vectors = cut_up(batch, (0, 2), cut, Batches())
    assert tokens.shape == (n * pieces, cut)
    assert torch.equal(tokens.flatten(), torch.arange(n * full))
    assert torch.equal(tokens // full, rows[:, None].expand_as(tokens))  # each piece keeps what its row had
    assert torch.equal(vectors.flatten(), batch[2].flatten())


TOKENS = torch.zeros(2, 8, dtype=torch.long)
IMAGES, CLASSES = torch.zeros(2, 8, 8, 8), torch.zeros(2, dtype=torch.long)


@dataclass
class Pair:
    tokens: torch.Tensor
    name: str = "train"


@pytest.mark.parametrize(
    ("batch", "objective", "keys"),
    [
        ((TOKENS, TOKENS, CLASSES), Objective(F.cross_entropy), (0, 1)),
        ((TOKENS, torch.zeros(2, 8, 3)), Objective(F.mse_loss), (0, 1)),
        (Pair(TOKENS), Objective(), ("tokens",)),
        ({"x": TOKENS, "y": TOKENS, "n": 3}, Objective(F.cross_entropy, inputs=("x",), targets="y"), ("x", "y")),
    ],
)
def test_what_is_certain_is_found(batch, objective, keys):
    assert guess_keys(objective, batch) == keys


@pytest.mark.parametrize(
    ("batch", "objective", "says"),
    [
        ((IMAGES, CLASSES), Objective(F.cross_entropy), r"finds no whole numbers \(n, length\) in what the model gets"),
        ((torch.zeros(2, 8), torch.zeros(2, 8)), Objective(F.mse_loss), "finds no whole numbers"),
        ((TOKENS, CLASSES), Objective(F.cross_entropy), r"tell whether to cut 1, a tensor \(2,\): .* keys=\[0\];"),
        (
            {"x": TOKENS, "mask": torch.ones(2, 8, 8)},
            Objective(),
            r"cut 'mask', a tensor \(2, 8, 8\): .* keys=\['x', 'mask'\];",
        ),
        ({"x": TOKENS, "places": torch.arange(8)[None]}, Objective(), r"'places', a tensor \(1, 8\): .* keys=\['x'\];"),
        ({"x": TOKENS, "y": [3, 4]}, Objective(F.cross_entropy, inputs="x", targets="y"), "'y', of type list"),
        (
            {"x": TOKENS, "y": TOKENS, "mask": TOKENS},
            Objective(F.cross_entropy, inputs="x", targets="y"),
            r"'mask', which is not given to the model: .*=\['x', 'y', 'mask'\]; what it does not name stays whole",
        ),
    ],
)
def test_what_could_be_meant_otherwise_is_refused_with_the_line_to_write(batch, objective, says):
    with pytest.raises(ArgumentError, match=says):
        guess_keys(objective, batch)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"duration": "0ba"}, ArgumentError, "duration has to be positive, not '0ba'"),
        ({"min_seq_length": 0}, ArgumentError, r"min_seq_length=0 has to be within \[1, inf\)"),
        ({"max_seq_length": 4}, ArgumentError, "max_seq_length=4 is below min_seq_length=8"),
        ({"step_size": 2.5}, ArgumentTypeError, "step_size=2.5 .* has to be a whole number"),
        ({"keys": "input_ids"}, ArgumentTypeError, r"keys='input_ids' has to be a list .*\['input_ids', 'labels'\]"),
        ({"keys": [1.5]}, ArgumentTypeError, "keys=1.5 has to be an index"),
    ],
)
def test_a_wrong_argument_is_refused(arguments, error, says):
    with pytest.raises(error, match=says):
        SequenceWarmup(**arguments)


@pytest.mark.parametrize(
    ("arguments", "settings", "says"),
    [
        (
            {"min_seq_length": 9},
            {},
            "rows of 24 tokens .* of min_seq_length=9 without a rest: set min_seq_length=8 or 12,",
        ),
        ({"min_seq_length": 24}, {}, "rows of 24 tokens are not longer than min_seq_length=24"),
        ({"keys": [0, 2]}, {}, "keys=2: a batch of type tuple"),
        ({"keys": [0, 1]}, {"data": [(TOKENS, CLASSES)]}, r"keys: 1 has the shape \(2,\), and 0 has \(2, 8\)"),
        ({"keys": [0, 1]}, {"data": [(TOKENS, ["a", "b"])]}, "keys: 1 is a list, not a tensor"),
        ({}, {"batches": Batches(dim={"": 1})}, r"Batches\(dim=.* has rows in another dimension"),
        ({}, {"batches": Batches(count=len, take=lambda b, r: b)}, "can't repeat .*: set truncate=True"),
    ],
)
def test_a_batch_that_can_not_be_cut_is_refused_before_training(arguments, settings, says):
    data = settings.pop("data", None)
    with texts_trainer(data, algorithms=[SequenceWarmup(**arguments)], **settings) as made:
        with pytest.raises((ArgumentError, ArgumentTypeError, BatchKeyError), match=says):
            made.fit()
        assert made.state.timestamp.batch == 0
