"""The callback `model_summary`: what it lists of any model, and that it leaves nothing behind."""

import json
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.modules import module as of_torch

from engine_core import Logger, State
from engine_core.logger import MOST_FILE_BYTES
from engine_core_author import RecordingDestination
from insight_plugin import ModelSummary


def files_of(model, *given):
    """Return the files that one forward pass leaves."""
    seen, summary, state = RecordingDestination(), ModelSummary(), State(model=model)
    logger = Logger([seen])
    summary.init(state, logger)
    summary.fit_start(state, logger)
    summary.before_forward(state, logger)
    state.outputs = model(*given)
    summary.after_forward(state, logger)
    assert not of_torch._global_forward_hooks
    return {name: str(content) for _, name, content in seen.files}


def rows_of(model, *given):
    modules = json.loads(files_of(model, *given)["model_summary.json"])["modules"]
    return {row.pop("name"): row for row in modules}


def row(kind, output, calls, parameters, trainable, **more):
    given = {"output": output, "calls": calls, "parameters": parameters, "trainable": trainable}
    return {"type": kind, **given, "uninitialized": False, **more}


def test_in_a_run_it_is_logged_once_at_the_first_batch(run):
    trainer, seen = run(callbacks=ModelSummary())
    assert [(step, name) for step, name, _ in seen.files] == [(0, "model_summary.txt"), (0, "model_summary.json")]
    assert seen.files[0][2].splitlines() == [
        "module   type         output  calls  parameters  trainable",
        "(model)  Sequential   [8, 3]      1          63         63",
        "  0      Linear       [8, 6]      1          30         30",
        "  1      BatchNorm1d  [8, 6]      1          12         12",
        "  2      ReLU         [8, 6]      1           0          0",
        "  3      Dropout      [8, 6]      1           0          0",
        "  4      Linear       [8, 3]      1          21         21",
    ]
    assert trainer.state.timestamp.batch == 8


@pytest.mark.filterwarnings("ignore:BatchNorm .* each microbatch:UserWarning")
def test_of_microbatches_the_first_one_is_seen(run):
    _, seen = run(callbacks=ModelSummary(), microbatch_size=3)
    assert json.loads(seen.files[1][2])["modules"][0]["output"] == "[3, 3]"


class Twice(nn.Module):
    """Calls one module twice, which is in two places, then for less rows, and one never; two layers share a weight."""

    def __init__(self):
        super().__init__()
        self.a = self.b = nn.Linear(2, 2, bias=False)
        self.tied = nn.Linear(2, 2)
        self.tied.weight = self.a.weight
        self.idle = nn.Linear(1, 5).requires_grad_(requires_grad=False)

    def forward(self, inputs):
        return self.tied(self.b(self.a(inputs)[:1]))


def test_what_is_shared_is_listed_and_counted_once_with_its_first_output():
    assert rows_of(Twice(), torch.zeros(3, 2)) == {
        "(model)": row("Twice", "[1, 2]", 1, 16, 6),
        "a": row("Linear", "[3, 2]", 2, 4, 4),
        "tied": row("Linear", "[1, 2]", 1, 6, 6),
        "idle": row("Linear", None, 0, 10, 0),
    }


def test_a_lazy_layer_is_counted_once_it_has_run():
    model = nn.ModuleDict({"runs": nn.LazyLinear(2), "idles": nn.LazyLinear(2)})
    model.forward = model["runs"].__call__
    files = files_of(model, torch.zeros(4, 3))
    assert files["model_summary.txt"].splitlines()[1:] == [
        "(model)  ModuleDict  [4, 2]          1  8 + uninitialized          8",
        "  runs   Linear      [4, 2]          1                  8          8",
        "  idles  LazyLinear  not called      0  0 + uninitialized          0",
    ]


class Returns(nn.Module):
    """Returns what it was made with."""

    def __init__(self, output):
        super().__init__()
        self.output = output

    def forward(self):
        return self.output


CYCLE = []
CYCLE.append(CYCLE)
ROW = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (ROW, "[2, 3]"),
        ([ROW, (ROW, None)], '[[2, 3], [[2, 3], "NoneType"]]'),
        (OrderedDict(logits=ROW, loss=torch.zeros(())), '{"logits": [2, 3], "loss": []}'),
        ({"a\x1b": 3, 4: "text"}, '{"a\\u001b": "int", "4": "str"}'),
        (CYCLE, '[[[["list"]]]]'),
        (torch.eye(3).to_sparse(), "[3, 3]"),
        ([ROW] * 50, f"[{'[2, 3], ' * 12}..."),
        (torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged), '"NestedTensor"'),
    ],
)
def test_outputs_of_any_form_are_shown_by_their_shapes(output, shown):
    assert rows_of(Returns(output))["(model)"]["output"] == shown


@pytest.mark.parametrize("name", ["\x1b[31mred", "two\nlines", "\ud800", "n" * 5000])
def test_names_can_neither_break_the_table_nor_a_terminal(name):
    model = nn.Sequential(OrderedDict([(name, nn.Linear(1, 1))]))
    files = files_of(model, torch.zeros(1, 1))
    text = files["model_summary.txt"]
    assert len(text.splitlines()) == 3 and text.replace("\n", "").isprintable()
    assert max(map(len, text.splitlines())) < 180
    assert files["model_summary.json"].encode()


def test_of_a_huge_model_the_first_2000_modules_are_listed():
    names = [("\x00" * 500) + str(number) for number in range(2010)]
    model = nn.Sequential(OrderedDict((name, nn.Identity()) for name in names))
    files = files_of(model, torch.zeros(1))
    assert len(json.loads(files["model_summary.json"])["modules"]) == 2000
    assert json.loads(files["model_summary.json"])["left_out"] == 11
    assert files["model_summary.txt"].splitlines()[-1] == "and 11 modules more"
    assert max(len(content.encode()) for content in files.values()) < MOST_FILE_BYTES / 4


def encoder():
    torch.manual_seed(0)
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1).eval()


def test_a_layer_that_is_frozen_in_eval_mode_keeps_its_fast_path():
    model, inputs = encoder(), torch.randn(2, 5, 8)
    with torch.no_grad():
        rows = rows_of(model, inputs)
    assert (rows["layers.0"]["output"], rows["layers.0.linear1"]["calls"]) == ("[2, 5, 8]", 0)
    assert rows_of(model, inputs)["layers.0.linear1"]["calls"] == 1  # with gradients there is none


@pytest.mark.full  # it compiles
def test_of_a_compiled_model_only_the_parameters_are_known():
    in_place = nn.Linear(2, 2)
    in_place.compile(backend="eager")
    for model in (in_place, torch.compile(nn.Linear(2, 2), backend="eager")):
        lines = files_of(model, torch.zeros(3, 2))["model_summary.txt"].splitlines()[1:]
        assert [line.split()[2:] for line in lines] == [["?", "?", "6", "6"]] * len(lines)


def test_a_first_forward_that_raises_leaves_no_hook_behind_after_the_next_start_or_the_end():
    def started():
        summary, state = ModelSummary(), State(model=nn.Linear(1, 1))
        summary.before_forward(state, Logger([RecordingDestination()]))
        assert of_torch._global_forward_hooks
        return summary, state

    ends = [
        lambda summary, state: summary.fit_start(state, Logger()),
        lambda summary, state: summary.close(state, Logger()),
    ]
    for end in ends:
        end(*started())
        assert not of_torch._global_forward_hooks


def test_without_loggers_nothing_is_watched():
    summary = ModelSummary()
    summary.before_forward(State(model=nn.Linear(1, 1)), Logger())
    assert not of_torch._global_forward_hooks
