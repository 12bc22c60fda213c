"""What an evaluation gives, when it runs, and that it leaves training as it was."""

import math
import random
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import EngineError

from .parts import Memory, at, batches, linear, net, rows, same, trainer


class OwnLoss(nn.Module):
    """Its forward takes the whole batch, a dict; it is a loss of squares."""

    def __init__(self):
        super().__init__()
        self.net = linear()

    def forward(self, batch):
        return self.net(batch["x"])

    def loss(self, outputs, batch):
        return {"ce": F.cross_entropy(outputs, batch["y"]), "l2": outputs.pow(2).mean()}


class WithEvalForward(OwnLoss):
    def eval_forward(self, batch):
        return 2 * self(batch), batch["y"]


def test_several_loaders_are_distinguished_by_their_labels():
    seen = []
    loaders = {"seen": batches(8, 2), "new": [rows(5, seed=9)]}
    expected = {}
    for label, loader in loaders.items():
        inputs, targets = map(torch.cat, zip(*loader, strict=True))
        expected[f"{label}/loss"] = pytest.approx(F.cross_entropy(linear()(inputs), targets).item(), abs=1e-6)
    made = trainer(eval_dataloader=loaders, callbacks=at("eval_end", lambda state: seen.append(state.metrics)))
    results = made.eval()
    assert results == expected == made.state.metrics
    assert seen == [{"seen/loss": results["seen/loss"]}, results]
    assert list(made.eval(batches(8))) == ["eval/loss"]


def test_the_same_keys_are_logged_at_the_batch_where_it_ran():
    memory = Memory()
    made = trainer(eval_dataloader={"a": batches(3), "b": batches(2)}, loggers=memory)
    results = made.eval()
    made.fit()
    logged = [(step, metrics) for step, metrics in memory.metrics if "train/lr/0" not in metrics]
    assert logged[:2] == [(0, {"a/loss": results["a/loss"]}), (0, {"b/loss": results["b/loss"]})]
    assert [(step, list(metrics)) for step, metrics in logged[2:]] == [
        *((2, ["train/loss_epoch"]), (2, ["a/loss"]), (2, ["b/loss"]))
    ]


@pytest.mark.parametrize(
    ("interval", "evaluated_at"), [("1ep", [3, 5, 6]), ("4ba", [4, 5, 6]), ("10sp", [2, 3, 5, 6]), ("9ep", [5, 6])]
)
def test_it_runs_at_each_interval_and_once_more_at_the_end_of_each_fit(interval, evaluated_at):
    seen = []
    note = at("eval_start", lambda state: seen.append(state.timestamp.batch))
    given = {"eval_dataloader": batches(3), "eval_interval": interval, "callbacks": note}
    made = trainer(batches(8, 8, 4), max_duration="2ep", **given)
    made.fit("5ba")
    made.fit()
    assert seen == evaluated_at


def dicts(*sizes):
    return [{"x": inputs, "y": targets} for inputs, targets in batches(*sizes)]


def test_the_targets_of_a_batch_are_freed_before_the_next_forward():
    made, alive, data = [], [], dicts(8, 3, 8)

    class MakesTargets(OwnLoss):
        def eval_forward(self, batch):
            alive.append(sum(earlier() is not None for earlier in made))
            targets = batch["y"].clone()
            made.append(weakref.ref(targets))
            return self(batch), targets

    trainer(data, MakesTargets(), loss_fn=None, eval_dataloader=data).eval()
    assert alive == [0, 0, 0]


def test_eval_forward_gives_outputs_and_targets_to_loss_and_metrics():
    model = WithEvalForward()
    received = []

    class Keep:
        def reset(self):
            received.clear()

        def update(self, outputs, targets):
            received.append((outputs, targets))

        def compute(self):
            return len(received)

    batch = dicts(6)[0]
    results = trainer([batch], model, loss_fn=None, eval_dataloader=[batch], metrics={"seen": Keep()}).eval()
    outputs = 2 * model.net(batch["x"])
    assert results == {"eval/loss": pytest.approx(sum(model.loss(outputs, batch).values()).item()), "eval/seen": 1.0}
    assert torch.equal(received[0][0], outputs) and received[0][1] is batch["y"]


def test_a_loss_that_is_nan_although_targets_count_makes_the_set_nan():
    bad = torch.full((2, 4), math.nan), torch.zeros(2, dtype=torch.long)
    assert math.isnan(trainer().eval([rows(4), bad])["eval/loss"])


