"""Wrong arguments are refused where they are given, with the value and what to do."""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from engine_core import Event
from engine_core.errors import ArgumentTypeError
from sb_plugin import SelectiveBackprop, select_using_loss

WRONG = [
    ({"keep": 0.0}, ValueError, r"keep=0\.0 .*\(0, 1\].*as 0\.5"),
    ({"keep": 1.5}, ValueError, r"keep=1\.5 .*\(0, 1\]"),
    ({"keep": -0.1}, ValueError, r"keep=-0\.1"),
    ({"keep": math.nan}, ValueError, "keep=nan .*finite"),
    ({"keep": True}, TypeError, r"keep=True \(bool\) has to be a number"),
    ({"keep": "0.5"}, TypeError, r"keep='0\.5' \(str\)"),
    ({"keep": None}, TypeError, "keep=None"),
    ({"scale_factor": 1.5}, ValueError, r"scale_factor=1\.5 .*1 at full size"),
    ({"scale_factor": 0}, ValueError, "scale_factor=0 "),
    ({"scale_factor": math.inf}, ValueError, "scale_factor=inf"),
    ({"start": 0.9, "end": 0.9}, ValueError, r"start=0\.9 has to be before end=0\.9"),
    ({"start": 0.95}, ValueError, r"start=0\.95 has to be before end=0\.9"),
    ({"start": -0.1}, ValueError, r"start=-0\.1 .*\[0, 1\]"),
    ({"end": 1.1}, ValueError, r"end=1\.1 .*\[0, 1\]"),
    ({"start": math.nan}, ValueError, "start=nan"),
    ({"start": False}, TypeError, "start=False"),
    ({"end": "1"}, TypeError, "end='1'"),
    ({"interrupt": -1}, ValueError, r"interrupt=-1 .*\[0, inf\).*0: none"),
    ({"interrupt": 2.0}, TypeError, r"interrupt=2\.0 \(float\) has to be a whole number"),
    ({"interrupt": True}, TypeError, "interrupt=True"),
    ({"interrupt": None}, TypeError, "interrupt=None"),
    ({"input_key": None}, TypeError, "input_key=None has to be an index"),
    ({"input_key": True}, TypeError, "input_key=True"),
    ({"target_key": 1.0}, TypeError, r"target_key=1\.0"),
    ({"target_key": (len, "x")}, TypeError, r"target_key=.*pair \(getter, setter\)"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), WRONG, ids=lambda value: str(value)[:30])
def test_the_constructor_refuses(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SelectiveBackprop(**arguments)


def test_the_defaults_are_those_of_the_reference() -> None:
    given = vars(SelectiveBackprop())
    assert {name: value for name, value in given.items() if name[0] != "_" and name != "metadata"} == {
        "start": 0.5,
        "end": 0.9,
        "keep": 0.5,
        "scale_factor": 0.5,
        "interrupt": 2,
        "input_key": 0,
        "target_key": 1,
        "selector": "composer",
        "scorer": "forward",
        "index_key": None,
        "refresh": 3,
        "momentum": 0.5,
        "bn": "frozen",
        "precision": "engine",
        "reuse": "off",
        "floor": 0.0,
        "multiple_of": 1,
        "generator_seed": None,
        "scope": "global",
        "log_by": None,
    }


def test_numpy_numbers_and_all_kinds_of_keys_are_taken() -> None:
    pair = (lambda batch: batch.x, setattr)
    algorithm = SelectiveBackprop(keep=np.float32(0.5), interrupt=np.int64(3), input_key="x", target_key=pair)
    assert (algorithm.keep, algorithm.interrupt, algorithm.target_key) == (0.5, 3, pair)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"keep": 0}, ValueError, "keep=0 "),
        ({"scale_factor": 2}, ValueError, "scale_factor=2 "),
        (
            {"scale_factor": 0.5},
            ValueError,
            r"3, 4 or 5 dimensions, but these have 2 \(shape \(8, 3\)\): set scale_factor=1",
        ),
        ({"loss_fun": "mse"}, TypeError, r"loss_fun has to be callable as loss_fun\(outputs, targets\), not 'mse'"),
        ({"loss_fun": lambda a, b: a}, TypeError, "takes no `reduction`.*reduction='mean'"),
        ({"loss_fun": nn.Linear(1, 1)}, TypeError, "Linear takes no `reduction`"),
        ({"target": torch.zeros(7)}, ValueError, "input has 8 rows and target 7"),
        ({"target": 3}, TypeError, "target has to be a tensor"),
        ({"input": torch.tensor(1.0)}, TypeError, "input has to be a tensor of rows"),
    ],
)
def test_the_function_refuses(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    right = {"input": torch.zeros(8, 3), "target": torch.zeros(8), "model": nn.Identity(), "loss_fun": nn.L1Loss()}
    with pytest.raises(error, match=message):
        select_using_loss(**{**right, **arguments})


class ScoresWhenCalled:
    def __call__(self, batch: Any, state: Any) -> torch.Tensor:
        return batch[0].sum(1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"scorer": lambda batch: batch}, "scorer=<lambda> can't be called with (batch, state): too many positional"),
        ({"scorer": dict}, "scorer=dict is a class: give a function (batch, state), or an instance to call like this"),
        ({"scorer": ScoresWhenCalled}, "scorer=ScoresWhenCalled is a class"),
        ({"selector": lambda scores, k: scores}, "selector=<lambda> can't be called with (scores, k, generator): too"),
        ({"selector": lambda a, b, c, d: a}, "missing a required argument: 'd'"),
    ],
)
def test_a_function_that_cannot_be_called_later_is_refused_now(given: Any, said: str) -> None:
    with pytest.raises(ArgumentTypeError, match=re.escape(said)):
        SelectiveBackprop(scale_factor=1, **given)


