"""The penalty is that of the formula: in a run, in parts and on ranks with SAM, with others, twice; and refusals."""

import pytest
import torch
from optim_parts import make_trainer
from parts import at, batches
from torch import nn
from torch.nn import functional as F

from engine_core import Algorithm, AlgorithmMetadata, Engine, Event, Logger, Loss, Objective, State, Trainer
from engine_core.errors import EngineError
from engine_core_author import ThreadRanks
from optim_plugin import SAM, GradientPenalty, input_gradient_penalty


def net(*, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double()


def data(rows=6):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(rows, 3, generator=generator, dtype=torch.double), torch.arange(rows) % 4


def test_a_linear_model_has_it_in_closed_form():
    """With n outputs w x as losses each row's gradient is w, so the penalty is |w|^2 and its gradient 2 w."""
    for n, reduced in ((6, torch.mean), (1, torch.sum)):
        model, x = nn.Linear(3, 1, bias=False).double(), data()[0].requires_grad_()
        penalty = input_gradient_penalty(reduced(model(x)), x, n) * n / 6
        penalty.backward()
        assert penalty.item() == pytest.approx(model.weight.square().sum().item())
        assert model.weight.grad is not None and torch.allclose(model.weight.grad, 2 * model.weight)


@pytest.mark.parametrize("detached", [True, False])
def test_a_loss_that_does_not_depend_on_the_inputs_is_refused(detached):
    x, w = torch.ones(2, 3).requires_grad_(), nn.Parameter(torch.ones(()))
    with pytest.raises(ValueError, match=r"does not depend on the inputs of shape \(2, 3\)"):
        input_gradient_penalty(w.detach() if detached else w * 1, x)


def test_a_batch_without_rows_has_no_penalty():
    x = torch.ones(0, 3, requires_grad=True)
    assert [input_gradient_penalty(x.sum(), x, rows).item() for rows in (None, 0)] == [0.0, 0.0]


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's own, while it imports its compiler
@pytest.mark.parametrize("what", ["the model", "'1'", "'2'", "'loss_fn'"])
def test_what_is_compiled_has_no_second_derivative_and_is_refused_at_the_first_batch(what):
    model, loss = net(), F.cross_entropy
    if what == "'1'":
        model[1] = torch.compile(model[1])
    if what == "'2'":
        model[2].compile()
    state = State(
        model=torch.compile(model) if what == "the model" else model,
        loss_fn=torch.compile(loss) if what == "'loss_fn'" else loss,
        algorithms=[GradientPenalty()],
        batch=data(),
    )
    with Engine(state, Logger()) as engine, pytest.raises(EngineError, match=f"torch.compile has wrapped: {what}"):
        engine.run_event("after_dataloader")


def make_data():
    return [(x.double(), y) for x, y in batches(7, 7, 7)]


def make_net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def train(model, algorithms, data=None, **settings):
    with make_trainer(algorithms, model=model, data=data or make_data(), **settings) as trainer:
        trainer.fit()


def close(one, other):
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.allclose(p, q, rtol=0, atol=1e-12) for p, q in pairs)


class Double(Algorithm):
    """An augmentation of what the model gets."""

    metadata = AlgorithmMetadata(events=("before_forward", "after_forward"), tags=("augmentation",), writes=("batch",))
    kept = None

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        if event is Event.BEFORE_FORWARD:
            self.kept = state.batch
            state.batch_set_item(0, state.batch_get_item(0) * 2)
        else:
            state.batch, self.kept = self.kept, None


def test_weight_0_is_the_plain_run():
    models = [make_net(), make_net()]
    for model, algorithms in zip(models, (GradientPenalty(weight=0), ()), strict=True):
        train(model, algorithms)
    assert all(torch.equal(p, q) for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True))


def test_the_model_gets_an_alias_and_the_batch_comes_back():
    data, seen = make_data()[:1], []
    look = [
        at("batch_start", lambda state: seen.append(state.batch)),
        at("before_forward", lambda state: seen.append(state.batch[0])),
        at("after_loss", lambda state: seen.append(state.batch)),
    ]
    with make_trainer(GradientPenalty(), *look, model=make_net(), data=data, max_duration="1ba") as trainer:
        trainer.fit()
    before, inputs, after = seen
    assert before is after is data[0] and not data[0][0].requires_grad and data[0][0].grad is None
    assert inputs.requires_grad and inputs.data_ptr() == data[0][0].data_ptr()


