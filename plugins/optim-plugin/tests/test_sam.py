"""SAM's step equals the hand-written one, comes first, and is refused where it can't be."""

import copy
import math
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from optim_parts import make_trainer, same
from parts import batches
from torch import nn
from torch.nn import functional as F

from engine_core import Algorithm, AlgorithmMetadata, Callback, Engine, Event, Logger, State
from engine_core.state import LoopControl
from engine_core.time import Timestamp
from optim_plugin import SAM, held_buffers, sharpness_aware_gradients

Batch = tuple[torch.Tensor, torch.Tensor]

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}


def make_net(*, norm=True):
    torch.manual_seed(1)
    middle = nn.BatchNorm1d(8) if norm else nn.Tanh()
    return nn.Sequential(nn.Linear(4, 8), middle, nn.ReLU(), nn.Linear(8, 3))


def train(model, algorithms, optimizers, **settings):
    with make_trainer(algorithms, model=model, optimizers=optimizers, **settings) as trainer:
        trainer.fit()
    return dict(model.state_dict())


def gradients_by_hand(model, batch, clip):
    model.zero_grad()
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)


def train_by_hand(model, optimizers, rho, interval=1, clip=None, first=0):
    for step, batch in enumerate(batches(8, 8, 8, 8) * 2):
        gradients_by_hand(model, batch, clip)
        trained = [p for p in model.parameters() if p.grad is not None]
        if (step + 1) % interval == 0 and step >= first:
            statistics = copy.deepcopy(dict(model.named_buffers()))
            weights = [p.detach().clone() for p in trained]
            norm = torch.stack([p.grad.norm() for p in trained]).norm().item()
            with torch.no_grad():
                for p in trained:
                    p.add_(p.grad, alpha=rho / norm)
            gradients_by_hand(model, batch, clip)
            with torch.no_grad():
                for p, weight in zip(trained, weights, strict=True):
                    p.copy_(weight)
                for name, buffer in model.named_buffers():
                    buffer.copy_(statistics[name])
        for optimizer in optimizers:
            optimizer.step()
    return dict(model.state_dict())


@pytest.mark.parametrize(("kind", "interval"), [("sgd", 1), ("adam", 2), ("sgd", 3)])
def test_training_equals_the_hand_written_loop(kind, interval):
    ours, hand, plain = make_net(), make_net(), make_net()
    result = train(ours, SAM(rho=0.3, interval=interval), OPTIMIZERS[kind](ours.parameters()))
    assert same(result, train_by_hand(hand, [OPTIMIZERS[kind](hand.parameters())], 0.3, interval))
    assert not same(result, train(plain, (), OPTIMIZERS[kind](plain.parameters())))


@pytest.mark.parametrize(("start", "interval", "first"), [(0.5, 1, 4), (0.6, 1, 5), (0.5, 3, 5)])
def test_late_in_training_only_the_steps_from_start_on_are_sharpness_aware(start, interval, first):
    """Of 8 steps, counted from 0."""
    ours, hand = make_net(), make_net()
    result = train(ours, SAM(rho=0.3, interval=interval, start=start), OPTIMIZERS["sgd"](ours.parameters()))
    assert same(result, train_by_hand(hand, [OPTIMIZERS["sgd"](hand.parameters())], 0.3, interval, first=first))


@given(st.integers(1, 12), st.integers(1, 5), st.floats(0, 0.99))
def test_it_may_rest_exactly_where_no_step_was_its_own(batches, interval, start):
    sam = SAM(interval=interval, start=start)
    positions = (Timestamp(batch=batch) for batch in range(batches))
    states = [State(timestamp=position, max_duration=f"{batches}ba") for position in positions]
    ran = any(sam.match(Event.AFTER_TRAIN_BATCH, state) for state in states)
    assert sam.may_rest(State(timestamp=Timestamp(batch=batches), max_duration=f"{batches}ba")) is not ran


def test_a_start_in_a_training_without_an_end_is_refused():
    assert SAM(start=0.5).metadata.needs == ("duration", *SAM().metadata.needs)
    with pytest.raises(ValueError, match=r"max_duration is not known, so start=0\.5 can't be located"):
        SAM(start=0.5).validate(State(model=make_net()))


def test_both_gradients_are_clipped():
    """The length of the first is not used by SAM; the second is what the optimizer gets."""
    ours, hand = make_net(), make_net()
    result = train(ours, SAM(rho=0.3), OPTIMIZERS["sgd"](ours.parameters()), grad_clip_norm=0.1)
    assert same(result, train_by_hand(hand, [OPTIMIZERS["sgd"](hand.parameters())], 0.3, clip=0.1))


