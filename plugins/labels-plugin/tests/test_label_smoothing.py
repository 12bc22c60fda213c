"""LabelSmoothing in an engine and in trainings: what the loss gets, which losses take it, the batch afterwards."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Algorithm, AlgorithmMetadata, Engine, Event, Logger, ModelLoss, Objective, State, Trainer
from engine_core.errors import ArgumentError, EngineError
from labels_plugin import LabelSmoothing, smooth_labels

X, Y = torch.randn(8, 3, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 4


def trainer_of(model, batches, **options):
    given = {"max_duration": "1ep", "loss_fn": F.cross_entropy, "algorithms": LabelSmoothing(), "seed": 1, **options}
    return Trainer(model, batches, optimizers=torch.optim.SGD(model.parameters(), lr=0.1), **given)


def net():
    torch.manual_seed(3)
    return nn.Linear(3, 4)


def test_between_the_halves_the_targets_are_dense_and_afterwards_the_same_object_is_back():
    batch = (X, Y)
    state = State(algorithms=[LabelSmoothing(0.2)], batch=batch, outputs=torch.zeros(8, 4), loss_fn=F.cross_entropy)
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.BEFORE_LOSS)
        assert torch.equal(state.batch[1], smooth_labels(torch.zeros(8, 4), Y, 0.2))
        assert state.batch[0] is X
        engine.run_event(Event.AFTER_LOSS)
    assert state.batch is batch


def test_one_hot_integers_with_class_weights_are_refused():
    loss = nn.CrossEntropyLoss(weight=torch.ones(4))
    message = r"one-hot integers \(8, 4\) with class weights.* y\.argmax\(1\)"
    with trainer_of(net(), [(X, F.one_hot(Y, 4))], loss_fn=loss) as trainer, pytest.raises(ValueError, match=message):
        trainer.fit()


class Failing(nn.Module):
    """A loss that raises at its second call."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, outputs, targets):
        self.seen.append(targets)
        if len(self.seen) == 2:
            raise RuntimeError("no loss")
        return F.cross_entropy(outputs, targets)


def test_an_outer_algorithm_finds_the_labels_of_each_microbatch_also_of_one_whose_loss_raised():
    found = []

    class Outermost(Algorithm):
        metadata = AlgorithmMetadata(events=("before_loss", "after_loss"), around=("label_smoothing",), writes=())

        def match(self, event, state):
            return event in self.metadata.events

        def apply(self, event, state, logger):
            if event is Event.AFTER_LOSS:
                found.append(state.batch_get_item(1).tolist())

    options = {"microbatch_size": 4, "algorithms": [LabelSmoothing(), Outermost()]}
    options |= {"objective": Objective(Failing(), check=False), "loss_fn": None}
    with trainer_of(net(), [(X, Y)], **options) as trainer, pytest.raises(RuntimeError):
        trainer.fit()
    assert found == [Y[:4].tolist(), Y[4:].tolist()]


def test_without_smoothing_it_never_acts():
    algorithm = LabelSmoothing(0)
    assert not any(algorithm.match(event, State()) for event in Event)
    with trainer_of(nn.Linear(3, 3), [(X, X)], loss_fn=F.mse_loss, algorithms=algorithm) as trainer:
        trainer.fit()


def test_the_loss_of_an_evaluation_is_never_smoothed():
    seen = []

    def loss(outputs, targets):
        seen.append(tuple(targets.shape))
        return F.cross_entropy(outputs, targets)

    model = net()
    with trainer_of(model, [(X, Y)], loss_fn=loss, eval_dataloader=[(X, Y)]) as trainer:
        trainer.fit()
        measured = trainer.state.metrics["eval/loss"]
    assert measured == pytest.approx(F.cross_entropy(model(X), Y).item())
    assert seen == [(8, 4), (8,)]


