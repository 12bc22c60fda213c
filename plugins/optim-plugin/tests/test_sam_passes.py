"""What SAM's second pass leaves behind: new gradients, and nothing else; also where it does not finish."""

import copy
from contextlib import nullcontext

import pytest
import torch
from optim_parts import make_trainer
from parts import batches, net
from torch import nn

from engine_core import Algorithm, AlgorithmMetadata, Callback, Engine, Event, Logger, State
from engine_core.errors import EngineError, NonFiniteLossWarning
from engine_core.state import LoopControl
from engine_core_author import RecordingDestination
from optim_plugin import SAM


class Seen(Callback):
    """Keeps what the passes of a step show at some events."""

    def __init__(self):
        self.outputs = []
        self.losses = []
        self.end = ()

    def after_forward(self, state, logger):
        self.outputs.append(state.outputs)

    def after_backward(self, state, logger):
        self.losses.append(state.loss)

    def batch_end(self, state, logger):
        self.end = (state.outputs, state.loss)


class AddNoise(Algorithm):
    """Draws once a batch and adds to the inputs while the model has them: as augmentations that mix rows do."""

    metadata = AlgorithmMetadata(
        events=("before_train_batch", "before_forward", "after_forward", "after_train_batch"),
        tags=("augmentation",),
        writes=("batch",),
    )

    def __init__(self):
        self.calls = []
        self.offset, self.kept = 0.0, None

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        self.calls.append(event)
        if event is Event.BEFORE_TRAIN_BATCH:
            self.offset += 1.0
        elif event is Event.BEFORE_FORWARD:
            self.kept = state.batch
            state.batch_set_item(0, state.batch_get_item(0) + self.offset)
        elif event is Event.AFTER_FORWARD:
            state.batch, self.kept = self.kept, None


class Fail(Callback):
    """Raises in a pass of the first step; until then the weights are kept."""

    def __init__(self, error, in_pass):
        self.error, self.in_pass = error, in_pass
        self.passes, self.moved = 0, False
        self.weights = {}

    def before_forward(self, state, logger):
        assert state.model is not None
        self.passes += 1
        if self.passes == 1:
            self.weights = copy.deepcopy(dict(state.model.named_parameters()))
        self.moved = any(not torch.equal(p, self.weights[name]) for name, p in state.model.named_parameters())

    def after_loss(self, state, logger):
        if self.passes == self.in_pass:
            raise self.error


def test_loss_outputs_and_the_log_are_those_of_the_first_pass():
    seen, destination = Seen(), RecordingDestination()
    with make_trainer(SAM(rho=0.5), seen, loggers=destination, max_duration="1ba") as trainer:
        trainer.fit()
    assert len(seen.losses) == len(seen.outputs) == 2 and not torch.equal(*seen.losses)
    assert seen.end[0] is seen.outputs[0] and seen.end[1] is seen.losses[0]
    assert trainer.state.loss is seen.losses[0]


def test_the_second_pass_draws_its_own_dropout_masks():
    """As in a hand-written loop that runs forward twice."""
    seen = Seen()
    with make_trainer(SAM(rho=1e-12), seen, model=net(0.5), max_duration="1ba") as trainer:
        trainer.fit()
    model = net(0.5)
    torch.manual_seed(1)  # the seed of the run
    x = batches(8)[0][0]
    assert torch.equal(seen.outputs[0], model(x))
    assert torch.allclose(seen.outputs[1], model(x), rtol=0, atol=1e-6)
    assert not torch.allclose(seen.outputs[0], seen.outputs[1], rtol=0, atol=1e-3)


