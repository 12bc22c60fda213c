"""Slips that a user makes get a sentence where torch's own text names no cause."""

import warnings

import pytest
import torch
from torch import nn

from engine_core import Logger
from engine_core.errors import ArgumentError, ArgumentTypeError, EngineError
from engine_core_author import RecordingDestination

from .parts import acting, batches, linear, trainer


def notes_of(error):
    return [note for note in getattr(error, "__notes__", ()) if not note.startswith("in this batch ran")]


X, Y = torch.randn(8, 4), torch.arange(8) % 3
OWN_LOSS = "give the model a method loss(outputs, batch) in place of loss_fn"


class Labelled(nn.Linear):
    def forward(self, x):
        return {"logits": super().forward(x), "hidden": x}


class OfWholeBatch(nn.Linear):
    def forward(self, batch):
        return super().forward(batch["x"])

    def loss(self, outputs, batch):
        return outputs.square().mean()


def three(first):
    return (
        f"of the 3 items of the batch the model gets item 0, a Tensor of shape {first}, and the loss item 1, a Tensor "
        "of shape (8, 4); the others are for algorithms. For several inputs say "
        "Trainer(objective=engine_core.Objective(loss_fn, inputs=(0, 1), targets=2))"
    )


def arrays(which):
    return (
        f"the batch has NumPy arrays ({which}), and torch takes tensors: convert them in the dataset with "
        "torch.as_tensor, or use a DataLoader, which does"
    )


OUTPUTS = (
    "the model returned a dict with the keys 'logits' and 'hidden', and loss_fn gets that as it is: return the tensor, "
    f"take it out in loss_fn, or {OWN_LOSS}"
)
SLIPS = {
    "three parts, the second an input": ((X, X, Y), linear(), [three("(8, 4)")]),
    "three parts, and the forward fails": ((X[:, :3], X, Y), linear(), [three("(8, 3)")]),
    "arrays": ((X.numpy(), Y.numpy()), linear(), [arrays("items 0 and 1")]),
    "an array by name": ({"x": X.numpy()}, OfWholeBatch(4, 3), [arrays("item 'x'")]),
    "a dict of outputs": ((X, Y), Labelled(4, 3), [OUTPUTS]),
    "another failure": ((X[:, :3], Y), linear(), []),
}


@pytest.mark.parametrize("evaluates", [False, True], ids=["in training", "in evaluation"])
@pytest.mark.parametrize("slip", SLIPS)
def test_what_model_or_loss_raises_gets_a_note_of_the_slip(slip, evaluates):
    batch, model, expected = SLIPS[slip]
    loss = {"loss_fn": None} if hasattr(model, "loss") else {}
    with trainer([batch], model, **loss) as made, pytest.raises((RuntimeError, TypeError)) as error:
        made.eval([batch]) if evaluates else made.fit()
    assert notes_of(error.value) == expected


@pytest.mark.parametrize("returned", [torch.zeros(2, 3), (X, Y, Y)], ids=type)
def test_an_eval_forward_without_targets_is_told_what_to_return(returned):
    model = OfWholeBatch(4, 3)
    model.eval_forward = lambda batch, outputs=None: returned
    kind = type(returned).__name__
    message = rf"eval_forward of OfWholeBatch returned a {kind}; it has to return \(outputs, targets\)"
    with trainer([{"x": X}], model, loss_fn=None) as made, pytest.raises(ArgumentTypeError, match=message):
        made.eval([{"x": X}])


class Measures:
    """Computes what it is told, once it has seen enough."""

    def __init__(self, value, batches=1, *, warns=False):
        self.value, self.batches, self.warns, self.seen = value, batches, warns, 0

    def reset(self):
        self.seen = 0

    def update(self, outputs, targets):
        self.seen += 1

    def compute(self):
        if self.seen >= self.batches:
            return self.value
        if not self.warns:
            raise ValueError
        warnings.warn("too few", stacklevel=2)
        return torch.zeros(2)


def test_a_metric_that_gives_a_matrix_is_refused_at_its_first_evaluation_batch():
    metric = Measures(torch.zeros(3, 3))
    made = trainer(eval_dataloader=batches(8, 8, 8), metrics={"cm": metric})
    says = r"^metric 'eval/cm' computed a Tensor of shape \(3, 3\); it has to be one number, or a mapping of them"
    with made, pytest.raises(ArgumentError, match=says):
        made.fit()
    assert metric.seen == 1


@pytest.mark.filterwarnings("ignore:too few")
@pytest.mark.parametrize("metric", [Measures(1.0, 2), Measures(1.0, 2, warns=True), Measures({"a": 1})])
def test_a_metric_that_needs_more_batches_or_warns_is_not_judged_by_the_first(metric):
    with trainer(eval_dataloader=batches(8, 8, 8), metrics={"m": metric}) as made:
        made.fit()
    assert made.state.metrics.keys() & {"eval/m", "eval/m/a"}


def test_writing_into_a_batch_that_the_next_one_replaces_is_refused():
    def write(event, state):
        if state.timestamp.batch == 1:
            state.batch_set_item(0, state.batch_get_item(0) * 2)

    refusal = r"item 0 of the batch can't be set at BEFORE_DATALOADER.*AFTER_DATALOADER"
    with trainer(algorithms=[acting(write, "before_dataloader", writes=("batch",))]) as made:
        with pytest.raises(EngineError, match=refusal):
            made.fit()
        made.state.batch_set_item(0, X)  # it was said once, and later writes are not affected


@pytest.mark.parametrize("destinations", [[], [RecordingDestination()]], ids=["no destination", "one"])
@pytest.mark.parametrize("values", [3, None, "loss", [("loss", 0.5)]])
def test_what_is_logged_has_to_have_names(values, destinations):
    logger = Logger(destinations)
    for log in (logger.log_metrics, logger.log_hyperparameters):
        with pytest.raises(ArgumentTypeError, match=r"takes values by name, as in \{'loss': 0.5\}, not "):
            log(values)
