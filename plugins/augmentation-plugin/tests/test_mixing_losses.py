"""The loss that MixUp and CutMix train on, in parts and on ranks, and losses that they can't reach."""

import pytest
import torch
from augmentation_parts import BOTH, FORMS
from torch import nn
from torch.nn import functional as F

from augmentation_plugin import CutMix, MixUp, cutmix_batch, mix_losses, mixup_batch
from engine_core import Batches, Callback, Engine, Logger, Loss, ModelLoss, Objective, State, Trainer
from engine_core.errors import ArgumentError
from engine_core_author import ThreadRanks

WEIGHT = torch.tensor([0.5, 1.0, 2.0], dtype=torch.double)
SEED, FUNCTIONS = 3, {MixUp: mixup_batch, CutMix: cutmix_batch}


def tokens(outputs, targets):
    return Loss(F.cross_entropy(outputs, targets, reduction="sum"), (targets != -100).sum())


def dense_rows(outputs, targets):
    return Loss(F.cross_entropy(outputs, targets, reduction="sum"), len(targets))


def named(outputs, targets):
    return {"ce": F.cross_entropy(outputs, targets), "norm": outputs.square().sum(1).mean()}


class OwnObjective(Objective):
    """Has the loss in a method."""

    def loss(self, model, outputs, batch):
        return tokens(outputs, batch["y"])


def summed(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="sum")


def weighted(outputs, targets):
    return F.cross_entropy(outputs, targets, WEIGHT, reduction="sum")


# The objective, the form of mixing, the targets, the sum of a part, and what it counts.
Y, IGNORED = torch.tensor([0, 1, 2, 2, 1, 1, 0]), torch.tensor([0, -100, 2, 2, -100, -100, 0])
CASES = {
    "cross entropy, dense": (nn.CrossEntropyLoss(), False, Y, summed, len),
    "a Loss of rows, dense": (dense_rows, False, Y, summed, len),
    "named parts, dense": (named, False, Y, lambda out, y: summed(out, y) + out.square().sum(), len),
    "ignored and weighted": (nn.CrossEntropyLoss(WEIGHT), True, IGNORED, weighted, lambda y: WEIGHT[y[y >= 0]].sum()),
    "a Loss of tokens": (tokens, True, IGNORED, summed, lambda y: (y >= 0).sum()),
    "an objective's own": (OwnObjective, True, IGNORED, summed, lambda y: (y >= 0).sum()),
    "a sum": (nn.CrossEntropyLoss(reduction="sum"), True, IGNORED, summed, lambda y: 0),
}


def make_net():
    net = nn.Sequential(nn.Flatten(), nn.Linear(18, 3)).double()
    for number, parameter in enumerate(net.parameters()):
        parameter.data = torch.arange(parameter.numel()).view_as(parameter).add(number).sin().double() / 2
    return net


class Parts(Callback):
    """Keeps the parts that a step was made of, as they are after the loss."""

    every_rank = True

    def __init__(self):
        self.seen = []

    def after_loss(self, state, logger):
        self.seen.append(state.batch)


def step(one_step, case, kind, size, ranks=None):
    """Return the weights after one step, the loss, and the parts."""
    loss, interpolates, y, *_ = CASES[case]
    batch = {"y": y, "x": torch.arange(7 * 18.0).view(7, 2, 3, 3).double().cos()}
    objective = (loss if loss is OwnObjective else lambda **given: Objective(loss, **given))(inputs="x", targets="y")
    settings = {"objective": objective, "algorithms": kind(0.7, interpolates, "x", "y"), "seed": SEED}
    parts = Parts()
    return *one_step(make_net(), batch, size, ranks, callbacks=parts, **settings), parts.seen


def by_hand(case, kind, parts):
    *_, sum_of, count_of = CASES[case]
    net, seed = make_net(), State(seed=SEED).derive_seed(str(kind.metadata.name))
    total, count = torch.zeros(()), 0
    for part in parts:  # each is drawn for alike, and mixed within itself
        generator = torch.Generator().manual_seed(seed)
        mixed, paired, lam = FUNCTIONS[kind](part["x"], part["y"], alpha=0.7, generator=generator)
        total = total + mix_losses(*(sum_of(net(mixed), targets) for targets in (part["y"], paired)), lam)
        count = count + count_of(part["y"])
    count = count or 1  # a sum is divided by nothing
    (total / count).backward()
    torch.optim.SGD(net.parameters(), lr=1.0).step()
    return nn.utils.parameters_to_vector(net.parameters()).detach(), (total / count).item()


