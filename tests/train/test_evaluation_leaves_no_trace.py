"""An evaluation leaves training as it was: weights, modes, random numbers, the batch in work."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from engine_core import State
from engine_core.errors import ArgumentError, EngineError

from .parts import at, batches, net, rows, same, trainer


def draw(state: State) -> None:
    """Draw from every global stream."""
    random.random()
    np.random.random()
    torch.rand(3)


def fitted(**settings: Any) -> Any:
    model = net(dropout=0.5)
    loader = DataLoader(TensorDataset(*rows(20)), batch_size=8, shuffle=True)
    trainer(loader, model, max_duration="3ep", seed=2, **settings).fit()
    return model.state_dict()


def test_runs_with_and_without_evaluation_end_with_the_same_weights() -> None:
    loader = DataLoader(TensorDataset(*rows(9)), batch_size=2, shuffle=True)
    evaluated = fitted(eval_dataloader=loader, eval_interval="1ba", callbacks=at("eval_batch_start", draw))
    assert same(evaluated, fitted())


def test_evaluation_uses_no_dropout_and_running_statistics() -> None:
    model = net(dropout=0.5)
    made = trainer(batches(8), model, eval_dataloader=batches(8))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first = made.eval()
    assert made.eval() == first
    assert same(model.state_dict(), before)
    outputs = model.eval()(rows(8, seed=0)[0])
    assert first["eval/loss"] == pytest.approx(nn.functional.cross_entropy(outputs, rows(8, seed=0)[1]).item())


def test_frozen_modules_stay_in_eval_mode_and_the_others_in_train_mode() -> None:
    model = net()
    model[1].eval()
    seen: list[list[bool]] = []
    note = at("eval_batch_start", lambda state: seen.append([m.training for m in state.model.modules()]))
    made = trainer(batches(8, 8), model, eval_dataloader=batches(8), callbacks=note)
    made.fit()
    assert seen == [[False] * 6]
    assert [m.training for m in model.modules()] == [True, True, False, True, True, True]


def test_a_model_in_eval_mode_is_trained_in_train_mode() -> None:
    model = net().eval()
    made = trainer(batches(8), model, eval_dataloader=batches(8))
    made.eval()
    assert not model.training
    with pytest.warns(UserWarning, match="put 6 modules of it into train mode"):
        made.fit()
    assert model.training


def test_no_graph_is_built() -> None:
    seen: list[bool] = []
    made = trainer(
        eval_dataloader=batches(8),
        callbacks=at("eval_after_forward", lambda state: seen.append(state.outputs.requires_grad)),
    )
    made.eval()
    assert seen == [False]
    assert all(p.grad is None for p in made.state.model.parameters())


IN_WORK = ("batch", "outputs", "loss", "dataloader", "dataloader_label", "dataloader_len", "timestamp")


def test_the_batch_in_work_is_put_back() -> None:
    """Also in the middle of a batch, where a callback asks for an evaluation."""
    seen: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def evaluate(state: State) -> None:
        before = {name: getattr(state, name) for name in IN_WORK}
        made.eval()
        seen.append((before, {name: getattr(state, name) for name in IN_WORK}))

    made = trainer(batches(8), eval_dataloader=batches(3), callbacks=at("before_backward", evaluate))
    made.fit()
    ((before, after),) = seen
    assert [name for name in IN_WORK if after[name] is not before[name]] == []
    assert (before["dataloader_label"], before["loss"].requires_grad) == ("train", True)


def test_while_it_runs_state_shows_what_it_works_on() -> None:
    seen: list[Any] = []
    loader = batches(3, 2)

    def note(state: State) -> None:
        seen.append((state.dataloader is loader, state.dataloader_label, state.dataloader_len, len(state.batch[0])))

    trainer(eval_dataloader={"new": loader}, callbacks=at("eval_batch_start", note)).eval()
    assert seen == [(True, "new", 2, 3), (True, "new", 2, 2)]


def test_eval_before_any_fit() -> None:
    made = trainer(None, eval_dataloader=batches(3), max_duration=None, optimizers=None)
    assert list(made.eval()) == ["eval/loss"]
    assert (made.state.batch, made.state.dataloader, made.state.timestamp.batch) == (None, None, 0)


def test_an_exception_leaves_everything_as_it_was_too() -> None:
    def fail(state: State) -> None:
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


class Once:
    """Gives its batches only once."""

    def __init__(self) -> None:
        self.batches = iter(batches(3))

    def __iter__(self) -> Iterator[Any]:
        return self.batches


def test_a_loader_that_is_used_up_is_named() -> None:
    made = trainer(eval_dataloader={"new": Once()})
    made.eval()
    with pytest.raises(EngineError) as error:
        made.eval()
    assert str(error.value) == (
        "the evaluation loader 'new' gave no batches; it has to be an iterable that starts over for each "
        "evaluation, as a DataLoader or a list does"
    )


def test_without_a_loader_there_is_nothing_to_evaluate_on() -> None:
    with pytest.raises(ArgumentError) as error:
        trainer().eval()
    assert str(error.value) == "there is nothing to evaluate on: give eval_dataloader to the Trainer or to eval()"
