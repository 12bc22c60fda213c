"""`Trainer.predict`: outputs of a model in eval mode, batch by batch, and everything is as before."""

import gc
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from engine_core import Event, Timestamp
from engine_core.errors import ArgumentError, ArgumentTypeError, ClosedEngineError, EngineError

from .parts import Memory, acting, at, batches, linear, net, notes, rows, same, trainer, writing_down

INPUTS, TARGETS = rows(8)


def expected(model, *inputs):
    """Return the outputs in eval mode."""
    modes = [module.training for module in model.modules()]
    model.eval()
    with torch.no_grad():
        outputs = [model(given) for given in inputs]
    for module, mode in zip(model.modules(), modes, strict=True):
        module.training = mode
    return outputs


@pytest.mark.parametrize(
    "loader",
    [
        [(INPUTS, TARGETS)],
        [(INPUTS, TARGETS, "more")],
        [[INPUTS]],
        [INPUTS],
        iter([(INPUTS,)]),
        DataLoader(TensorDataset(INPUTS), batch_size=8),
    ],
    ids=["pair", "three", "list", "inputs", "used once", "loader"],
)
def test_the_model_gets_the_inputs_in_eval_mode_and_no_targets_are_needed(loader):
    model = net(dropout=0.5)
    made = trainer(model=model)
    (outputs,) = made.predict(loader)
    assert torch.equal(outputs, expected(model, INPUTS)[0])
    assert not outputs.requires_grad


class Total(nn.Module):
    def forward(self, batch):
        return batch["x"] + batch["y"]


class OwnLoss(Total):
    def loss(self, outputs, batch):
        return outputs.mean()


@pytest.mark.parametrize("model", [OwnLoss(), Total()])
def test_a_mapping_is_the_inputs_and_a_model_with_its_own_loss_gets_the_whole_batch(model):
    (outputs,) = trainer(None, model, loss_fn=None, optimizers=None).predict([{"x": INPUTS, "y": INPUTS}])
    assert torch.equal(outputs, INPUTS + INPUTS)


def test_it_fires_the_events_of_an_evaluation_and_computes_and_logs_nothing_else():
    events, memory = [], Memory()
    labels = at("eval_batch_end", lambda state: events.append(f"{state.dataloader_label} {state.eval_timestamp.batch}"))
    made = trainer(callbacks=[writing_down(events), labels], loggers=memory, loss_fn=lambda *given: 1 / 0)
    del events[:]
    assert len(list(made.predict(batches(8, 3)))) == 2
    batch = ["eval_batch_start", "eval_before_forward", "eval_after_forward", "eval_batch_end"]
    assert events == ["eval_start", *batch, "predict 1", *batch, "predict 2", "eval_end"]
    assert (memory.metrics, made.state.metrics) == ([], {})


IN_WORK = ("batch", "outputs", "loss", "dataloader", "dataloader_label", "dataloader_len", "eval_timestamp", "metrics")


def everything(made):
    state = made.state
    return {
        **{name: getattr(state, name) for name in IN_WORK},
        "modes": [module.training for module in state.model.modules()],
        "weights": {name: value.clone() for name, value in state.model.state_dict().items()},
        "grad": torch.is_grad_enabled(),
        "generators": (random.getstate(), torch.get_rng_state(), str(np.random.get_state())),
        "phase": made._session.status.phase,
    }


def doubling():
    """Return an algorithm that has doubled weights in the model while it is evaluated, as an average would be."""

    def double(event, state):
        state.model.weight *= 2 if event is Event.EVAL_START else 0.5  # it fails where gradients are recorded

    return acting(double, "eval_start", "eval_end", writes=("model",))


def exhausted(given):
    assert len(list(given)) == 3


def closed(given):
    next(given)
    given.close()


def collected(given):
    next(given)
    del given
    gc.collect()


