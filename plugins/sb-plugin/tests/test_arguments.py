"""Wrong arguments, and such as exclude each other, are refused where they are given, with what to do."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from engine_core import Event
from engine_core.errors import ArgumentTypeError
from sb_plugin import SelectiveBackprop, select_using_loss

IDS = {"index_key": 2}
REUSE = {"reuse": "on", "scale_factor": 1}


def scorer(batch, state): ...


def selector(scores, k, generator): ...


WRONG = [
    ({"keep": 0.0}, ValueError, r"keep=0\.0 .*\(0, 1\].*as 0\.5"),
    ({"keep": 1.5}, ValueError, r"keep=1\.5 .*\(0, 1\]"),
    ({"keep": True}, TypeError, r"keep=True \(bool\) has to be a number"),
    ({"scale_factor": 1.5}, ValueError, r"scale_factor=1\.5 .*1 at full size"),
    ({"start": 0.9, "end": 0.9}, ValueError, r"start=0\.9 has to be before end=0\.9"),
    ({"end": "1"}, TypeError, "end='1'"),
    ({"interrupt": -1}, ValueError, r"interrupt=-1 .*\[0, inf\).*0: none"),
    ({"interrupt": 2.0}, TypeError, r"interrupt=2\.0 \(float\) has to be a whole number"),
    ({"input_key": None}, TypeError, "input_key=None has to be an index"),
    ({"target_key": (len, "x")}, TypeError, r"target_key=.*pair \(getter, setter\)"),
    ({"index_key": 1.5}, TypeError, r"index_key=1\.5 has to be an index"),
    ({"selector": "cfd"}, ValueError, "selector='cfd' has to be one of 'composer', 'cdf', 'topk', 'uniform', or"),
    ({"scorer": "carry"}, ValueError, "has to be one of 'forward', 'stale', 'carried', 'proxy', 'rho', or"),
    ({"scorer": None}, TypeError, r"scorer=None \(NoneType\) has to be one of"),
    ({"bn": "freeze"}, ValueError, "bn='freeze' has to be one of 'frozen', 'eval', 'train'"),
    ({"precision": "fp16"}, ValueError, "precision='fp16' has to be one of 'engine', 'fp32', 'bf16'"),
    ({"reuse": True}, TypeError, r"reuse=True \(bool\) has to be one of"),
    ({"scope": "ranks"}, ValueError, "scope='ranks' has to be one of 'global', 'rank'.*'rank'"),
    ({"floor": 1}, ValueError, r"floor=1 has to be within \[0, 1\)"),
    ({"multiple_of": 0}, ValueError, r"multiple_of=0 has to be within \[1, inf\)"),
    ({"refresh": 0, "scorer": "stale", **IDS}, ValueError, r"refresh=0 has to be within \[1, inf\)"),
    ({"momentum": 1, "scorer": "carried", **IDS}, ValueError, r"momentum=1 has to be within \[0, 1\)"),
    ({"log_by": "classes"}, ValueError, "log_by='classes' has to be one of 'class', 'loss', or None.*'class'"),
    ({"log_by": True}, TypeError, r"log_by=True \(bool\) has to be one of"),
    ({"scorer": "proxy", "proxy": 3}, TypeError, r"proxy=3 has to be a net, a function that makes it, or 'module:fun"),
    ({"generator_seed": -1}, ValueError, r"generator_seed=-1 has to be within \[0, inf\)"),
]
EXCLUDED = [
    ({"scorer": "carried"}, "scorer='carried' keeps scores by example and needs index_key"),
    ({"scorer": "stale"}, "scorer='stale' keeps scores by example and needs index_key"),
    ({"selector": "uniform", "scorer": "carried", **IDS}, "'carried' is not used with selector='uniform'"),
    ({"selector": "uniform", "floor": 0.1}, "floor=0.1 mixes with the uniform law, which selector='uniform' is"),
    ({"selector": selector, "floor": 0.1}, "floor=0.1 is not used with your own selector"),
    (IDS, "index_key=2 needs scorer='stale', scorer='carried' or scorer='rho'; leave it out"),
    ({"scorer": "proxy"}, "scorer='proxy' needs proxy, a small net"),
    ({"scorer": "rho"}, "scorer='rho' needs irreducible, the losses (examples,) by a model"),
    ({"proxy": torch.nn.Linear}, "proxy is not used with scorer='forward': set scorer='proxy', or leave proxy out"),
    ({"scorer": "rho", "irreducible": "nowhere:net"}, "irreducible='nowhere:net' can't be imported: No module named"),
    ({"scorer": "proxy", "proxy": torch.nn.Linear, "bn": "eval"}, "bn='eval' needs a scoring forward"),
    ({"scorer": "rho", "irreducible": torch.ones(2), "scale_factor": 0.3}, "scale_factor=0.3 needs scorer='forward'"),
    ({"log_by": "loss", "scorer": "rho", "irreducible": torch.ones(2)}, "scorer='rho' gives others"),
    ({"scorer": "carried", "refresh": 4, **IDS}, "refresh=4 needs scorer='stale'"),
    ({"momentum": 0.1}, "momentum=0.1 needs scorer='carried'"),
    ({"scorer": "carried", "bn": "eval", **IDS}, "bn='eval' needs a scoring forward, and there is none with"),
    ({"selector": "uniform", "bn": "train"}, "bn='train' needs a scoring forward, and there is none with"),
    ({"scorer": "carried", "precision": "bf16", **IDS}, "precision='bf16' needs a scoring forward"),
    ({"selector": "uniform", "scale_factor": 0.3}, "scale_factor=0.3 needs scorer='forward' or scorer='stale'"),
    ({"scorer": "carried", "scale_factor": 0.3, **IDS}, "scale_factor=0.3 needs scorer='forward'"),
    ({"scorer": scorer, "scale_factor": 0.3}, "scale_factor=0.3 needs scorer='forward'"),
    ({"log_by": "loss", "selector": "uniform"}, "selector='uniform' draws without scores"),
    ({"log_by": "loss", "scorer": scorer, "scale_factor": 1}, "your own scorer gives others"),
    ({"reuse": "auto"}, "reuse='auto' reuses what the scoring forward computed"),
    ({"reuse": "on"}, "needs scale_factor=1, not 0.5"),
    ({**REUSE, "bn": "eval"}, "needs bn='frozen', not 'eval'"),
    ({**REUSE, "precision": "bf16"}, "needs precision='engine', not 'bf16'"),
    ({**REUSE, "scorer": "stale", **IDS}, "needs scorer='forward', not 'stale'"),
    ({**REUSE, "selector": "uniform"}, "needs a scoring forward"),
    ({"scorer": "carried", "index_key": 1}, "index_key=1 is where inputs or targets are"),
]


def named(value):
    """Return a test's id, the same in each process that runs the tests: no addresses."""
    return re.sub(r" at 0x\w+", "", str(value))[:40]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [*WRONG, *((given, ValueError, re.escape(words)) for given, words in EXCLUDED)],
    ids=named,
)
def test_the_constructor_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        SelectiveBackprop(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"scorer": scorer, "selector": selector, "floor": 0.0},
        {"scorer": scorer, "bn": "eval", "precision": "bf16"},
        {"scorer": "stale", "refresh": 1, "floor": 0.2, "selector": "topk", "bn": "eval", "scale_factor": 0.3, **IDS},
        {"scorer": "carried", "momentum": 0, "selector": "cdf", "scale_factor": 1, "index_key": "id"},
        {"selector": "uniform", "multiple_of": 8, "generator_seed": 0},
        REUSE,
    ],
    ids=named,
)
def test_what_goes_together_is_taken(arguments):
    algorithm = SelectiveBackprop(**arguments)
    assert {name: getattr(algorithm, name) for name in arguments} == arguments