@pytest.mark.parametrize(
    ("case", "kind"),
    [*((case, MixUp) for case in CASES), ("named parts, dense", CutMix), ("ignored and weighted", CutMix)],
)
def test_a_step_in_parts_is_the_one_written_by_hand(one_step, case, kind):
    for size in (None, 3):
        weight, loss, parts = step(one_step, case, kind, size)
        torch.testing.assert_close((weight, loss), by_hand(case, kind, parts), rtol=1e-9, atol=1e-9)
        of_ranks = ThreadRanks.run(lambda ranks, size=size: step(one_step, case, kind, size, ranks))
        expected = by_hand(case, kind, [part for _, _, parts in of_ranks for part in parts])
        for weight, loss, _ in of_ranks:
            torch.testing.assert_close((weight, loss), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("interpolates", [False, True])
def test_rows_are_where_the_batches_say(interpolates):
    class Mean(nn.Linear):
        def __init__(self, dim):
            super().__init__(3, 3, bias=False)
            nn.init.ones_(self.weight)
            self.dim = dim

        def forward(self, x):
            return super().forward(x.cos()).cumsum(self.dim).mean(self.dim)

    x, y, trained = torch.randn(4, 4, 3), torch.tensor([0, 1, 2, 1]), []
    for dim, batch in ((1, (x, y, "kept")), (0, (x.transpose(0, 1), y, "kept"))):
        model = Mean(dim)
        options = {"loss_fn": F.cross_entropy, "optimizers": torch.optim.SGD(model.parameters(), 1.0)}
        rule = Batches(dim={} if dim else {0: 1})
        with Trainer(model, [batch], algorithms=MixUp(1.0, interpolates), batches=rule, seed=1, **options) as trainer:
            trainer.fit("1ba")
        trained.append(model.weight.detach())
    torch.testing.assert_close(*trained)


@pytest.mark.parametrize("kind", [MixUp, CutMix])
def test_a_loss_that_counts_shares_of_classes_is_refused(kind):
    batch, net = {"x": torch.randn(4, 2, 3, 3).double(), "y": torch.tensor([0, 1, 2, 1])}, make_net()
    options = {"objective": Objective(tokens, inputs="x", targets="y"), "optimizers": torch.optim.SGD}
    with (
        Trainer(net, [batch], algorithms=kind(1.0, False, "x", "y"), **options) as trainer,
        pytest.raises(ArgumentError, match=r"tokens counts 4.0 .*, and 12.0 for those of"),
    ):
        trainer.fit("1ba")


SEED = 3


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


def make_batches():
    torch.manual_seed(2)
    return [(torch.randn(rows, 2, 8, 8), torch.randint(3, (rows,))) for rows in (8, 8, 5, 1)]


def fit(algorithm, model, batches, loss_fn, **options):
    """Train an epoch; return the losses as the algorithms leave them."""
    losses = []

    class Record:
        def after_loss(self, state, logger):
            losses.append(state.loss)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"seed": SEED, "loss_fn": loss_fn, "optimizers": optimizer, "callbacks": Record(), **options}
    with Trainer(model, batches, algorithms=algorithm, **options) as trainer:
        trainer.fit("1ep")
    return losses


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.fixture(params=[MixUp, CutMix])
def kind(request):
    return request.param


@pytest.mark.parametrize("form", [tuple, dict])
def test_each_part_of_a_loss_is_interpolated(kind, form):
    def loss_fn(outputs, targets):
        parts = {"a": F.cross_entropy(outputs, targets), "b": targets.double().square().mean()}
        return parts if form is dict else form(parts.values())

    x, y = make_batches()[0]
    y = torch.where(y == 0, 2, y)
    (loss,) = fit(kind(alpha=0.7, interpolate_loss=True), make_model(), [(x, y)], loss_fn)
    (plain,) = fit(kind(alpha=0.7, interpolate_loss=True), make_model(), [(x, y)], F.cross_entropy)
    parts = list(loss.values()) if form is dict else list(loss)
    assert type(loss) is form
    torch.testing.assert_close(parts[0], plain)
    torch.testing.assert_close(parts[1], y.double().square().mean())  # that of all rows, however they are paired