def test_the_norm_is_over_the_parameters_of_all_optimizers():
    def both(model):
        return [OPTIMIZERS["sgd"](model[:2].parameters()), OPTIMIZERS["adam"](model[3].parameters())]

    ours, hand = make_net(), make_net()
    assert same(train(ours, SAM(rho=0.3), both(ours)), train_by_hand(hand, both(hand), 0.3))


def test_frozen_parameters_have_no_part():
    ours, hand = make_net(), make_net()
    for model in (ours, hand):
        model[0].requires_grad_(False)
    result = train(ours, SAM(rho=0.3), OPTIMIZERS["sgd"](ours.parameters()))
    assert same(result, train_by_hand(hand, [OPTIMIZERS["sgd"](hand.parameters())], 0.3))
    assert torch.equal(result["0.weight"], make_net()[0].weight)


@pytest.mark.filterwarnings("ignore::engine_core.errors.UntrainedParametersWarning")
def test_parameters_of_no_optimizer_are_not_moved_and_not_in_the_norm():
    """Nothing resets their gradients, which add up from step to step."""
    ours, frozen = make_net(norm=False), make_net(norm=False)
    frozen[0].requires_grad_(False)
    results = [train(model, SAM(rho=0.3), OPTIMIZERS["sgd"](model[3].parameters())) for model in (ours, frozen)]
    assert same(*results)


def test_the_closure_sees_the_weights_of_the_formula():
    one, other = nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.tensor([3.0], dtype=torch.double))
    one.grad, other.grad = torch.tensor([2.0, 3.0]), torch.tensor([6.0], dtype=torch.double)  # norm 7
    seen = []
    assert sharpness_aware_gradients([one, other, one], lambda: seen.extend(p.tolist() for p in (one, other)) or 5, 0.7)
    assert seen[0] == pytest.approx([1.2, 2.3], abs=1e-6) and seen[1] == pytest.approx([3.6], abs=1e-6)
    assert one.tolist() == [1.0, 2.0] and other.tolist() == [3.0]


def test_weights_come_back_bit_for_bit_where_subtracting_would_not():
    weight = nn.Parameter(torch.tensor([1e-8, 1.0, -0.0, 1e30]))
    weight.grad = torch.tensor([1.0, 1.0, 0.0, 1.0])
    before = weight.detach().clone()
    with pytest.raises(KeyboardInterrupt):
        sharpness_aware_gradients([weight], _interrupt, rho=1e4)
    assert torch.equal(weight, before) and math.copysign(1.0, weight[2].item()) == -1.0


def _interrupt():
    raise KeyboardInterrupt


def test_the_first_gradients_are_free_while_the_closure_runs():
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    storage = weakref.ref(weight.grad)

    def closure():
        weight.grad = None
        return storage() is None

    assert sharpness_aware_gradients([weight], closure)


def test_half_precision_does_not_overflow_in_the_norm():
    weight = nn.Parameter(torch.zeros(1024, dtype=torch.half))
    weight.grad = torch.full((1024,), 4096.0, dtype=torch.half)  # its norm is 131072, the largest half 65504
    assert sharpness_aware_gradients([weight], lambda: weight.double().norm().item(), rho=1.0) == 1.0


def test_a_sparse_gradient_is_refused():
    embedding = nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match=r"shape \(4, 2\) has a sparse gradient.*sparse=False"):
        sharpness_aware_gradients(embedding.parameters(), lambda: None)


@pytest.mark.parametrize(("dtype", "value"), [(torch.float32, 1e-40), (torch.half, 3e-7)])
def test_a_gradient_too_small_to_be_scaled_is_not_a_direction(dtype, value):
    weight = nn.Parameter(torch.ones(1, dtype=dtype))
    weight.grad = torch.full((1,), value, dtype=dtype)
    assert sharpness_aware_gradients([weight], lambda: 1, rho=0.05) is None
    assert weight.item() == 1.0


def test_arguments_are_checked_before_anything():
    weight = nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match="rho=-1"):
        sharpness_aware_gradients([weight], lambda: 1, rho=-1)
    with pytest.raises(TypeError, match="closure=None can't be called"):
        sharpness_aware_gradients([weight], None)


def test_sparse_embeddings_are_refused_at_the_first_batch():
    model = nn.Sequential(nn.Embedding(4, 2, sparse=True))
    state = State(model=model, loop=LoopControl(closure=lambda: torch.zeros(())))
    with pytest.raises(ValueError, match=r"sam can't train '0', whose gradient is sparse: .*sparse=False"):
        SAM().validate(state)
    model.requires_grad_(False)
    SAM().validate(state)