def test_numpy_numbers_and_all_kinds_of_keys_are_taken():
    pair = (lambda batch: batch.x, setattr)
    algorithm = SelectiveBackprop(keep=np.float32(0.5), interrupt=np.int64(3), input_key="x", target_key=pair)
    assert (algorithm.keep, algorithm.interrupt, algorithm.target_key) == (0.5, 3, pair)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"scale_factor": 2}, ValueError, "scale_factor=2 "),
        ({"scale_factor": 0.5}, ValueError, r"but these have 2 \(shape \(8, 3\)\): set scale_factor=1"),
        ({"loss_fun": "mse"}, TypeError, r"loss_fun has to be callable as loss_fun\(outputs, targets\), not 'mse'"),
        ({"loss_fun": lambda a, b: a}, TypeError, "takes no `reduction`.*reduction='mean'"),
        ({"target": torch.zeros(7)}, ValueError, "input has 8 rows and target 7"),
        ({"target": 3}, TypeError, "target has to be a tensor"),
        ({"input": torch.tensor(1.0)}, TypeError, "input has to be a tensor of rows"),
        ({"selector": "top"}, ValueError, "selector='top' has to be one of 'composer', 'cdf', 'topk', 'uniform'"),
        ({"floor": 1.0}, ValueError, r"floor=1\.0 has to be within \[0, 1\): the share of the uniform distribution"),
        ({"floor": 0.1, "selector": "uniform"}, ValueError, r"floor=0\.1 .* selector='uniform' is: set floor=0"),
        ({"floor": 0.1, "selector": torch.topk}, ValueError, r"floor=0\.1 .* your own selector"),
        ({"multiple_of": 0}, ValueError, r"multiple_of=0 has to be within \[1, inf\)"),
        ({"generator": 3}, TypeError, r"generator=3 \(int\) has to be a torch\.Generator.*manual_seed\(3\)"),
        ({"generator": 3, "keep": 1}, TypeError, r"generator=3 \(int\)"),
    ],
)
def test_the_function_refuses_before_anything_runs(arguments, error, message):
    right = {"input": torch.zeros(8, 3), "target": torch.zeros(8), "model": None, "loss_fun": nn.L1Loss()}
    with pytest.raises(error, match=message):
        select_using_loss(**{**right, **arguments})