def test_in_between_modes_and_draws_are_the_callers_and_what_the_loader_draws_differs():
    class Draws:
        def __iter__(self):
            return (torch.rand(2, 4) for _ in range(3))

    made, given, drawn = trainer(model=nn.Identity(), optimizers=None), [], []
    torch.manual_seed(3)
    plain = list(Draws())
    torch.manual_seed(3)
    for outputs in made.predict(Draws()):
        assert torch.is_grad_enabled()
        given.append(outputs)
        drawn.append(torch.rand(2, 4))
    assert same(drawn, plain)
    assert not same(given[0], given[1]) and not same(given[1], given[2])


class Breaks:
    """Draws, and gives a batch that the model can't take after the first."""

    def __iter__(self):
        for width in (4, 9, 4):
            draw()
            yield (torch.zeros(2, width),)


def draw():
    random.random()
    np.random.random()
    torch.rand(2)


@pytest.mark.parametrize("ends", [exhausted, closed, collected, lambda given: given.close()])
def test_whatever_ends_it_everything_is_as_before(ends):
    made = trainer(max_duration="2ep", algorithms=doubling(), callbacks=at("eval_batch_start", lambda state: draw()))
    made.fit("1ep")
    made.state.model.bias.requires_grad = True
    before = everything(made)
    ends(made.predict(batches(8, 3, 2)))
    gc.collect()
    assert same(everything(made), before)
    made.fit()


def test_if_it_fails_everything_is_as_before_and_the_error_is_the_models():
    made, doubled = trainer(algorithms=doubling()), linear()
    doubled.weight.data *= 2
    before, given = everything(made), made.predict(Breaks())
    assert same(next(given), expected(doubled, torch.zeros(2, 4))[0])
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as error:
        next(given)
    assert same(everything(made), before)
    assert notes(error) == []
    assert list(given) == []


def test_meanwhile_nothing_else_runs_and_afterwards_it_does():
    made = trainer(eval_dataloader=batches(3))
    other, given = made.predict(batches(8)), made.predict(batches(8, 3))
    next(given)
    for call in (made.fit, made.eval, lambda: made.predict(batches(8)), lambda: next(other)):
        with pytest.raises(EngineError, match=r"a prediction is running, so .* can't be called: take all"):
            call()
    assert len(list(given)) == 1
    made.fit()


@pytest.mark.parametrize(
    ("loader", "error", "message"),
    [
        ({"a": batches(3)}, ArgumentTypeError, r"predict\(\) takes one loader, not a dict; call it for each of them"),
        (rows(3)[0], ArgumentTypeError, r"write predict\(\[tensor\]\) if it is one batch, or predict\(DataLoader\("),
        (3, ArgumentTypeError, r"the loader of predict\(\) is 3; it has to be an iterable of batches"),
        ([], ArgumentError, r"the loader of predict\(\) is empty"),
    ],
)
def test_what_gives_no_batches_is_refused_at_once(loader, error, message):
    with pytest.raises(error, match=message):
        trainer().predict(loader)


def test_a_closed_trainer_predicts_nothing_and_what_has_begun_ends_as_if_closed():
    model = linear()
    made = trainer(model=model, algorithms=doubling())
    given = made.predict(batches(8, 3))
    next(given)
    with torch.no_grad():
        made.close()
    with pytest.raises(ClosedEngineError):
        next(given)
    assert model.training
    assert same(model.state_dict(), linear().state_dict())
    assert made.state.eval_timestamp == Timestamp()
    with pytest.raises(ClosedEngineError):
        made.predict(batches(8))


def test_under_autocast_outputs_are_what_an_evaluation_computes_as_float32():
    seen = []
    keep = at("eval_after_forward", lambda state: seen.append(state.outputs))
    made = trainer(precision="amp_bf16", callbacks=keep)
    made.eval([(INPUTS, TARGETS)])
    (outputs,) = made.predict([(INPUTS, TARGETS)])
    assert (outputs.dtype, seen[0].dtype) == (torch.float32, torch.bfloat16)
    assert torch.equal(outputs, seen[0].float())


def test_a_list_of_samples_is_not_taken_for_inputs():
    with pytest.raises(ArgumentTypeError, match="is a list of 2 samples"):
        list(trainer().predict([[{"x": INPUTS[0]}, {"x": INPUTS[1]}]]))