@pytest.mark.parametrize("first", [True, False])
def test_it_takes_the_gradient_by_what_an_augmentation_made(first):
    algorithms = [Double(), GradientPenalty(weight=1.0)]
    ours, doubled = make_net(), make_net()
    train(ours, algorithms if first else algorithms[::-1])
    train(doubled, GradientPenalty(weight=1.0), [(x * 2, y) for x, y in make_data()])
    assert close(ours, doubled)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (torch.zeros(4, 3, dtype=torch.long), r"item 0 of the batch is a tensor of torch\.int64"),
        ("text", "item 0 of the batch has to be a tensor, not str"),
        (torch.zeros(()), "item 0 of the batch has no rows"),
    ],
)
def test_inputs_without_a_gradient_are_refused_at_the_first_batch(inputs, message):
    with pytest.raises((ValueError, TypeError), match=message):
        GradientPenalty().validate(State(batch=(inputs, torch.zeros(4))))
    GradientPenalty(weight=0).validate(State(batch=(inputs, torch.zeros(4))))


def test_a_scaler_is_refused():
    with pytest.raises(EngineError, match="'amp_fp16'"):
        GradientPenalty().validate(State(batch=make_data()[0], precision="amp_fp16"))


def test_a_model_that_ignores_its_inputs_is_refused_by_name():
    class Deaf(nn.Linear):
        def forward(self, x):
            return super().forward(x.detach())

    with pytest.raises(ValueError, match="does not depend") as error:
        train(Deaf(4, 3).double(), GradientPenalty())
    assert "GradientPenalty" in str(getattr(error.value, "__notes__", ""))


class SquareOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        (SquareOnce.apply, "differentiate twice a function that was marked with @once_differentiable"),
        (lambda x: torch.cdist(x, x.detach()[:3] + 1), "derivative for .* is not implemented"),
    ],
    ids=["own function", "cdist"],
)
def test_operations_without_a_second_derivative_raise_what_the_readme_quotes(operation, said):
    class Once(nn.Linear):
        def forward(self, x):
            return super().forward(operation(x)[:, :3])

    with pytest.raises(RuntimeError, match=said):
        train(Once(3, 3).double(), GradientPenalty())


@pytest.mark.parametrize("make", [lambda: GradientPenalty(weight=1.0), SAM], ids=["penalty", "sam"])
def test_under_bf16_it_trains_and_asks_for_no_graph_of_the_last_backward(make):
    models, data = [make_net().float() for _ in range(2)], batches(7, 7)
    for model, algorithms in zip(models, (make(), ()), strict=True):
        train(model, algorithms, data, precision="amp_bf16")
    pairs = [*zip(*(model.parameters() for model in models), strict=True)]
    assert all(bool(p.isfinite().all()) and not torch.equal(p, q) for p, q in pairs)
    assert make().backwards_create_graph is False


@pytest.mark.parametrize("weight", [-1, float("nan"), "1"])
def test_impossible_weights_are_refused(weight):
    with pytest.raises((ValueError, TypeError), match="weight="):
        GradientPenalty(weight=weight)


Batch = dict[str, torch.Tensor]
WEIGHTS = {"x": 0.5, "z": 0.2}


