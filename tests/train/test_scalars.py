"""Scalars of NumPy and torch are taken wherever a number is."""

import numpy as np
import pytest
import torch

from engine_core import Batches, Loss, Objective, Time
from engine_core.arguments import check_flag, check_number, check_whole
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.callbacks.loss_guard import LossGuard
from engine_core.config import check_config
from engine_core.passes import check_index
from engine_core.run.result import as_json

from .parts import trainer

WHOLE = [np.int64, np.asarray, torch.tensor]


@pytest.mark.parametrize("of", WHOLE)
def test_numbers(of, tmp_path):
    found = [
        check_whole("n", of(3), "[1, inf)", "a number"),
        check_index(of(3)),
        Time(of(3), "ep").value,
        (Time("1ba") + of(2)).value,
        LossGuard(limit=of(3)).limit,
        CheckpointSaver(str(tmp_path), Time(of(2), "ba"), keep_last=of(3)).keep_last,
    ]
    assert found == [3] * 6 and set(map(type, found)) == {int}
    assert Time("3ba") == of(3) and Time("2ba") < of(3)
    real = np.float32 if of is np.int64 else of
    parts = [check_number("x", real(0.5), "[0, 1]", "a share"), (Time("1dur") * real(0.5)).value]
    assert parts == [0.5] * 2 and set(map(type, parts)) == {float}
    assert [check_flag("on", value) for value in (np.True_, torch.tensor(False))] == [True, False]
    assert Loss(torch.tensor(6.0), np.int64(3)).mean == Loss(torch.tensor(6.0), torch.tensor(3)).mean == 2


@pytest.mark.parametrize("wrong", [np.array([3]), torch.ones(2), np.str_("3"), np.True_, torch.tensor(True)])
def test_what_is_not_one_number_is_refused(wrong):
    with pytest.raises(TypeError, match="has to be a whole number"):
        check_whole("n", wrong, "[1, inf)", "a number")
    with pytest.raises(TypeError, match="is not a length of training"):
        Time(wrong, "ep")


@pytest.mark.parametrize("of", WHOLE)
def test_the_trainers(of):
    settings = {"microbatch_size": of(4), "grad_clip_norm": of(1), "seed": of(7), "max_duration": Time(of(1), "ep")}
    with trainer(**settings) as run:
        run.fit(Time(of(1), "ba"))
        assert run.state.seed == 7 and type(run.state.seed) is int and run.state.timestamp.batch == 1


@pytest.mark.parametrize("of", WHOLE)
def test_places_in_a_batch(of):
    objective = Objective(torch.nn.CrossEntropyLoss(), inputs=of(0), targets=(of(1), of(2)))
    assert (objective.inputs, objective.targets) == (0, (1, 2)) and {*map(type, objective.targets)} == {int}
    batches = Batches(dim={1: of(1)}, shared=[of(2)], per_row=(of(3), "x"))
    assert repr(batches) == "Batches(shared=(2,), per_row=(3, 'x'), dim={1: 1})"
    assert batches.rows((torch.zeros(2, 3), torch.zeros(5, 2), 1.0, ["a", "b"])) == 2
    assert repr(Batches(samples=np.bool_(1))) == "Batches(samples=True)"
    for wrong in (np.True_, np.float64(1), np.array([1])):
        with pytest.raises(TypeError, match="has to name items of the batch by index"):
            Objective(torch.nn.CrossEntropyLoss(), targets=wrong)
        with pytest.raises(TypeError, match="a path is an index from 0 on"):
            Batches(dim={1: wrong})


def test_a_configs():
    target = {"target": "torch.nn:Linear", "args": {"in_features": np.int64(3)}}
    values = {"model": target, "data": target, "optimizer": target, "trainer": {"seed": np.int64(3)}}
    config = check_config(values, "made in Python")
    assert type(config.trainer.seed) is int
    assert '"in_features": 3' in as_json(config.model_dump(exclude_unset=True))