def test_pairs_of_an_augmentation_are_fired_again_on_the_same_draw():
    noise, seen = AddNoise(), Seen()
    with make_trainer([noise, SAM(rho=1e-12)], seen, max_duration="1ba") as trainer:
        trainer.fit()
        batch = trainer.state.batch
    forward = [Event.BEFORE_FORWARD, Event.AFTER_FORWARD]
    assert noise.calls == [Event.BEFORE_TRAIN_BATCH, *forward, *forward, Event.AFTER_TRAIN_BATCH]
    assert torch.allclose(*seen.outputs, rtol=0, atol=1e-5)
    assert torch.equal(batch[0], batches(8)[0][0])


@pytest.mark.filterwarnings("ignore:BatchNorm .* each microbatch:UserWarning")
@pytest.mark.parametrize(("error", "microbatch_size"), [(ZeroDivisionError(), 4), (KeyboardInterrupt(), None)])
def test_an_exception_in_the_second_pass_leaves_weights_batch_and_statistics(error, microbatch_size):
    passes_before = 1 if microbatch_size is None else 2
    noise, fail, model, reference = AddNoise(), Fail(error, passes_before + 1), net(), net()
    how = {"microbatch_size": microbatch_size, "max_duration": "1ba"}
    with make_trainer([SAM(rho=0.5), noise], fail, model=model, **how) as trainer:
        with pytest.raises(type(error)):
            trainer.fit()
        assert torch.equal(trainer.state.batch[0], batches(8)[0][0])
    assert fail.moved
    assert all(torch.equal(p, fail.weights[name]) for name, p in model.named_parameters())
    assert noise.calls[-1] is Event.AFTER_TRAIN_BATCH and noise.kept is None
    with make_trainer(noise, model=reference, **how) as trainer:
        noise.offset = 0.0
        trainer.fit()
    assert all(torch.equal(*pair) for pair in zip(model.buffers(), reference.buffers(), strict=True))


def test_an_exception_in_the_second_pass_leaves_loss_and_outputs_of_the_first():
    model, first = nn.Linear(4, 3), (torch.ones(8, 3), torch.ones(()))
    state = State(model=model, algorithms=[sam := SAM()], outputs=first[0], loss=first[1])

    def closure():
        state.outputs = state.loss = torch.zeros(())
        raise KeyboardInterrupt

    state.loop.closure = closure
    model(torch.ones(8, 4)).sum().backward()
    with pytest.raises(KeyboardInterrupt):
        sam.apply(Event.AFTER_TRAIN_BATCH, state, Logger())
    assert state.outputs is first[0] and state.loss is first[1]


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_without_a_direction_the_step_is_the_plain_one(value):
    models, passes = [net(), net()], []
    for model, algorithms in zip(models, (SAM(), ()), strict=True):
        seen = Seen()
        loss_fn = lambda outputs, targets: outputs.sum() * value  # noqa: E731
        warns = pytest.warns(NonFiniteLossWarning, match="the training loss is") if value else nullcontext()
        with warns, make_trainer(algorithms, seen, model=model, loss_fn=loss_fn, max_duration="1ba") as trainer:
            trainer.fit()
        passes.append(len(seen.losses))
    assert passes == [1, 1]
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))


@pytest.mark.parametrize("method", ["validate", "apply"])
def test_a_loop_without_a_closure_is_refused(method):
    state = State(model=net(), batch=batches(8)[0], algorithms=[SAM()])
    event = Event.AFTER_DATALOADER if method == "validate" else Event.AFTER_TRAIN_BATCH
    with (
        Engine(state, Logger()) as engine,
        pytest.raises(EngineError, match=r"needs state\.loop\.closure, .* set it to"),
    ):
        engine.run_event(event)


def test_a_scaler_is_refused():
    state = State(precision="amp_fp16", loop=LoopControl(closure=lambda: torch.zeros(())))
    with pytest.raises(EngineError, match="'amp_fp16': its scaler unscales"):
        SAM().validate(state)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"rho": 0}, r"rho=0 has to be within \(0, inf\)"), ({"interval": 0}, "interval=0"), ({"interval": 1.5}, "whole")],
)
def test_impossible_arguments_are_refused(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        SAM(**arguments)