class Tagger(nn.Module):
    """A model with its own loss, which gets batches of named items."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.seen = []

    def forward(self, batch):
        return {"logits": self.linear(batch["x"])}

    def loss(self, outputs, batch):
        self.seen.append(batch)
        return F.cross_entropy(outputs["logits"], batch["labels"])


@pytest.mark.parametrize("labels", [Y, F.one_hot(Y, 4)], ids=["indices", "one-hot integers"])
def test_a_model_with_its_own_loss_gets_the_batch_with_dense_targets(labels):
    model, batch = Tagger(), {"x": X, "labels": labels, "id": list("abcdefgh")}
    with trainer_of(model, [batch], loss_fn=None, algorithms=LabelSmoothing(target_key="labels")) as trainer:
        trainer.fit()
        assert trainer.state.batch is batch and batch["labels"] is labels
    assert torch.equal(model.seen[0]["labels"], smooth_labels(torch.zeros(8, 4), Y, 0.1))
    assert model.seen[0]["x"] is X and model.seen[0]["id"] is batch["id"]


class Mix(Algorithm):
    """Takes half of each target from the next row, and puts the targets back as it found them."""

    metadata = AlgorithmMetadata(events=("before_loss", "after_loss"), tags=("target_mixing",), writes=("batch",))
    found = None

    def match(self, event, state):
        return event in self.metadata.events

    def apply(self, event, state, logger):
        if event is Event.BEFORE_LOSS:
            self.found = state.batch_get_item(1)
            state.batch_set_item(1, 0.5 * self.found + 0.5 * self.found.roll(-1, 0))
        else:
            state.batch_set_item(1, self.found)


@pytest.mark.parametrize("smoothing_first", [True, False])
def test_the_loss_is_the_mixture_of_two_smoothed_losses_and_the_labels_come_back(smoothing_first):
    mix, outputs, labels = Mix(), torch.randn(4, 3), torch.tensor([0, 1, 2, -100])
    algorithms = [LabelSmoothing(0.3), mix] if smoothing_first else [mix, LabelSmoothing(0.3)]
    state = State(algorithms=algorithms, batch=(None, labels), outputs=outputs, loss_fn=F.cross_entropy)
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.BEFORE_LOSS)
        assert torch.equal(mix.found, smooth_labels(outputs, labels, 0.3))
        loss = F.cross_entropy(outputs, state.batch[1])
        engine.run_event(Event.AFTER_LOSS)
    torchs = [F.cross_entropy(outputs, y, label_smoothing=0.3) for y in (labels, labels.roll(-1))]
    torch.testing.assert_close(loss, (torchs[0] + torchs[1]) / 2)
    assert state.batch[1] is labels


class Net(nn.Module):
    """Gets the whole batch and returns logits and a loss, as models of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, batch):
        logits = self.linear(batch["x"])
        return {"logits": logits, "loss": F.cross_entropy(logits, batch["y"])}

    def loss(self, outputs, batch):
        return outputs["loss"]


class FromLogits(Net):
    def loss(self, outputs, batch):
        return {"own": F.cross_entropy(outputs["logits"], batch["y"]), "of the forward": outputs["loss"]}


def fit(model, batch, smoothing=0.1, objective=None):
    options = {"algorithms": LabelSmoothing(smoothing, target_key="y"), "loss_fn": None}
    with trainer_of(model, [batch], objective=objective, **options) as trainer:
        try:
            trainer.fit()
        finally:
            assert trainer.state.batch is batch
        return trainer.state


class ByName(Net):
    def forward(self, **batch):
        return super().forward(batch)


@pytest.mark.parametrize(("net", "objective"), [(Net, None), (ByName, ModelLoss(targets="y"))])
def test_a_loss_out_of_the_forward_is_an_error(net, objective):
    batch = {"x": X, "y": Y}
    with pytest.raises(ArgumentError, match=r"one of the model's outputs.*compute it in loss\(outputs, batch\)"):
        fit(net(), batch, objective=objective)
    assert batch["y"] is Y
    fit(net(), batch, smoothing=0, objective=objective)


def test_one_part_of_a_loss_may_come_out_of_the_forward():
    assert fit(FromLogits(), {"x": X, "y": Y}).loss.isfinite()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "amp_bf16", "amp_fp16"])
def test_on_a_gpu_a_training_equals_one_with_the_smoothing_of_torchs_loss(precision):
    trained = []
    for smoothing, algorithms in ((0.0, [LabelSmoothing(0.3)]), (0.3, [])):
        model, loss = net(), nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 3.0, 4.0]).cuda(), label_smoothing=smoothing)
        options = {"algorithms": algorithms, "precision": precision, "device": "cuda"}
        with trainer_of(model, [(X, Y.masked_fill(Y == 2, -100))], loss_fn=loss, **options) as trainer:
            trainer.fit()
        trained.append(model.weight.cpu())
    torch.testing.assert_close(*trained)