def test_a_frozen_parameter_with_an_old_gradient_and_those_without_are_left_alone():
    frozen, weight = nn.Parameter(torch.ones(2), requires_grad=False), nn.Parameter(torch.zeros(1))
    frozen.grad, weight.grad = torch.ones(2), torch.ones(1)
    assert sharpness_aware_gradients([frozen, weight], lambda: (frozen.tolist(), weight.item()), 1.0) == ([1, 1], 1)
    assert sharpness_aware_gradients([nn.Parameter(torch.ones(2))], lambda: 1) is None


class Counting(nn.Module):
    """Has buffers of all kinds, and changes them in forward."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.register_buffer("replaced", torch.zeros(2), persistent=False)
        self.register_buffer("expanded", torch.ones(1).expand(3))
        self.register_buffer("none", None)

    def forward(self, x):
        self.seen += 1
        self.replaced = self.replaced + 1
        self.expanded = (self.expanded * 2).mean().expand(3)
        return x


def test_buffers_are_held():
    model = nn.Sequential(Counting(), nn.BatchNorm1d(3))
    buffers = list(model.buffers())
    with pytest.raises(ZeroDivisionError), held_buffers(model):
        model(torch.randn(4, 3))
        assert model[0].seen == 1 and model[1].num_batches_tracked == 1
        raise ZeroDivisionError
    assert all(one is other for one, other in zip(model.buffers(), buffers, strict=True))
    assert model[0].expanded.tolist() == [1.0, 1.0, 1.0]
    assert model[0].seen == 0 and model[0].replaced.tolist() == [0.0, 0.0]
    assert model[1].num_batches_tracked == 0 and model[1].running_var.tolist() == [1.0, 1.0, 1.0]


def test_a_custom_loop_offers_its_closure():
    """Without optimizers in State the parameters are the model's."""
    model, seen = nn.Linear(2, 1, bias=False), []
    nn.init.zeros_(model.weight)

    def closure():
        seen.append(model.weight[0].tolist())
        model.weight.grad = torch.tensor([[3.0, 4.0]])
        return torch.zeros(())

    state = State(model=model, algorithms=[SAM(rho=0.5)], loop=LoopControl(closure=closure), seed=1)
    with Engine(state, Logger()) as engine:
        closure()
        engine.run_event(Event.AFTER_TRAIN_BATCH)
    assert seen == [[0, 0], pytest.approx([0.3, 0.4])] and not model.weight.any()


class Scale(Algorithm):
    """Has another batch from the start of the step to its end, and no tag that says so."""

    metadata = AlgorithmMetadata(events=("before_train_batch", "after_train_batch"), writes=("batch",))

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        state.batch_set_item(0, state.batch_get_item(0) * (2.0 if event is Event.BEFORE_TRAIN_BATCH else 0.5))


class HalveGradients(Algorithm):
    """Edits the gradients that the optimizer is about to step with."""

    metadata = AlgorithmMetadata(events=("after_train_batch",), writes=("model",))

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        for parameter in state.model.parameters():
            parameter.grad *= 0.5


class Look(Callback):
    """Keeps the inputs of each forward pass, and the gradients of the last backward pass and of the step."""

    def __init__(self):
        self.inputs = []
        self.computed = self.used = torch.zeros(())

    def before_forward(self, state, logger):
        self.inputs.append(state.batch_get_item(0))

    def after_backward(self, state, logger):
        self.computed = state.model.weight.grad.clone()

    def batch_end(self, state, logger):
        self.used = state.model.weight.grad.clone()


def look_at(algorithms):
    look = Look()
    data = [(torch.ones(4, 3), torch.tensor([0, 1, 0, 1]))]
    with make_trainer(algorithms, look, model=nn.Linear(3, 2), data=data, max_duration="1ba") as trainer:
        trainer.fit()
    return look


@pytest.mark.parametrize("place", [0, 1])
def test_the_second_pass_sees_what_others_undo_at_its_event(place):
    algorithms = [Scale()]
    algorithms.insert(place, SAM())
    assert [inputs.unique().tolist() for inputs in look_at(algorithms).inputs] == [[2.0], [2.0]]


@pytest.mark.parametrize("place", [0, 1])
def test_an_algorithm_that_edits_gradients_edits_those_of_the_second_pass(place):
    algorithms = [HalveGradients()]
    algorithms.insert(place, SAM())
    look = look_at(algorithms)
    assert len(look.inputs) == 2
    assert look.computed.any() and torch.equal(look.used, 0.5 * look.computed)