class Product(nn.Module):
    """Has two inputs whose slopes depend on each other, and its own loss."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.ModuleDict({key: nn.Linear(4, 3) for key in "xz"}).double()

    def forward(self, batch):
        return torch.tanh(self.net["x"](batch["x"])) * torch.tanh(self.net["z"](batch["z"]))

    def loss(self, outputs, batch):
        return F.cross_entropy(outputs, batch["y"])


def make_batch():
    generator = torch.Generator().manual_seed(5)
    inputs = {key: torch.randn(6, 4, generator=generator).double() for key in "xz"}
    return {**inputs, "y": torch.randint(0, 3, (6,), generator=generator)}


def one_step_of(algorithms, **settings):
    """Return the loss of one step and its gradients."""
    model = Product()
    given = {"max_duration": "1ba", "optimizers": torch.optim.SGD(model.parameters(), lr=0.1), "device": "cpu"}
    with Trainer(model, [make_batch()], algorithms=algorithms, progress_bar=False, **given, **settings) as trainer:
        trainer.fit()
    return trainer.state.loss.item(), [p.grad for p in model.parameters() if p.grad is not None]


def train_by_hand(keys):
    model, batch = Product(), make_batch()
    watched = [batch[key].requires_grad_() for key in keys]
    loss = model.loss(model(batch), batch)
    slopes = torch.autograd.grad(loss, watched, create_graph=True)
    for key, slope in zip(keys, slopes, strict=True):
        loss = loss + WEIGHTS[key] * 6 * slope.square().sum()
    loss.backward()
    return loss.item(), [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(("keys", "size"), [("x", None), ("xz", None), ("zx", 4), ("xzx", 4)])
def test_each_adds_the_penalty_of_the_plain_loss_in_whichever_order(keys, size):
    loss, gradients = one_step_of([GradientPenalty(WEIGHTS[key], key) for key in keys], microbatch_size=size)
    expected_loss, expected = train_by_hand(keys)
    assert loss == pytest.approx(expected_loss, abs=1e-12)
    assert all(torch.allclose(one, other, rtol=0, atol=1e-12) for one, other in zip(gradients, expected, strict=True))


WEIGHT = torch.tensor([0.5, 1.0, 2.0], dtype=torch.double)
RHO, FACTOR = 0.3, 0.7


def tokens(outputs, targets):
    return Loss(F.cross_entropy(outputs, targets, reduction="sum"), (targets != -100).sum())


def parts(outputs, targets):
    return {"square": outputs.square().sum(1).mean(), "first": outputs[:, 0].exp().mean()}


# Each with what its mean divides the sum by, and the sum.
LOSSES = {
    "ignored and weighted": (
        nn.CrossEntropyLoss(WEIGHT),
        lambda y: WEIGHT[y[y >= 0]].sum(),
        lambda out, y: F.cross_entropy(out, y, WEIGHT, reduction="sum"),
    ),
    "sum": (nn.CrossEntropyLoss(reduction="sum"), lambda y: 1, lambda out, y: F.cross_entropy(out, y, reduction="sum")),
    "Loss of tokens": (tokens, lambda y: (y >= 0).sum(), lambda out, y: F.cross_entropy(out, y, reduction="sum")),
    "rows, in parts": (parts, len, lambda out, y: (out.square().sum(1) + out[:, 0].exp()).sum()),
}


def make_tokens():
    generator = torch.Generator().manual_seed(5)
    y = torch.tensor([0, -100, 1, 2, -100, -100, 1])
    return {"y": y, "x": torch.randn(7, 4, generator=generator, dtype=torch.double)}


def make_tanh_net():
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    for number, parameter in enumerate(net.parameters()):
        nn.init.constant_(parameter, 0.1)
        parameter.data += torch.arange(parameter.numel()).view_as(parameter).add(number).sin() / 2
    return net


def vector(net):
    return nn.utils.parameters_to_vector(net.parameters()).detach()


def by_hand(name, *, penalized, sharp):
    _, count_of, sum_of = LOSSES[name]
    net, batch = make_tanh_net(), make_tokens()

    def backward():
        net.zero_grad()
        x, count = batch["x"].clone().requires_grad_(), count_of(batch["y"])
        total = sum_of(net(x), batch["y"])
        (slope,) = torch.autograd.grad(total, x, create_graph=True)
        loss = (total + FACTOR * penalized * slope.square().sum()) / count
        loss.backward()
        return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])

    start, gradient = vector(net), backward()
    x = batch["x"].clone().requires_grad_()
    total = sum_of(net(x), batch["y"])
    (slope,) = torch.autograd.grad(total, x)
    loss = (total + FACTOR * penalized * slope.square().sum()) / count_of(batch["y"])
    if sharp:
        nn.utils.vector_to_parameters(start + RHO * gradient / gradient.norm(), net.parameters())
        gradient = backward()
    return start - gradient, loss.item()


@pytest.mark.parametrize(
    ("name", "penalized", "sharp"),
    [("rows, in parts", True, False), ("Loss of tokens", False, True), *((name, True, True) for name in LOSSES)],
)
def test_whatever_the_loss_counts_the_step_is_that_of_the_whole_batch(one_step, name, penalized, sharp):
    def made(size, ranks=None):
        algorithms = [GradientPenalty(FACTOR, "x")] * penalized + [SAM(RHO)] * sharp
        objective = Objective(LOSSES[name][0], inputs="x", targets="y")
        return one_step(make_tanh_net(), make_tokens(), size, ranks, objective=objective, algorithms=algorithms)

    expected = by_hand(name, penalized=penalized, sharp=sharp)
    for size in (None, 1, 3):
        for found in (made(size), *ThreadRanks.run(lambda ranks, size=size: made(size, ranks))):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