LABELS, IGNORED = torch.tensor([0, 1, 2, 0]), torch.tensor([0, 1, -100, 0])
PROBABILITIES = torch.eye(3)[LABELS]
WEIGHT = torch.tensor([1.0, 2.0, 3.0])


def validated(loss, target, smoothing=0.1, **fields):
    """Fire the event at which the engine lets algorithms look at their first batch."""
    state = State(algorithms=[LabelSmoothing(smoothing)], loss_fn=loss, batch=(torch.zeros(4, 3), target), **fields)
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.AFTER_DATALOADER)
    return state


def own_loss(outputs, targets):
    """Can't be recognized as torch's."""
    return F.cross_entropy(outputs, targets)


class Focal(nn.CrossEntropyLoss):
    """A loss with its own formula."""

    def forward(self, outputs, targets):
        return (outputs.softmax(1)[range(len(targets)), targets] - 1).square().mean()


class Likelihood(nn.NLLLoss):
    """A loss that takes what its base does not."""

    def forward(self, outputs, targets):
        return -(targets * outputs).sum(1).mean()


@pytest.mark.parametrize(
    ("loss", "target", "message"),
    [
        (nn.NLLLoss(), LABELS, "NLLLoss takes only classes: use torch.nn.CrossEntropyLoss, on logits"),
        (nn.BCEWithLogitsLoss(), PROBABILITIES, r"BCEWithLogitsLoss takes only 0 to 1 for each output.*y \* \(1 - s\)"),
        (nn.CrossEntropyLoss(label_smoothing=0.2), LABELS, r"its own label_smoothing=0\.2.*twice"),
        (nn.CrossEntropyLoss(ignore_index=255), LABELS, "ignore_index=255, but torch takes.*in the data, like -100"),
        (partial(F.cross_entropy, ignore_index=0), LABELS, r"cross_entropy\(ignore_index=0, label_smoothing=...\)"),
        (own_loss, IGNORED, "target -100.*only for torch's cross_entropy"),
        (Focal(), IGNORED, "target -100"),
        (None, IGNORED, "target -100"),
        (F.cross_entropy, list("abcd"), "found a list under target_key=1"),
        (F.cross_entropy, torch.zeros(4), r"float targets \(4,\), which are not classes"),
        (F.mse_loss, torch.full((4, 3), 7.0), "not probabilities along dimension 1"),
        (F.cross_entropy, torch.tensor([[1.5, -0.5, 0.0]]).expand(4, 3), "not probabilities along dimension 1"),
    ],
)
def test_refused_at_the_first_batch(loss, target, message):
    with pytest.raises((ValueError, TypeError), match=message) as raised:
        validated(loss, target)
    assert isinstance(raised.value, EngineError)


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (F.cross_entropy, IGNORED),
        (nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=-1, reduction="sum"), LABELS),
        (own_loss, LABELS),
        (Likelihood(), LABELS),
        (nn.KLDivLoss(reduction="batchmean"), PROBABILITIES),
        (F.cross_entropy, torch.full((4, 3), 1 / 3).bfloat16()),
        (None, LABELS),
    ],
)
def test_taken_at_the_first_batch(loss, target):
    assert validated(loss, target).batch[1] is target


def test_without_smoothing_nothing_is_refused():
    validated(nn.NLLLoss(), IGNORED, smoothing=0)


@pytest.mark.parametrize(
    ("key", "batch", "error", "message"),
    [
        ("lables", {"labels": LABELS}, LookupError, r"^target_key='lables': .*did you mean 'labels'"),
        (2, (torch.zeros(4, 3), LABELS, LABELS.clone()), ArgumentError, "target_key=2 is not item 1.*set target_key=1"),
    ],
)
def test_a_key_of_what_the_loss_does_not_get_is_refused(key, batch, error, message):
    state = State(algorithms=[LabelSmoothing(target_key=key)], loss_fn=F.cross_entropy, batch=batch)
    with Engine(state, Logger()) as engine, pytest.raises(error, match=message):
        engine.run_event(Event.AFTER_DATALOADER)


def test_a_later_batch_with_ignored_targets_is_refused_where_the_divisor_is_not_known():
    state = State(algorithms=[LabelSmoothing()], batch=(None, IGNORED), outputs=torch.zeros(4, 3))
    with Engine(state, Logger()) as engine, pytest.raises(ValueError, match=r"target -100.*label_smoothing=\.\.\."):
        engine.run_event(Event.BEFORE_LOSS)
    assert state.batch[1] is IGNORED
