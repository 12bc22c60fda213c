"""load_strict=False and load_weights_only=True: what does not fit, what goes with it, and which types are cast."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from engine_core import AlgorithmMetadata, Event
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import ArgumentError, CheckpointError, CheckpointWarning
from engine_core.trainer.weights import is_by_weights

from .parts import linear, same, trainer
from .test_resume import Noise, loader


class Average(Noise):
    """Keeps tensors by the names of the weights, and uses them when it next runs."""

    metadata = AlgorithmMetadata(events=(Event.AFTER_DATALOADER,))

    def state_dict(self) -> dict[str, Any]:
        return {"average": {"weight": torch.ones(3, 4), "bias": torch.ones(3)}}

    def load_state_dict(self, state: Any) -> None:
        self._count = 99


class Two(nn.Module):
    """A net with a number of each kind beside its weights."""

    def __init__(self, dtype: torch.dtype, third: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3).to(dtype)
        self.register_buffer("third", torch.full((1,), 1 / 3, dtype=torch.float64).to(third))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.to(self.layer.weight.dtype)).float()


ADAMW = {"optimizers": lambda p: torch.optim.AdamW(p, lr=0.01)}


def saved(folder: Path, model: Any, **settings: Any) -> Path:
    with trainer(loader(), model, callbacks=[CheckpointSaver(folder)], **{**ADAMW, **settings}) as made:
        made.fit()
    return folder


def test_where_a_weight_is_left_out_the_warning_says_that_states_are_too(tmp_path: Path) -> None:
    path = saved(tmp_path, linear(), algorithms=[Average(), Noise()])
    algorithms = [Average(), Noise()]
    with pytest.warns(CheckpointWarning) as told:
        made = trainer(loader(), nn.Linear(4, 2), load_path=path, load_strict=False, algorithms=algorithms, **ADAMW)
    made.close()
    (warning,) = told
    assert str(warning.message) == (
        "not all weights were loaded:\n"
        "  'weight' is (3, 4) in the checkpoint and (2, 4) in the model\n"
        "  'bias' is (3,) in the checkpoint and (2,) in the model\n"
        "  the states of optimizers, schedulers, Average were not loaded either and start fresh"
    )
    assert made.state.optimizers[0].state_dict()["state"] == {}
    assert [algorithm._count for algorithm in algorithms] == [0, 4]


def test_where_all_weights_fit_nothing_is_left_out(tmp_path: Path) -> None:
    path = saved(tmp_path, linear(), algorithms=[Average()])
    algorithm = Average()
    made = trainer(loader(), linear(), load_path=path, load_strict=False, algorithms=[algorithm], **ADAMW)
    made.close()
    assert len(made.state.optimizers[0].state_dict()["state"]) == 2
    assert algorithm._count == 99


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Two(torch.bfloat16), "'layer.weight' is torch.float32 in the checkpoint and torch.bfloat16 in the model"),
        (Two(torch.float32, torch.int32), "'third' is torch.float64 in the checkpoint and torch.int32 in the model"),
    ],
)
def test_a_run_is_resumed_only_with_weights_of_the_same_types(model: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        trainer(loader(), model, load_path=saved(tmp_path, Two(torch.float32)), **ADAMW)


def test_weights_alone_are_cast_to_another_floating_type(tmp_path: Path) -> None:
    source, model = Two(torch.float32), Two(torch.bfloat16)
    trainer(loader(), model, load_path=saved(tmp_path, source), load_weights_only=True).close()
    assert same(model.layer.bias, source.layer.bias.bfloat16())


def test_weights_alone_are_not_truncated_to_whole_numbers(tmp_path: Path) -> None:
    path, model = saved(tmp_path, Two(torch.float32)), Two(torch.float32, torch.int32)
    with pytest.raises(CheckpointError, match=r"'third' is torch\.float64 .* torch\.int32 in the model"):
        trainer(loader(), model, load_path=path, load_weights_only=True)


def test_weights_alone_from_nowhere_are_refused(tmp_path: Path) -> None:
    message = "load_weights_only=True needs load_path, the checkpoint with the weights"
    with pytest.raises(ArgumentError, match=message):
        trainer(load_weights_only=True)
    with pytest.raises(ArgumentError, match=message):
        trainer(load_weights_only=True, autoresume=True, callbacks=[CheckpointSaver(tmp_path)])


def test_a_run_that_begins_with_weights_is_resumed_as_a_whole(tmp_path: Path) -> None:
    path = saved(tmp_path / "pretrained", linear())
    given = {"load_path": path, "load_weights_only": True, "autoresume": True, **ADAMW}
    for batches in (0, 4):
        with trainer(loader(), linear(), callbacks=[CheckpointSaver(tmp_path / "run")], **given) as made:
            assert made.state.timestamp.batch == batches
            if batches == 0:
                made.fit("4ba")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"average": {"0.bias": torch.ones(2)}, "count": 3}, True),
        ({"average": {"1.bias": torch.ones(2)}}, False),
        ({"0.bias": 3}, False),
    ],
)
def test_is_by_weights_if_tensors_are_under_the_names_of_weights(state: Any, expected: bool) -> None:
    assert is_by_weights(state, {"0.bias": torch.zeros(2)}) is expected
