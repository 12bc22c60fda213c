"""The callback `confusion`: counts by hand, what it takes for classes, its files, and several ranks."""

import json
import xml.etree.ElementTree as ET

import pytest
import torch
from torch import nn

from engine_core import Logger, ModelLoss, State
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core_author import RecordingDestination, ThreadRanks
from insight_plugin import Confusion
from insight_plugin.matrix import as_svg


def logits(*classes, of=3):
    return nn.functional.one_hot(torch.tensor(classes), of).float()


def evaluated(*pieces, label="eval", objective=None, **given):
    """Return the files of an evaluation in which these were outputs and batch."""
    seen, confusion = RecordingDestination(), Confusion(**given)
    state = State(dataloader_label=label, objective=objective)
    logger = Logger([seen])
    confusion.init(state, logger)
    confusion.eval_start(state, logger)
    for state.outputs, state.batch in pieces:
        confusion.eval_batch_end(state, logger)
    confusion.eval_end(state, logger)
    return {name: str(content) for _, name, content in seen.files}


def counts(*pieces, **given):
    return json.loads(evaluated(*pieces, **given)["confusion-eval.json"])["counts"]


def test_rows_are_targets_and_columns_predictions_over_all_batches():
    pieces = [(logits(0, 1, 1), ("x", torch.tensor([0, 0, 1]))), (logits(2), ("x", torch.tensor([0])))]
    assert counts(*pieces) == [[1, 1, 1], [0, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [
        (logits(0, 2), torch.tensor([0, 1], dtype=torch.uint8)),
        ({"loss": torch.zeros(()), "logits": logits(0, 2)}, torch.tensor([0, 1])),
        ([torch.zeros(2, 7, 4), (logits(0, 2),)], torch.tensor([0, 1])),
        (logits(0, 2), logits(0, 1)),
        (logits(0, 2, 0, 1), torch.tensor([0, 1, -100, 3])),
        (logits(0, 2).T.reshape(1, 3, 2), torch.tensor([[0, 1]])),
    ],
    ids=["uint8", "mapping", "nested", "probabilities", "ignored", "a class per pixel"],
)
def test_outputs_and_targets_may_have_these_forms(outputs, targets):
    assert counts((outputs, ("x", targets))) == [[1, 0, 0], [0, 0, 1], [0, 0, 0]]


def test_targets_are_where_the_key_or_the_objective_says():
    batch = {"labels": torch.tensor([1])}
    assert counts((logits(1), batch), target_key="labels")[1] == [0, 1, 0]
    outputs = {"hidden": logits(2), "logits": logits(1)}
    assert counts((outputs, batch), objective=ModelLoss())[1] == [0, 1, 0]


@pytest.mark.parametrize(
    ("outputs", "batch", "given", "problem"),
    [
        (logits(1), {"labels": torch.tensor([1])}, {}, "no item 1"),
        (torch.zeros(2), ("x", torch.tensor([0, 1])), {}, r"shapes of the outputs are \(2,\), and the targets are"),
        (torch.zeros(2, 1), ("x", torch.tensor([0, 1])), {}, "of at least two classes"),
        (logits(1), ("x", ["cat"]), {}, "the targets are list"),
        (logits(1), ("x", torch.tensor([0.5])), {}, r"the targets are torch.float32 \(1,\)"),
        (logits(1), ("x", torch.tensor([[1.0, 0.0, 1.0]])), {}, "their rows are not shares of classes"),
        (logits(1, 2), ("x", torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])), {}, "several classes or none"),
        (logits(1), ("x", torch.tensor([[1, 0, 1]])), {}, r"the targets are torch.int64 \(1, 3\)"),
        (None, ("x", torch.tensor([1])), {}, "shapes of the outputs are none"),
        (torch.zeros(1, 1001), ("x", torch.tensor([1])), {}, "1,001 classes, and 1,000 are the most"),
        (logits(1), ("x", torch.tensor([1])), {"classes": ["a", "b"]}, "of 3 classes, but classes names 2"),
    ],
)
def test_what_is_not_of_classes_is_told_once_and_ends_no_run(outputs, batch, given, problem):
    with pytest.warns(UserWarning, match=rf"confusion can't count in the evaluation on 'eval'.*{problem}") as told:
        assert evaluated(*[(outputs, batch)] * 3, **given) == {}
    assert len(told) == 1


@pytest.mark.parametrize(
    ("given", "error", "problem"),
    [
        ({"classes": "ab"}, ArgumentTypeError, "has to be a list of names"),
        ({"classes": ["a"]}, ArgumentError, "has 1 names, and has to have 2 to 1,000"),
        ({"classes": ["a", "b", "a"]}, ArgumentError, "the name 'a' more than once"),
        ({"classes": ["a", "b" * 201]}, ArgumentError, "a name of 201 characters"),
        ({"target_key": 1.5}, ArgumentTypeError, "target_key=1.5"),
    ],
)
def test_wrong_arguments_are_refused_when_it_is_made(given, error, problem):
    with pytest.raises(error, match=problem):
        Confusion(**given)


