"""Where an algorithm keeps its constructor's arguments, so that a resumed run notices other ones."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint import read_manifest, resolve
from engine_core.errors import CheckpointError

from .parts import trainer


class Idle(Algorithm):
    metadata = AlgorithmMetadata(events=(Event.FIT_END,))

    def match(self, event: Event, state: State) -> bool:
        return False

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        raise NotImplementedError

    def may_rest(self, state: State) -> bool:
        return True


class Private(Idle):
    def __init__(self, scale: float) -> None:
        self._scale = scale


class Both(Idle):
    def __init__(self, scale: float) -> None:
        self._scale, self.scale = 77.0, scale


@dataclass(frozen=True)
class Settings:
    scale: float
    unit: str = "sample"


class Together(Idle):
    def __init__(self, scale: float) -> None:
        self.settings = Settings(scale)


@dataclass
class Progress:
    scale: float


class Moving(Idle):
    def __init__(self, scale: float) -> None:
        self._progress = Progress(scale)


def saved(folder: Path, algorithm: Any) -> Any:
    with trainer(algorithms=[algorithm], callbacks=[CheckpointSaver(folder)]) as made:
        made.fit()
    (described,) = read_manifest(resolve(folder))["algorithms"]
    return described["settings"]


@pytest.mark.parametrize("cls", [Private, Both, Together])
def test_another_argument_is_found_where_it_is_kept(cls: Any, tmp_path: Path) -> None:
    assert saved(tmp_path, cls(0.1)) == {"scale": 0.1}
    with pytest.raises(CheckpointError, match=rf"{cls.__name__}: scale is 9\.0, was 0\.1"):
        trainer(algorithms=[cls(9.0)], load_path=tmp_path, load_changed="error")


def test_what_may_change_in_the_run_is_not_an_argument(tmp_path: Path) -> None:
    assert saved(tmp_path, Moving(0.1)) == {}


def test_repr_shows_the_same_arguments_and_tensors_and_modules_by_their_class() -> None:
    assert repr(Together(9.0)) == "Together(scale=9.0)"
    assert repr(Private(torch.zeros(1))) == "Private(scale=<Tensor>)"  # type: ignore[arg-type]
    assert repr(Moving(torch.nn.Linear(1, 1))) == "Moving(scale=<Linear>)"  # type: ignore[arg-type]
