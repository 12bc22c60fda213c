"""A loss and its arithmetic, and what an objective makes of a batch, a model and what they give."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Loss, ModelLoss, Objective
from engine_core.errors import ArgumentError, ArgumentTypeError

from .parts import Memory, at, batches, linear, rows, trainer


def loss(total, count, **parts):
    return Loss(torch.tensor(total), count, {name: torch.tensor(part) for name, part in parts.items()})


def numbers(each):
    count = each.count.item() if isinstance(each.count, torch.Tensor) else each.count
    return each.sum.item(), count, {name: part.item() for name, part in each.parts.items()}


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda: loss(6.0, 3, a=2.0) * 2, (12, 3, {"a": 4})),
        (lambda: torch.tensor(0.5) * loss(6.0, None), (3, None, {})),
        (lambda: loss(6.0, 3, a=2.0) / 2, (3, 3, {"a": 1})),
        (lambda: loss(6.0, 3, a=2.0) + 0.5 * loss(2.0, torch.tensor(3), b=4.0), (7, 3, {"a": 2, "b": 2})),
        (lambda: loss(1.0, None) + loss(2.0, None), (3, None, {})),
        (lambda: Loss.merged([loss(6.0, 3, a=1.0), loss(2.0, torch.tensor(1), a=2, b=3)]), (8, 4, {"a": 3, "b": 3})),
        (lambda: Loss.merged([loss(6.0, None), loss(2.0, None)]), (8, None, {})),
    ],
)
def test_losses_of_one_batch_are_added_and_scaled_and_those_of_parts_merged(made, expected):
    assert numbers(made()) == expected


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: loss(6.0, 3) + loss(2.0, 4), "losses that count 3 and 4 can't be added: give both one count"),
        (lambda: loss(6.0, 3) + loss(2.0, None), r"losses that count 3 and nothing \(sums\) can't be added"),
        (lambda: Loss.merged([loss(6.0, 3), loss(2.0, None)]), "one loss of a batch is a sum"),
        (lambda: Loss(torch.ones(2), 3), r"the sum of a Loss has shape \(2,\)"),
        (lambda: Loss(torch.tensor(1.0), torch.ones(2)), r"the count of a Loss has shape \(2,\); add it up"),
        (lambda: loss(1.0, -1), "the count of a Loss is -1; it has to be a number of at least 0, or None"),
        (lambda: Objective(count="row"), "count='row' is unknown; did you mean 'rows'"),
        (lambda: counted(lambda o, t: True), r"count\(outputs, targets\) returned .* not a number or a scalar tensor"),
        (lambda: Objective(inputs=1.5), r"inputs=1\.5 has to name items of the batch by index, key or attribute"),
        (lambda: trainer(objective=Objective()), "give loss_fn or objective: an objective has its own"),
        (lambda: trainer(loss_fn=None, objective=nn.MSELoss()), r"objective has to be an engine_core\.Objective"),
    ],
)
def test_what_cant_be_is_refused_with_the_line_to_write(made, message):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        made()


def in_parts(outputs, targets):
    return {"ce": F.cross_entropy(outputs, targets), "l2": outputs.square().mean()}


def logged(loss_fn, data=None, **settings):
    """Return what a step logs of its loss, and the gradient of the weights."""
    run = trainer(batches(8) if data is None else data, loss_fn=loss_fn, loggers=(memory := Memory()), **settings)
    run.fit()
    found = {name: value for name, value in memory.metrics[0][1].items() if name.startswith("train/loss")}
    return found, run.state.model.weight.grad


@pytest.mark.parametrize("size", [None, 3])
@pytest.mark.parametrize(
    ("returned", "total", "names"),
    [
        (lambda p: p, ("ce", "l2"), ["ce", "l2"]),
        (lambda p: (p["ce"], p["l2"]), ("ce", "l2"), ["0", "1"]),
        (lambda p: {**p, "entropy": p["l2"].detach()}, ("ce", "l2"), ["ce", "l2", "entropy"]),
        (lambda p: {**p, "total": p["ce"]}, ("ce",), ["ce", "l2"]),
        (lambda p: Loss(p["ce"], 1, {"mine": p["l2"]}), ("ce",), ["mine"]),
    ],
)
def test_parts_are_logged_and_their_total_trains_also_in_microbatches(returned, total, names, size):
    def loss_fn(outputs, targets):
        given = returned(in_parts(outputs, targets))
        return replace(given * len(outputs), count=len(outputs)) if isinstance(given, Loss) else given

    found, gradient = logged(loss_fn, microbatch_size=size)
    expected, expected_gradient = logged(lambda o, t: sum(in_parts(o, t)[name] for name in total))
    assert list(found) == ["train/loss", *(f"train/loss/{name}" for name in names)]
    assert found["train/loss"] == pytest.approx(expected["train/loss"])
    assert torch.allclose(gradient, expected_gradient, atol=1e-6)


@pytest.mark.parametrize("count", [5, 3, 2])
def test_a_part_that_is_always_the_sum_of_the_others_is_refused_as_a_total(count):
    """After three batches, or those of a shorter epoch."""

    def twice(outputs, targets):
        parts = in_parts(outputs, targets)
        return {**parts, "total_loss": parts["ce"] + parts["l2"]}

    run = trainer(batches(*[4] * count), loss_fn=twice)
    with pytest.raises(ArgumentError, match="part 'total_loss' of the loss is the sum of all other parts"):
        run.fit()
    assert run.state.timestamp.batch == 2


class Two(nn.Module):
    """Takes two inputs, the second by name or place."""

    def __init__(self):
        super().__init__()
        self.net = linear()

    def forward(self, x, scale, labels=None):
        return self.net(x) * scale


X, LABELS = rows(8)
SCALE = torch.arange(8.0)[:, None]


@pytest.mark.parametrize(
    ("batch", "items"),
    [
        ((X, SCALE, LABELS), {"inputs": (0, 1), "targets": 2}),
        ((X, SCALE, LABELS), {"inputs": "*", "targets": 2}),
        ({"x": X, "scale": SCALE, "labels": LABELS}, {"inputs": "**", "targets": "labels"}),
    ],
)
def test_inputs_and_targets_are_items_several_or_all_of_any_batch(batch, items):
    objective, model, metric = Objective(nn.CrossEntropyLoss(), **items), Two(), Accuracy()
    run = trainer([batch], model, loss_fn=None, objective=objective, eval_dataloader=[batch], metrics={"acc": metric})
    before = Two()(X, SCALE)
    assert run.eval()["eval/loss"] == pytest.approx(F.cross_entropy(before, LABELS).item())
    assert torch.equal(metric.outputs, before)
    assert metric.targets is LABELS
    run.fit()
    assert run.state.loss.item() == pytest.approx(F.cross_entropy(before, LABELS).item())


class Accuracy:
    """Keeps what it gets."""

    def reset(self): ...

    def update(self, outputs, targets):
        self.outputs, self.targets = outputs, targets

    def compute(self):
        return 0.5


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        ("rows", 8),
        ("elements", 24),
        ("sum", None),
        (lambda o, t: (t > 0).sum(), int((LABELS > 0).sum())),
        (lambda o, t: len(t), 8),
        (None, 8),
    ],
)
def counted(count):
    return Objective(lambda o, t: o.mean(), count=count).loss(None, linear()(X), (X, LABELS)).count


def test_what_a_scalar_counts_is_said_or_rows():
    counts = {"rows": 8, "elements": 24, "sum": None, None: 8, (lambda o, t: len(t)): 8}
    counts |= {(lambda o, t: (t > 0).sum()): int((LABELS > 0).sum())}
    assert {count: counted(count) for count in counts} == counts


def test_an_evaluation_has_the_loss_of_its_own_function_or_none():
    data, classes = [(X, F.one_hot(LABELS, 3).float())], [(X, LABELS), (X[:3], LABELS[:3])]

    class NoEvalLoss(Objective):
        def eval_loss(self, model, outputs, batch):
            return None

    def run(objective, **settings):
        return trainer(data, loss_fn=None, objective=objective, eval_dataloader=classes, **settings)

    of_classes, memory = nn.CrossEntropyLoss(ignore_index=1), Memory()
    made = run(Objective(nn.MSELoss(), eval_loss_fn=of_classes))
    joined = [torch.cat(items) for items in zip(*classes, strict=True)]
    assert made.eval()["eval/loss"] == pytest.approx(of_classes(linear()(joined[0]), joined[1]).item())
    made.fit()
    made = run(NoEvalLoss(nn.MSELoss()), loggers=memory)
    made.fit()
    assert (made.state.metrics, memory.values("eval/loss")) == ({}, [])


class Nano(Two):
    """Gives (logits, loss), as nanoGPT does."""

    def forward(self, x, labels=None):
        logits = self.net(x)
        return logits, None if labels is None else F.cross_entropy(logits, labels)


class Hugging(Two):
    """Gives an object with a loss and logits."""

    def forward(self, x, labels=None):
        logits, loss = Nano.forward(self, x, labels)
        return SimpleNamespace(logits=logits, loss=loss)


@pytest.mark.parametrize(
    ("model", "batch", "objective", "size"),
    [
        (Nano, (X, LABELS), ModelLoss(loss=1, outputs=0, targets=1, inputs="*"), None),
        (Hugging, {"x": X, "labels": LABELS}, ModelLoss(), 3),
    ],
)
def test_a_loss_that_forward_computes_trains_and_metrics_get_its_outputs(model, batch, objective, size):
    metric, plain = Accuracy(), trainer([(X, LABELS)], eval_dataloader=[(X, LABELS)])
    settings = {"loss_fn": None, "objective": objective, "metrics": {"acc": metric}, "microbatch_size": size}
    run = trainer([batch], model(), eval_dataloader=[batch], **settings)
    for each in (run, plain):
        each.fit()
    torch.testing.assert_close(run.state.model.net.weight, plain.state.model.weight)
    assert run.state.metrics["eval/loss"] == pytest.approx(plain.state.metrics["eval/loss"])
    assert metric.outputs.shape == (8, 3)
    assert metric.targets is LABELS


def test_a_forward_without_a_loss_says_what_it_needs():
    run = trainer([{"x": X}], Hugging(), loss_fn=None, objective=ModelLoss())
    with pytest.raises(ArgumentError, match=r"found no loss in the outputs of Hugging \(it is None\): give the batch"):
        run.fit()


@pytest.mark.parametrize("size", [None, 3])
def test_any_method_may_be_ones_own_and_call_that_of_the_base(size):
    class Own(Objective):
        def forward(self, model, batch):
            return 2 * super().forward(model, batch)

        def loss(self, model, outputs, batch):
            return 3 * super().loss(model, outputs, batch)

        def eval_loss(self, model, outputs, batch):
            return 5 * super().loss(model, outputs, batch)

        def for_metrics(self, outputs, batch):
            return outputs.argmax(1), "targets"

    class OwnGiven(Objective):
        def given(self, model, outputs, batch):
            return super().given(model, 2 * outputs, batch) * 3

    found = {}
    for kind in (Own, OwnGiven):
        metric, seen = Accuracy(), []
        note = at("after_loss", lambda state, seen=seen: seen.append(type(state.loss)))
        settings = {"objective": kind(F.cross_entropy), "metrics": {"acc": metric}, "microbatch_size": size}
        run = trainer([(X, LABELS)], loss_fn=None, eval_dataloader=[(X, LABELS)], callbacks=note, **settings)
        before = run.eval()["eval/loss"]
        run.fit()
        found[kind] = before, run.state.model.weight, metric, seen[0]
    expected = F.cross_entropy(2 * linear()(X), LABELS).item()
    assert (found[Own][0], found[OwnGiven][0]) == (pytest.approx(5 * expected), pytest.approx(3 * expected))
    assert torch.allclose(found[Own][1], found[OwnGiven][1])
    assert found[Own][2].targets == "targets"
    assert (found[Own][3], found[OwnGiven][3]) == (Loss, torch.Tensor)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(found[Own][1], linear().weight)
