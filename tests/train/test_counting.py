"""What the clock counts of a batch, and what a run does where its rows or tokens can't be counted."""

import re
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from engine_core import Batches, State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import ArgumentError, ArgumentTypeError, UncountedRowsWarning
from engine_core.loop import Loop, make_loop
from engine_core.needs import EVERYTHING
from engine_core.trainer.feed import deal
from engine_core_author import ThreadRanks

from .parts import at, batches, trainer


class Graph:
    """An object of the user's own."""

    def __init__(self, nodes):
        self.x = torch.ones(nodes, 4)


class Net(nn.Linear):
    """A model of graphs with a loss of its own."""

    def forward(self, graph):
        return super().forward(graph.x)

    def loss(self, outputs, graph):
        return outputs.mean()


def of_graphs(**settings):
    return trainer([Graph(3), Graph(2)], Net(4, 1), loss_fn=None, **settings)


def test_a_plain_loop_trains_on_what_has_no_rows_and_says_once_what_to_write():
    says = (
        r"can't be counted, so the clock counts no samples for it, and it counts 1 in each mean over batches: the rows "
        r"of a batch of type Graph can't be counted: say Batches\(count=..., take=...\)"
    )
    made = of_graphs(max_duration="2ep")
    with pytest.warns(UncountedRowsWarning, match=says) as caught:
        made.fit()
    assert len(caught) == 1
    assert made.state.timestamp[:3] == (2, 4, 0)


NEEDS_ROWS = [
    ({"microbatch_size": 2}, ""),
    ({"max_duration": "9sp"}, "max_duration='9sp' is in rows, and "),
    ({"eval_interval": "9sp"}, "eval_interval='9sp' is in rows, and "),
    ({"schedulers": (partial(StepLR, step_size=1), "9sp")}, "StepLR's interval='9sp' is in rows, and "),
    ({"callbacks": partial(CheckpointSaver, "unused", "9sp")}, "CheckpointSaver's interval='9sp' is in rows, and "),
]


@pytest.mark.parametrize(("settings", "named"), NEEDS_ROWS, ids=[named for _, named in NEEDS_ROWS])
def test_what_needs_rows_is_refused_before_the_first_step(settings, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    steps = []
    if "callbacks" in settings:
        settings = {"callbacks": settings["callbacks"]()}  # here, since it takes the folder that it is made in
    made = of_graphs(**settings)
    made.state.callbacks.append(at("before_forward", lambda _: steps.append(1)))
    with pytest.raises(ArgumentError, match=f"^{re.escape(named)}the rows of a batch of type Graph can't be counted"):
        made.fit()
    with pytest.raises(ArgumentError, match=r"^fit's duration='9sp' is in rows, and the rows of"):
        of_graphs(max_duration="9ep").fit("9sp")
    assert steps == []


def test_tokens_are_counted_and_end_a_training():
    seen = []
    lengths = {"max_duration": "100tok", "eval_interval": "40tok"}
    note = at("eval_end", lambda state: seen.append(state.timestamp.token))
    count = Batches(tokens=lambda batch: batch[0].numel())
    made = trainer(batches(8, 8, 4), eval_dataloader=batches(3), callbacks=note, batches=count, **lengths)
    made.fit()
    assert made.state.timestamp[:4] == (1, 4, 28, 112)
    assert made.state.timestamp.token_in_epoch == 32
    assert seen == [64, 80, 112]


@pytest.mark.parametrize("name", ["max_duration", "eval_interval"])
def test_a_length_in_tokens_that_nothing_counts_is_refused_before_the_first_step(name):
    steps = []
    made = trainer(callbacks=at("before_forward", lambda _: steps.append(1)), **{name: "9tok"})
    says = f"{name}='9tok' is in tokens, and nothing counts those of a batch of type tuple: say Batches\\(tokens="
    with pytest.raises(ArgumentError, match=says):
        made.fit()
    assert steps == []


def test_a_loop_of_ones_own_counts_what_the_loader_gave():
    loop = make_loop(EVERYTHING, batches=Batches(tokens=len, count=len))
    loop.fit_start()
    assert loop.take("moved", ["loaded", "batch"]) == "moved"
    assert (loop.samples, loop.tokens) == (2, 2)
    loop.undo_step(RuntimeError())
    assert (loop.samples, loop.tokens) == (0, 0)
    loop.take("batch")
    loop.end_step(samples=7, tokens=9)
    assert loop.state.timestamp[1:4] == (1, 7, 9)
    loop.take("batch")
    loop.end_step()
    assert loop.state.timestamp[1:4] == (2, 12, 14)


def test_a_placeholder_has_no_tokens_and_no_device_is_waited_for():
    loop = make_loop(EVERYTHING, is_placeholder=True, batches=Batches(tokens=len))
    loop.begin_fit()
    loop.take((torch.zeros(3), torch.zeros(3)))
    assert loop.tokens == 0
    loop = make_loop(EVERYTHING)
    loop.begin_fit()
    on_device, here = ({"attention_mask": torch.ones(2, 3, device=device)} for device in ("meta", "cpu"))
    loop.take(on_device)
    assert loop.tokens == 0
    loop.take(on_device, here)
    assert loop.tokens == 6


def test_an_evaluation_goes_on_without_rows():
    state = State(dataloader_label="eval")
    loader = [Graph(3), (torch.zeros(2), torch.zeros(2))]
    assert [rows for _, rows in deal(loader, state, torch.device("cpu"), is_local=False)] == [0, 2]
    seen = []
    loop = Loop(state, EVERYTHING)
    state.callbacks.append(at("eval_batch_end", lambda state: seen.append(state.eval_timestamp.sample)))
    loop.eval_start("eval")
    for batch in (Graph(3), torch.zeros(2)):
        loop.eval_batch(batch)
        loop.eval_batch_end()
    assert seen == [0, 2]


def test_the_ranks_deal_rows_as_the_run_says_what_they_are():
    images = [torch.full((row + 1, 2), float(row)) for row in range(4)]

    def program(ranks):
        rule = Batches(per_row=(0,), dim={1: 1})
        State(ranks=ranks, batches=rule)
        own = slice(2 * ranks.rank, 2 * ranks.rank + 2)
        counts, deal = ranks.parts((images[own], torch.arange(8).view(2, 4)[:, own]), 2)
        (chosen, places), is_placeholder = deal(torch.tensor([0, 1]))
        return counts, [len(image) for image in chosen], places.tolist(), is_placeholder

    assert ThreadRanks.run(program) == [([2, 2], [1, 2], [[0, 1], [4, 5]], False), ([2, 2], [3], [[2], [6]], True)]


def test_what_is_no_rule_is_refused():
    for make in (trainer, partial(make_loop, EVERYTHING)):
        with pytest.raises(ArgumentTypeError, match=r"such as engine_core.Batches\(shared=\('x',\)\), not \{'shared'"):
            make(batches={"shared": "x"})
