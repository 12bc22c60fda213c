"""Models that load their weights in their own way: torch's load_state_dict decides, in a resumed run and in a model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from engine_core import load_model
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import CheckpointError, CheckpointWarning

from .parts import batches, same, trainer


class Late(nn.Module):
    """A buffer that the first batch sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not len(self.seen):
            self.seen = torch.zeros(x.shape[1])
        self.seen += x.detach().mean(0)
        return self.layer(x - 0.01 * self.seen)


class Sized(Late):
    """The buffer loads in the size that was saved."""

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        if f"{prefix}seen" in state_dict:
            self.seen = torch.zeros_like(state_dict[f"{prefix}seen"])
        super()._load_from_state_dict(state_dict, prefix, *others)


class Hooked(Late):
    """So it does by a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(self._size)

    @staticmethod
    def _size(module: Any, state_dict: Any, prefix: str, *others: Any) -> None:
        module.seen = torch.zeros_like(state_dict[f"{prefix}seen"])


class Observed(nn.Module):
    """A layer with the observers of torch's quantisation-aware training, one range for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.fake = torch.ao.quantization.FakeQuantize(
            torch.ao.quantization.MovingAveragePerChannelMinMaxObserver,
            quant_min=-128,
            quant_max=127,
            dtype=torch.qint8,
            qscheme=torch.per_channel_symmetric,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.fake(self.layer.weight), self.layer.bias)


class Named(nn.Module):
    """A layer, saved under a name that it had before."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_load_state_dict_pre_hook(self._rename)

    @staticmethod
    def _rename(module: nn.Module, state_dict: Any, prefix: str, *others: Any) -> None:
        for name in ("weight", "bias"):
            if f"{prefix}layer.{name}" in state_dict:
                state_dict[f"{prefix}head.{name}"] = state_dict.pop(f"{prefix}layer.{name}")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)  # type: ignore[no-any-return]


class Before(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


def make(model: Callable[[], Any], folder: Path, **settings: Any) -> Any:
    torch.manual_seed(2)
    given = {"optimizers": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "max_duration": "2ep", **settings}
    return trainer(batches(6, 6), model(), seed=1, callbacks=CheckpointSaver(folder, "1ba"), **given)


KINDS = {
    "sized": (Sized, Sized),
    "hooked": (Hooked, Hooked),
    "observed": (Observed, Observed),
    "renamed": (Before, Named),
}
each_kind = pytest.mark.parametrize(("old", "new"), KINDS.values(), ids=KINDS)
quantizing = pytest.mark.filterwarnings("ignore:.*torch.ao.quantization.*:DeprecationWarning")


@quantizing
@each_kind
def test_it_is_resumed(old: Any, new: Any, tmp_path: Path) -> None:
    with make(old, tmp_path / "whole") as whole:
        whole.fit()
    with make(old, tmp_path / "first") as first:
        first.fit("1ba")
    with make(new, tmp_path / "second", load_path=tmp_path / "first") as second:
        second.fit()
    expected = {name.replace("layer", "head"): v for name, v in whole.state.model.state_dict().items()}
    assert same({k.replace("layer", "head"): v for k, v in second.state.model.state_dict().items()}, expected)


@quantizing
@each_kind
def test_a_model_or_another_run_gets_its_weights(old: Any, new: Any, tmp_path: Path) -> None:
    with make(old, tmp_path) as one:
        one.fit("1ba")
    expected = list(one.state.model.state_dict().values())
    assert same(list(load_model(tmp_path, new).state_dict().values()), expected)
    model = new()
    make(lambda: model, tmp_path / "other", load_path=tmp_path, load_weights_only=True).close()
    assert same(list(model.state_dict().values()), expected)


def narrower() -> Any:
    model = Sized()
    model.layer = nn.Linear(4, 2)
    return model


def test_only_what_torch_refused_is_named_and_nothing_is_loaded(tmp_path: Path) -> None:
    with make(Sized, tmp_path) as one:
        one.fit("1ba")
    model = narrower()
    before = [value.clone() for value in model.state_dict().values()]
    with pytest.raises(CheckpointError) as refused:
        make(lambda: model, tmp_path / "other", load_path=tmp_path)
    assert str(refused.value) == (
        "the weights are another model's:\n"
        "  'layer.weight' is (3, 4) in the checkpoint and (2, 4) in the model\n"
        "  'layer.bias' is (3,) in the checkpoint and (2,) in the model"
    )
    assert same(list(model.state_dict().values()), before)


def test_leniently_it_loads_what_the_model_takes(tmp_path: Path) -> None:
    with make(Sized, tmp_path) as one:
        one.fit("1ba")
    model = narrower()
    with pytest.warns(CheckpointWarning, match=r"not all weights were loaded:\n  'layer.weight' is") as told:
        make(lambda: model, tmp_path / "other", load_path=tmp_path, load_weights_only=True, load_strict=False).close()
    assert "seen" not in str(told[0].message)
    assert same(model.seen, one.state.model.seen)


class Later(Late):
    """Another one is made then, one is not saved, and a layer is lazy, which torch loads without a shape."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("least", None)
        self.register_buffer("now", torch.zeros(0), persistent=False)
        self.layer = nn.LazyLinear(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.now, self.least = x.detach(), x.detach().amin()
        return super().forward(x)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_what_training_sized_is_named_once_when_no_new_model_can_load_a_checkpoint(tmp_path: Path) -> None:
    def batched() -> Any:
        model = Later()
        model(batches(6)[0][0])
        return model

    with pytest.warns(CheckpointWarning) as told, make(Later, tmp_path) as one:
        one.fit("3ba")
    (named,) = [str(warning.message) for warning in told]
    assert named == (
        "training gave 'seen' and 'least' of the model other shapes than they came with, so no checkpoint of this run "
        "loads into a new model: create them in their final shapes, run one batch before you give the model to the "
        "Trainer, or define _load_from_state_dict"
    )
    with pytest.raises(CheckpointError, match=r"'seen' is \(4,\) in the checkpoint and \(0,\) in the model"):
        make(Later, tmp_path / "other", load_path=tmp_path)
    with make(batched, tmp_path / "another", load_path=tmp_path) as other:
        other.fit()
    assert other.state.timestamp.batch == 4


class Choosy(Before):
    def load_state_dict(self, state_dict: Any, *others: Any, **more: Any) -> Any:
        raise LookupError("not today")


@pytest.mark.parametrize("strict", [True, False])
def test_a_model_that_refuses_for_a_reason_of_its_own_is_quoted(strict: bool, tmp_path: Path) -> None:
    with make(Before, tmp_path) as one:
        one.fit("1ba")
    with pytest.raises(CheckpointError, match=r"the weights are another model's:\n  LookupError: not today"):
        make(Choosy, tmp_path / "other", load_path=tmp_path, load_strict=strict)


class Lenient(nn.Sequential):
    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        return super().load_state_dict(state_dict, strict=False)


def test_what_a_lenient_model_leaves_out_is_named(tmp_path: Path) -> None:
    with trainer(batches(6), nn.Linear(4, 3), callbacks=CheckpointSaver(tmp_path, "1ep")) as made:
        made.fit()
    with pytest.raises(CheckpointError, match=r"'0.weight' is missing from the checkpoint"):
        trainer(batches(6), Lenient(nn.Linear(4, 3)), load_path=tmp_path, load_weights_only=True)