@pytest.mark.parametrize(
    "scorer", [ScoresWhenCalled(), lambda *both: both[0], lambda batch, state, power=2: batch, max, print]
)
def test_what_can_be_called_so_is_taken(scorer: Any) -> None:
    assert SelectiveBackprop(scale_factor=1, scorer=scorer).scorer is scorer


TABLE = {"index_key": 2, "scale_factor": 1}
ALWAYS = {"start": 0, "end": 1}


@pytest.mark.parametrize(
    ("arguments", "needs", "events"),
    [
        ({}, "duration row_loss global_batch", ""),
        ({"start": 0}, "duration row_loss global_batch", ""),
        ({"start": 0.5, "end": 1}, "duration row_loss global_batch", ""),
        (ALWAYS, "row_loss global_batch", ""),
        ({**ALWAYS, "scope": "rank"}, "own_forward row_loss", ""),
        ({"scorer": "stale", "index_key": 2, "scope": "rank"}, "own_forward duration row_loss", ""),
        ({"scorer": max, "scale_factor": 1}, "duration row_loss global_batch", ""),
        (
            {**ALWAYS, **TABLE, "scorer": "carried"},
            "whole_batch row_loss global_batch",
            "before_train_batch after_loss batch_end",
        ),
        (
            {**ALWAYS, **TABLE, "scorer": "carried", "scope": "rank"},
            "whole_batch row_loss",
            "before_train_batch after_loss",
        ),
        ({**ALWAYS, "scale_factor": 1, "reuse": "on"}, "row_loss global_batch", "before_forward after_forward"),
        ({**ALWAYS, "scale_factor": 1, "reuse": "auto"}, "row_loss global_batch", "before_forward after_forward"),
        ({"selector": "uniform"}, "duration global_batch", ""),
        ({**ALWAYS, "selector": "uniform", "scope": "rank"}, "", ""),
        ({"keep": 1}, "", ""),
        ({**TABLE, "scorer": "carried", "keep": 1}, "", ""),
        ({"scale_factor": 1, "reuse": "on", "scope": "rank", "keep": 1}, "", ""),
    ],
    ids=lambda value: str(value)[:40],
)
def test_its_needs_and_events_are_those_of_its_arguments(arguments: dict[str, Any], needs: str, events: str) -> None:
    metadata, always = SelectiveBackprop(**arguments).metadata, {"init", "fit_start", "after_dataloader", "fit_end"}
    assert metadata.needs == tuple(needs.split())
    assert metadata.events == tuple(event for event in Event if event in {*always, *events.split()})
    assert metadata == SelectiveBackprop.metadata.replace(needs=metadata.needs, events=metadata.events)
