"""Optimizers that train at one point and have another evaluated, as schedule-free ones: which is where, to the bit."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from engine_core import Event, load_model
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.config import Config
from engine_core.errors import CheckpointWarning
from engine_core.run import train
from engine_core_author import ThreadRanks

from .parts import acting, at, batches, linear, same, trainer

RATE, PULL = 0.3, 0.9
DATA = batches(8, 6, 8, 5)


class TwoPoints(torch.optim.SGD):
    """Schedule-free SGD: gradients are taken at `y`, and the result is `x`, the mean of all `z`.

    As in Schedule-Free, `train()` and `eval()` move the parameters between both, up to rounding.
    """

    def __init__(self, parameters, lr=RATE):
        super().__init__(parameters, lr=lr)
        for group in self.param_groups:
            group.update(is_training=False, steps=0)

    def _move(self, weight, *, is_training):
        for group in self.param_groups:
            if group["is_training"] is not is_training:
                for p in group["params"]:
                    if p in self.state:
                        p.lerp_(self.state[p]["z"], weight)
            group["is_training"] = is_training

    @torch.no_grad()
    def eval(self):
        self._move(1 - 1 / PULL, is_training=False)

    @torch.no_grad()
    def train(self):
        self._move(1 - PULL, is_training=True)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            assert group["is_training"], "step() in eval mode"
            group["steps"] += 1
            part = 1 / group["steps"]
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.clone())
                p.lerp_(z, part).add_(p.grad, alpha=group["lr"] * (PULL * (1 - part) - 1))
                z.sub_(p.grad, alpha=group["lr"])


def points(count):
    """Return the points of training and for evaluation after each batch, by a loop that never goes back from one."""
    model, trained, evaluated = linear(), [], []
    optimizer = TwoPoints(model.parameters())
    optimizer.train()
    for number in range(count):
        inputs, targets = DATA[number % len(DATA)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        trained.append(weights(model))
        optimizer.eval()
        evaluated.append(weights(model))
        optimizer.train()
        put(model, trained[-1])
    return trained, evaluated


@torch.no_grad()
def put(model, point):
    for parameter, value in zip(model.parameters(), point, strict=True):
        parameter.copy_(value)
    return model


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def with_two_points(**settings):
    return trainer(DATA, **{"optimizers": TwoPoints, "eval_dataloader": DATA[:2], "max_duration": "2ep", **settings})


def equal(one, other):
    return all(same(a, b) for a, b in zip(one, other, strict=True))


@torch.no_grad()
def loss_at(point):
    model = put(linear(), point)
    sums = [nn.functional.cross_entropy(model(x), y, reduction="sum").item() for x, y in DATA[:2]]
    return sum(sums) / 14


def test_evaluations_are_at_the_point_for_evaluation_and_training_does_not_notice():
    seen = []
    note = at("eval_batch_start", lambda state: seen.append(weights(state.model)))
    made = with_two_points(eval_interval="1ba", callbacks=note)
    made.fit()
    trained, evaluated = points(8)
    assert [equal(*pair) for pair in zip(seen[::2], evaluated, strict=True)] == [True] * 8
    assert made.state.metrics["eval/loss"] == pytest.approx(loss_at(evaluated[-1]), abs=1e-6)
    assert equal(weights(made.state.model), trained[-1])


@pytest.mark.parametrize("event", ["eval_start", "eval_before_forward", "eval_end"])
def test_an_evaluation_that_raises_leaves_the_point_of_training(event):
    def fail(state):
        if state.timestamp.batch == 5:
            raise ZeroDivisionError

    made = with_two_points(eval_interval="1ba", callbacks=at(event, fail))
    with pytest.raises(ZeroDivisionError):
        made.fit()
    assert equal(weights(made.state.model), points(5)[0][-1])
    made.state.callbacks.clear()
    made.fit()
    assert equal(weights(made.state.model), points(8)[0][-1])


def test_saved_weights_are_those_for_evaluation_and_a_resume_in_mid_epoch_trains_on(tmp_path):
    """Each checkpoint, in a run that evaluates after each batch, and with the best one."""
    saver = CheckpointSaver(tmp_path, interval="1ba", keep_last=10, keep_best=1, metric="eval/loss")
    first = with_two_points(callbacks=saver, eval_interval="1ba")
    first.fit("6ba")
    _, evaluated = points(6)
    for number, folder in enumerate(sorted(tmp_path.glob("ep*"), key=lambda path: int(path.name.split("ba")[1]))):
        assert equal(weights(load_model(folder, linear())), evaluated[number])
        assert equal(load_file(folder / "model.safetensors").values(), sorted(evaluated[number], key=torch.Tensor.dim))
    losses = [loss_at(point) for point in evaluated]
    assert equal(weights(load_model(tmp_path / "best", linear())), evaluated[losses.index(min(losses))])

    second = with_two_points(load_path=tmp_path, eval_interval="1ba")
    assert equal(weights(second.state.model), points(6)[0][-1])
    second.fit()
    assert equal(weights(second.state.model), points(8)[0][-1])


def test_predictions_are_made_at_the_point_for_evaluation_and_a_rollback_goes_to_that_of_training():
    seen = []

    def back(state):
        if state.timestamp.batch == 6:
            state.loop.go_back(state.loop.snapshot())
            seen.append(weights(state.model))

    made = with_two_points(callbacks=at("batch_checkpoint", back))
    made.fit("5ba")
    outputs, inferred = made.predict(DATA), put(linear(), points(5)[1][-1])
    assert same(next(outputs), inferred(DATA[0][0]))
    outputs.close()  # before its end
    made.fit()
    assert equal(seen[0], points(6)[0][-1])
    assert equal(weights(made.state.model), points(8)[0][-1])


def test_weights_alone_are_loaded_at_the_point_for_evaluation(tmp_path):
    """So are those that fit, if not all do and the optimizer starts anew."""
    with_two_points(callbacks=CheckpointSaver(tmp_path)).fit("6ba")
    alone = with_two_points(load_path=tmp_path, load_weights_only=True)
    evaluated = points(6)[1][-1]
    assert equal(weights(alone.state.model), evaluated)
    with pytest.warns(CheckpointWarning, match="not all weights were loaded"):
        other = with_two_points(model=nn.Linear(4, 3, bias=False), load_path=tmp_path, load_strict=False)
    assert same(other.state.model.weight.detach(), evaluated[0])


def zeros():
    """Return an algorithm that has zeros evaluated, as an average of weights would be."""
    own, average = [], {"weight": torch.zeros(3, 4), "bias": torch.zeros(3)}

    def swap(event, state):
        if event is Event.EVAL_START:
            own.append({name: weight.clone() for name, weight in state.model.state_dict().items()})
        state.model.load_state_dict(average if event is Event.EVAL_START else own.pop())

    made = acting(swap, Event.EVAL_START, Event.EVAL_END, writes=("model",))
    made.averaged_state_dict, made.state_dict = lambda: average, lambda: {"average": average}
    return made


def test_an_average_has_the_last_word_and_trained_weights_are_at_the_point_for_evaluation(tmp_path):
    seen = []
    note = at("eval_batch_start", lambda state: seen.append(weights(state.model)))
    made = with_two_points(algorithms=zeros(), callbacks=[note, CheckpointSaver(tmp_path)], eval_interval="1ba")
    made.fit()
    trained, evaluated = points(8)
    nought = [torch.zeros(3, 4), torch.zeros(3)]
    assert len(seen) == 16 and all(equal(at_start, nought) for at_start in seen)
    assert equal(weights(made.state.model), trained[-1])
    assert equal(weights(load_model(tmp_path, linear())), nought)
    assert equal(weights(load_model(tmp_path, linear(), weights="trained")), evaluated[-1])


def test_ranks_evaluate_and_save_at_one_point(tmp_path):
    def program(ranks):
        saver = CheckpointSaver(tmp_path, sharded=True)
        with with_two_points(parallel=ranks, callbacks=[saver], eval_interval="1ba") as made:
            made.fit("6ba")
            return weights(made.state.model), made.state.metrics["eval/loss"]

    trained, evaluated = points(6)
    for own, loss in ThreadRanks.run(program):
        torch.testing.assert_close(own, trained[-1])
        assert loss == pytest.approx(loss_at(evaluated[-1]), abs=1e-6)
    torch.testing.assert_close(weights(load_model(tmp_path, linear())), evaluated[-1])


def data():
    return DATA


def test_a_run_of_a_config_leaves_the_weights_for_evaluation(tmp_path):
    named = {"model": "linear", "data": "data", "eval_data": "data", "optimizer": "TwoPoints"}
    config = Config(
        **{key: {"target": f"{__name__}:{name}"} for key, name in named.items()},
        loss={"target": "torch.nn:CrossEntropyLoss"},
        trainer={"max_duration": "2ep", "progress_bar": False, "device": "cpu"},
    )
    train(config, tmp_path / "out")
    left, evaluated = load_file(tmp_path / "out" / "model.safetensors"), points(8)[1][-1]
    assert equal([left["weight"], left["bias"]], evaluated)
    for given in ("evaluated", "trained"):
        assert equal(weights(load_model(tmp_path / "out", linear(), weights=given)), evaluated)
