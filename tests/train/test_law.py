"""The law that losses of parts add up: what it finds, where it is silent, when it is measured, and no trace of it."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Loss, Objective
from engine_core.errors import ObjectiveError
from engine_core_author import ThreadRanks

from .parts import EVENTS, batches, linear, net, rows, trainer, writing_down


def by_tokens(outputs, targets):
    """Is a mean over the targets that are not class 1."""
    return F.cross_entropy(outputs, targets, ignore_index=1)


def by_rows(outputs, targets):
    return F.cross_entropy(outputs, targets)


def of_squares(outputs, targets):
    """Is a mean over rows, with its own name."""
    return (outputs - F.one_hot(targets, 3)).square().mean()


ADDS_NOTHING = "so parts don't add up to the batch: return engine_core.Loss"
BROKEN = {
    "mean of tokens": ({"loss_fn": by_tokens}, ADDS_NOTHING),
    "pairs of rows, as (8, 1) and (8,) are broadcast": (
        {"loss_fn": nn.MSELoss(), "data": [(torch.randn(8, 4), torch.randn(8))], "model": lambda: nn.Linear(4, 1)},
        ADDS_NOTHING,
    ),
    "negatives of the batch": ({"loss_fn": lambda o, t: F.cross_entropy(o @ o.T, torch.arange(len(o)))}, ADDS_NOTHING),
    "a sum by hand": (
        {"loss_fn": lambda o, t: F.cross_entropy(o, t, reduction="sum")},
        'say Objective(loss_fn, count="sum")',
    ),
    "over the batch": ({"loss_fn": lambda o, t: F.cross_entropy(o, t) + o.var(0).mean()}, ADDS_NOTHING),
    "a mean called a sum": ({"objective": Objective(of_squares, count="sum")}, 'say Objective(loss_fn, count="rows")'),
    "a wrong count": ({"objective": Objective(by_tokens, count="elements")}, ADDS_NOTHING),
    "NaN in a half": ({"loss_fn": lambda o, t: (o[:, 0] * (o[:, 0] > o[:, 0].mean()) / (len(o) == 8)).mean()}, "nan"),
}


def made(data=None, model=linear, **settings):
    if "objective" in settings:
        settings["loss_fn"] = None
    return trainer(batches(8) if data is None else data, model(), **{"microbatch_size": 4, **settings})


@pytest.mark.filterwarnings("ignore:Using a target size")  # torch warns of the pairs, and computes them
@pytest.mark.parametrize("name", BROKEN)
def test_it_finds_what_does_not_add_up_before_the_step(name):
    settings, remedy = BROKEN[name]
    run = made(**settings)
    before = [p.clone() for p in run.state.model.parameters()]
    with pytest.raises(ObjectiveError) as error:
        run.fit()
    assert remedy in str(error.value)
    assert str(error.value).endswith("it can't be trained in microbatches. Objective(check=False) switches this off")
    assert all(map(torch.equal, before, run.state.model.parameters()))


class OfRows(nn.Linear):
    """Gives its inputs to `look` first."""

    def __init__(self, look):
        super().__init__(4, 3)
        self.look = look

    def forward(self, inputs):
        return super().forward(inputs) * self.look(inputs)


def refuse_few(inputs):
    if len(inputs) < 8:
        raise ValueError(len(inputs))
    return 1


def draw(*_):
    return torch.rand(()) + random.random() + np.random.rand()


KEPT = {
    "dropout and BatchNorm": {"model": lambda: net(0.5)},
    "random outputs": {"model": lambda: OfRows(draw)},  # in eval mode too
    "a sum": {"objective": Objective(lambda o, t: F.cross_entropy(o, t, reduction="sum"), count="sum")},
    "tokens that are counted": {"objective": Objective(by_tokens, count=lambda _, t: (t != 1).sum())},
    "a Loss": {"loss_fn": lambda o, t: Loss(by_tokens(o, t) * (t != 1).sum(), (t != 1).sum())},
    "parts": {"loss_fn": lambda o, t: {"ce": F.cross_entropy(o, t), "l2": o.square().mean()}},
    "and weights": {"loss_fn": lambda o, t: (F.cross_entropy(o, t), 0 * o.sum() + 1)},
    "a loss in float64": {"loss_fn": lambda o, t: F.cross_entropy(o.double(), t)},
    "amp_bf16": {"precision": "amp_bf16"},
    "a model of eight rows": {"model": lambda: OfRows(refuse_few), "data": batches(16), "microbatch_size": 8},
    "one row": {"data": batches(1), "microbatch_size": 1, "loss_fn": by_tokens},
    "NaN": {"loss_fn": lambda o, t: o.mean() * float("nan")},
    "switched off": {"objective": Objective(by_tokens, check=False)},
}


@pytest.mark.filterwarnings("ignore:.*BatchNorm:UserWarning", "ignore:the training loss is nan")
@pytest.mark.parametrize("name", KEPT)
def test_it_is_silent_in_training_and_in_evaluations(name):
    settings = {"loss_fn": by_rows, "data": batches(8), **KEPT[name]}
    run = made(**settings, eval_dataloader=settings["data"] * 2, max_duration="2ep")
    run.fit()
    assert run._session.measured == (0 if name in ("switched off", "one row") else 2)


def test_a_compiled_model_is_not_compiled_again_for_a_few_rows():
    graphs, counts = [], []

    def backend(graph, inputs):
        graphs.append(1)
        return graph.forward

    for check in (False, True):
        graphs.clear()
        torch._dynamo.reset()
        compiled = torch.compile(linear(), backend=backend, dynamic=False)
        made(batches(8, 8), lambda compiled=compiled: compiled, objective=Objective(of_squares, check=check)).fit()
        counts.append(len(graphs))
    assert counts[0] == counts[1] > 0


class Marks(nn.Module):
    """Changes all that a forward can."""

    def __init__(self):
        super().__init__()
        self.net, self.still = nn.Linear(4, 3), nn.Dropout(0.5).eval()
        self.net.weight.grad, self.net.bias.requires_grad = torch.ones(3, 4), False
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(()))

    def forward(self, inputs):
        self.seen += 1
        self.replaced = self.replaced + 1
        torch.rand(1), random.random(), np.random.rand()
        return self.net(inputs)


def traces(model):
    return [
        *(buffer.item() for buffer in model.buffers()),
        *(module.training for module in model.modules()),
        *((p.requires_grad, None if p.grad is None else p.grad.sum().item()) for p in model.parameters()),
        (torch.rand(1).item(), random.random(), np.random.rand()),
        torch.is_grad_enabled(),
    ]


def test_it_leaves_no_trace():
    found = []
    for check in (False, True):
        torch.manual_seed(0), random.seed(0), np.random.seed(0)
        heard, objective = [], Objective(of_squares, check=check)
        run = made(model=Marks, objective=objective, callbacks=writing_down(heard, EVENTS), seed=0)
        run._session.check_law(batches(8)[0])
        assert run._session.measured == check
        found.append(traces(run.state.model))
        assert heard == ["init"]
    assert found[0] == found[1]


def test_it_is_measured_at_the_first_and_then_ever_more_rarely_batches_of_several_parts():
    at = []

    class Notes(Objective):
        def loss(self, model, outputs, batch):
            if not model.training:
                at.append(run.state.timestamp.batch)
            return super().loss(model, outputs, batch)

    run = made(batches(4, 8), objective=Notes(F.cross_entropy), max_duration="201ba", microbatch_size=4)
    run.fit()
    assert sorted({*at}) == [1, 19, 199]
    assert len(at) == 3 * 3


def test_an_evaluation_warns_once_for_each_loader_at_its_second_batch_and_marks_the_result():
    loaders = {"one": batches(8), "two": batches(8, 8), "other": batches(8, 4)}
    run = trainer(loss_fn=by_tokens, eval_dataloader=loaders)
    with pytest.warns(UserWarning, match="approximate") as told:
        run.eval()
    assert [str(each.message).split()[0] for each in told] == ["two/loss", "other/loss"]
    run.eval()  # silent
    written = run.state.results.to_json()
    assert [name for name, entry in written.items() if entry.get("approximate")] == ["two/loss", "other/loss"]
    for loss_fn in (nn.CrossEntropyLoss(ignore_index=1), of_squares):  # certain, and true
        run = trainer(eval_dataloader=batches(8, 8, 3), loss_fn=loss_fn)
        run.eval()
        assert run.state.results.approximate == set()


def test_all_ranks_raise_at_the_same_batch_though_one_alone_finds_it():
    def program(ranks):
        inputs, targets = rows(16)
        targets[8:] = 0  # of rank 1: its rows add up
        run = trainer([(inputs, targets)], loss_fn=by_tokens, parallel=ranks)
        with pytest.raises(ObjectiveError) as error:
            run.fit()
        return str(error.value), torch.equal(run.state.model.weight, linear().weight)

    (first, same), (second, also) = ThreadRanks.run(program)
    assert first.startswith("by_tokens gives")
    assert "it can't be trained on several ranks" in first
    assert second.startswith("another rank found that its loss does not add up; until then it can't be trained")
    assert same and also