class ScoresWhenCalled:
    def __call__(self, batch, state):
        return batch[0].sum(1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"scorer": lambda batch: batch}, "scorer=<lambda> can't be called with (batch, state): too many positional"),
        ({"scorer": dict}, "scorer=dict is a class: give a function (batch, state), or an instance to call like this"),
        ({"selector": lambda scores, k: scores}, "selector=<lambda> can't be called with (scores, k, generator): too"),
        ({"selector": lambda a, b, c, d: a}, "missing a required argument: 'd'"),
    ],
)
def test_a_function_that_cannot_be_called_later_is_refused_now(given, said):
    with pytest.raises(ArgumentTypeError, match=re.escape(said)):
        SelectiveBackprop(scale_factor=1, **given)


@pytest.mark.parametrize("scorer", [ScoresWhenCalled(), lambda batch, state, power=2: batch, max])
def test_what_can_be_called_so_is_taken(scorer):
    assert SelectiveBackprop(scale_factor=1, scorer=scorer).scorer is scorer


ALWAYS = {"start": 0, "end": 1}
CARRIED = {**ALWAYS, "index_key": 2, "scale_factor": 1, "scorer": "carried"}


@pytest.mark.parametrize(
    ("arguments", "needs", "events"),
    [
        ({}, "duration row_loss global_batch", ""),
        ({"start": 0.5, "end": 1}, "duration row_loss global_batch", ""),
        (ALWAYS, "row_loss global_batch", ""),
        ({**ALWAYS, "scope": "rank"}, "own_forward row_loss", ""),
        ({"scorer": "stale", "index_key": 2, "scope": "rank"}, "own_forward duration row_loss", ""),
        ({"scorer": max, "scale_factor": 1}, "duration row_loss global_batch", ""),
        (CARRIED, "whole_batch row_loss global_batch", "before_train_batch after_loss batch_end"),
        ({**CARRIED, "scope": "rank"}, "whole_batch row_loss", "before_train_batch after_loss"),
        ({**ALWAYS, "scale_factor": 1, "reuse": "auto"}, "row_loss global_batch", "before_forward after_forward"),
        ({**ALWAYS, "scorer": "proxy", "proxy": nn.Linear(1, 1), "scope": "rank"}, "row_loss", ""),
        ({**ALWAYS, "scorer": "rho", "irreducible": nn.Linear(1, 1), "scope": "rank"}, "own_forward row_loss", ""),
        ({"selector": "uniform"}, "duration global_batch", ""),
        ({**ALWAYS, "selector": "uniform", "scope": "rank"}, "", ""),
        ({"keep": 1}, "", ""),
        ({"scale_factor": 1, "reuse": "on", "scope": "rank", "keep": 1}, "", ""),
    ],
    ids=lambda value: str(value)[:40],
)
def test_its_needs_and_events_are_those_of_its_arguments(arguments, needs, events):
    metadata, always = SelectiveBackprop(**arguments).metadata, {"init", "fit_start", "after_dataloader", "fit_end"}
    assert metadata.needs == tuple(needs.split())
    assert metadata.events == tuple(event for event in Event if event in {*always, *events.split()})
    assert metadata == SelectiveBackprop.metadata.replace(needs=metadata.needs, events=metadata.events)
    assert set(metadata.events) <= set(SelectiveBackprop.metadata.events)  # so that its pass places it there