def test_the_second_loss_is_computed_in_the_precision_of_the_state(kind):
    autocasts = []

    def loss_fn(outputs, targets):
        autocasts.append(torch.is_autocast_enabled("cpu"))
        return F.mse_loss(outputs @ outputs.T, targets)  # which autocast computes in bfloat16

    algorithm, batch = kind(interpolate_loss=True), (torch.randn(4, 2, 8, 8), torch.zeros(4, 4))
    for precision in ("amp_bf16", "fp32"):  # in the second run another than in the first
        fit(algorithm, make_model(), [batch], loss_fn, precision=precision)
    assert autocasts == [True, True, False, False]


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16"])
def test_dense_targets_are_in_single_precision_at_least(kind, precision):
    seen = []

    def loss_fn(outputs, targets):
        seen.append(targets.dtype)
        return F.cross_entropy(outputs, targets)

    fit(kind(), make_model(), make_batches()[:1], loss_fn, precision=precision)
    assert seen == [torch.float32]


def test_targets_of_positions_are_mixed_in_class_dimension_1():
    model = nn.Conv2d(2, 3, 3, padding=1)
    x, y = torch.randn(4, 2, 8, 8), torch.randint(3, (4, 8, 8))
    start = weights(model).clone()
    forms = []
    for interpolate_loss in (False, True):
        nn.utils.vector_to_parameters(start.clone(), model.parameters())
        forms += fit(MixUp(1.0, interpolate_loss), model, [(x, y)], F.cross_entropy)
    torch.testing.assert_close(*forms)


ROWS = 6
IMAGES, CLASSES = torch.randn(ROWS, 2, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(ROWS) % 3


class Net(nn.Module):
    """Gets the whole batch and returns logits and a loss, as models of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(128, 3)

    def forward(self, batch):
        logits = self.linear(batch["x"].flatten(1))
        return {"logits": logits, "loss": F.cross_entropy(logits, batch["y"])}

    def loss(self, outputs, batch):
        return outputs["loss"]


class ByName(Net):
    def forward(self, **batch):
        return super().forward(batch)


class InParts(Net):
    def loss(self, outputs, batch):
        return {"ce": outputs["loss"]}


class FromLogits(Net):
    """Computes its loss where it should, next to a part that the forward computes."""

    def loss(self, outputs, batch):
        return {"own": F.cross_entropy(outputs["logits"], batch["y"]), "of the forward": outputs["loss"]}


def fit_in_forward(model, mixing, objective=None):
    options = {"optimizers": torch.optim.SGD(model.parameters(), lr=0.1), "max_duration": "1ba"}
    batch = {"x": IMAGES, "y": CLASSES}
    with Trainer(model, [batch], algorithms=mixing, seed=1, objective=objective, **options) as trainer:
        trainer.fit()
        return trainer.state


@FORMS
@pytest.mark.parametrize("net", [Net, InParts, ByName])
def test_a_loss_out_of_the_forward_is_an_error(kind, interpolate_loss, net):
    objective = ModelLoss(targets="y") if net is ByName else None
    with pytest.raises(ArgumentError, match=r"one of the model's outputs.*compute it in loss\(outputs, batch\)"):
        fit_in_forward(net(), kind(1.0, interpolate_loss, "x", "y"), objective)


@FORMS
def test_one_part_of_a_loss_may_come_out_of_the_forward(kind, interpolate_loss):
    assert fit_in_forward(FromLogits(), kind(1.0, interpolate_loss, "x", "y")).loss.isfinite()


@pytest.mark.parametrize(
    ("keys", "words"),
    [({"target_key": 2}, "target_key=2 is not item 1.*targets of the loss: set target_key=1"),
     ({"input_key": 2}, "input_key=2 is not item 0.*inputs of the model: set input_key=0")],
)  # fmt: skip
@FORMS
def test_keys_that_are_not_what_a_loss_function_gets_are_refused(kind, keys, words, interpolate_loss):
    state = State(algorithms=[kind(interpolate_loss=interpolate_loss, **keys)], loss_fn=F.cross_entropy)
    state.batch = IMAGES, CLASSES, IMAGES.clone() if "input_key" in keys else CLASSES.clone()
    with Engine(state, Logger()) as engine, pytest.raises(ArgumentError, match=words):
        engine.run_event("after_dataloader")


class Mine(nn.NLLLoss):
    def forward(self, outputs, targets):
        return -(targets * outputs).sum(1).mean()


@BOTH
def test_a_subclass_with_its_own_formula_is_believed_to_take_mixtures(kind):
    state = State(algorithms=[kind()], loss_fn=Mine(weight=torch.ones(3)), batch=(IMAGES, CLASSES))
    with Engine(state, Logger()) as engine:
        engine.run_event("after_dataloader")