def test_an_evaluation_that_was_interrupted_keeps_the_losses_it_has_even_a_nan(tmp_path):
    loss, nothing = nn.CrossEntropyLoss(ignore_index=1), (torch.randn(4, 4), torch.ones(4, dtype=torch.long))
    loaders = {"none": [nothing], "first": batches(3, 4), "second": batches(4, 4, 1)}
    memory, once = Memory(), iter([True])

    def pause(state):
        if state.dataloader_label == "second" and next(once, False):
            state.pause_training()

    def fitted(**settings):
        callbacks = [at("eval_batch_end", pause), CheckpointSaver(tmp_path / "run", "100ba")]
        with trainer(batches(4), loss_fn=loss, eval_dataloader=loaders, callbacks=callbacks, **settings) as made:
            made.fit()
            return made.state.metrics, made.eval()

    fitted()
    resumed, again = fitted(autoresume=True, loggers=memory)
    assert [name for _, metrics in memory.metrics[:1] for name in metrics] == ["second/loss"]
    assert math.isnan(resumed["none/loss"])
    assert resumed == pytest.approx(again, nan_ok=True)


def draw(state):
    """Draw from every global stream."""
    random.random()
    np.random.random()
    torch.rand(3)


def fitted(**settings):
    model = net(dropout=0.5)
    loader = DataLoader(TensorDataset(*rows(20)), batch_size=8, shuffle=True)
    trainer(loader, model, max_duration="3ep", seed=2, **settings).fit()
    return model.state_dict()


def test_runs_with_and_without_evaluation_end_with_the_same_weights():
    loader = DataLoader(TensorDataset(*rows(9)), batch_size=2, shuffle=True)
    evaluated = fitted(eval_dataloader=loader, eval_interval="1ba", callbacks=at("eval_batch_start", draw))
    assert same(evaluated, fitted())


def test_evaluation_uses_no_dropout_and_running_statistics():
    model = net(dropout=0.5)
    made = trainer(batches(8), model, eval_dataloader=batches(8))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first = made.eval()
    assert made.eval() == first
    assert same(model.state_dict(), before)
    outputs = model.eval()(rows(8, seed=0)[0])
    assert first["eval/loss"] == pytest.approx(nn.functional.cross_entropy(outputs, rows(8, seed=0)[1]).item())


def test_while_it_runs_state_shows_what_it_works_on_and_no_graph_is_built():
    seen = []
    loader = batches(3, 2)

    def note(state):
        shown = state.dataloader is loader, state.dataloader_label, state.dataloader_len, len(state.batch[0])
        seen.append((*shown, state.outputs.requires_grad))

    trainer(eval_dataloader={"new": loader}, callbacks=at("eval_after_forward", note)).eval()
    assert seen == [(True, "new", 2, 3, False), (True, "new", 2, 2, False)]


def test_a_trainer_that_only_evaluates_needs_neither_a_length_nor_an_optimizer():
    made = trainer(eval_dataloader=batches(3), max_duration=None, optimizers=None)
    assert list(made.eval()) == ["eval/loss"]
    assert (made.state.batch, made.state.dataloader, made.state.timestamp.batch) == (None, None, 0)


IN_WORK = ("batch", "outputs", "loss", "dataloader", "dataloader_label", "dataloader_len", "timestamp")


def test_the_batch_in_work_is_put_back():
    """Also in the middle of a batch, where a callback asks for an evaluation."""
    seen = []

    def evaluate(state):
        before = {name: getattr(state, name) for name in IN_WORK}
        made.eval()
        seen.append(before["dataloader_label"])
        assert before["loss"].requires_grad
        assert [name for name in IN_WORK if getattr(state, name) is not before[name]] == []

    made = trainer(batches(8), eval_dataloader=batches(3), callbacks=at("before_backward", evaluate))
    made.fit()
    assert seen == ["train"]


def test_an_exception_leaves_everything_as_it_was_too():
    def fail(state):
        if state.dataloader_label == "b":
            draw(state)
            raise ZeroDivisionError

    model = net(dropout=0.5)
    made = trainer(batches(8), model, eval_dataloader={"a": batches(3)}, callbacks=at("eval_batch_end", fail))
    results = made.eval()
    streams = random.getstate(), torch.get_rng_state().tolist(), str(np.random.get_state())
    with pytest.raises(ZeroDivisionError):
        made.eval({"a": batches(4), "b": batches(3)})
    assert model.training and torch.is_grad_enabled()
    assert (made.state.metrics, made.state.batch, made.state.dataloader) == (results, None, None)
    assert (random.getstate(), torch.get_rng_state().tolist(), str(np.random.get_state())) == streams
    made.fit()


def test_a_loader_that_is_used_up_is_named():
    made = trainer(eval_dataloader={"new": iter(batches(3))})
    made.eval()
    says = "the evaluation loader 'new' gave no batches; it has to be an iterable that starts over for each evaluation"
    with pytest.raises(EngineError, match=says):
        made.eval()