def test_in_a_run_each_loader_has_its_files_at_the_step_of_its_results(run):
    data = [(torch.randn(8, 4), torch.arange(8) % 3)]
    trainer, seen = run(callbacks="confusion", eval_dataloader={"easy": data, "hard set": data * 2})
    assert [(step, name) for step, name, _ in seen.files] == [
        (step, f"confusion-{label}.{kind}")
        for step in (4, 8)
        for label in ("easy", "hard_set-d8d20d81")
        for kind in ("svg", "json")
    ]
    predicted = trainer.state.model.eval()(data[0][0]).argmax(1)
    expected = [[int(((data[0][1] == t) & (predicted == p)).sum()) for p in range(3)] for t in range(3)]
    assert json.loads(seen.files[-3][2])["counts"] == expected
    assert json.loads(seen.files[-1][2])["counts"] == [[2 * count for count in row] for row in expected]


def test_what_an_evaluation_that_was_cut_has_counted_does_not_count_in_the_next_one():
    seen, confusion, state = RecordingDestination(), Confusion(), State(dataloader_label="eval")
    for _ in range(2):
        confusion.eval_start(state, Logger([seen]))
        state.outputs, state.batch = logits(1), ("x", torch.tensor([1]))
        confusion.eval_batch_end(state, Logger([seen]))
    confusion.eval_end(state, Logger([seen]))
    assert json.loads(seen.files[1][2])["counts"][1] == [0, 1, 0]


def test_labels_that_look_alike_have_names_of_their_own():
    piece = (logits(1), ("x", torch.tensor([1])))
    names = {name for label in ("a b", "a:b", "a_b", "<" * 500) for name in evaluated(piece, label=label)}
    assert len(names) == 8 and max(map(len, names)) < 150


def test_the_rows_of_all_ranks_count_and_a_placeholder_does_not():
    def program(ranks):
        seen, confusion = RecordingDestination(), Confusion()
        state, logger = State(dataloader_label="eval", ranks=ranks), Logger([] if ranks.rank else [seen])
        confusion.eval_start(state, logger)
        for number in range(2):
            state.outputs, state.batch = logits(ranks.rank), ("x", torch.tensor([0]))
            state.is_placeholder = number == ranks.rank == 1
            confusion.eval_batch_end(state, logger)
        confusion.eval_end(state, logger)
        return [json.loads(content)["counts"] for _, name, content in seen.files if name.endswith(".json")]

    assert ThreadRanks.run(program) == [[[[2, 1, 0], [0, 0, 0], [0, 0, 0]]], []]


@pytest.mark.filterwarnings("ignore:confusion can't count:UserWarning")
def test_a_rank_that_cannot_count_leaves_no_other_waiting():
    def program(ranks):
        seen, confusion = RecordingDestination(), Confusion()
        state, logger = State(dataloader_label="eval", ranks=ranks), Logger([seen])
        for _ in range(2):
            confusion.eval_start(state, logger)
            state.outputs, state.batch = logits(1), ("x", "y") if ranks.rank else ("x", torch.tensor([1]))
            confusion.eval_batch_end(state, logger)
            confusion.eval_end(state, logger)
        return len(seen.files)

    assert ThreadRanks.run(program) == [0, 0]


def texts(svg):
    found = ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return [element.text or "" for element in found]


def test_the_picture_has_names_counts_and_a_shade_for_each_share():
    svg = as_svg(torch.tensor([[3, 1], [0, 0]]), ["cat", "dog"], "eval")
    assert texts(svg) == ["eval: 3 of 4 right (75.0%)", "predicted", "target", "cat", "cat", "dog", "dog", "3", "1"]
    cells = [r.get("fill") for r in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert cells == ["#466490", "#c1cbda", "#ffffff", "#ffffff"]


def test_of_many_classes_those_with_the_most_errors_are_drawn_in_their_order():
    table = torch.zeros(100, 100, dtype=torch.long)
    for number in range(25):
        table[4 * number, 4 * number] = 1_234_567
        table[4 * number, 4 * number + 1] = 100 + number  # both are mistaken, the one for the other
    shown = texts(as_svg(table, [f"c{number}" for number in range(100)], "eval"))
    assert shown[0].endswith("the 25 of 100 classes with the most errors")
    drawn = ["c48", *(f"c{4 * place + more}" for place in range(13, 25) for more in (0, 1))]
    assert shown[3:53:2] == drawn
    assert shown.count("1M") == 13


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "\x00\x1b&", "\ud800", "x" * 200])
def test_any_name_gives_a_picture_that_can_be_read(name):
    svg = as_svg(torch.eye(2, dtype=torch.long), [name, "b"], name)
    assert "<script" not in svg
    assert len(texts(svg)[3]) <= 16
    svg.encode()


def test_an_evaluation_in_which_nothing_counts_has_an_empty_picture_and_one_of_other_classes_none():
    pieces = [(logits(1, of=number), ("x", torch.tensor([-100]))) for number in (3, 4)]
    assert texts(evaluated(pieces[0])["confusion-eval.svg"])[0] == "eval: 0 of 0 right"
    with pytest.warns(UserWarning, match="of 4 classes, and those of the first batch were of others"):
        assert evaluated(*pieces) == {}
