"""What trains, by name: another optimizer, scheduler, loss or length than the saved run's is noticed."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint import read_manifest, resolve
from engine_core.errors import CheckpointError

from .parts import trainer
from .test_resume_changes import changed

STEP = (lambda optimizer: lr_scheduler.StepLR(optimizer, 2), "1ba")
GIVEN: dict[str, Any] = {
    "optimizers": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "schedulers": [STEP],
    "max_duration": "3ep",
}


class AdamW(torch.optim.AdamW):
    """A custom class with the same name as torch's."""


def absolute(outputs: Any, targets: Any) -> Any:
    return (outputs - nn.functional.one_hot(targets, 3)).abs().mean()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    with trainer(callbacks=[CheckpointSaver(folder, "1ep")], **GIVEN) as made:
        made.fit("1ep")
    return resolve(folder)


def told(path: Path, **settings: Any) -> list[str]:
    """Return the lines in which load_changed='error' lists what differs."""
    try:
        trainer(load_path=path, load_changed="error", **{**GIVEN, **settings}).close()
    except CheckpointError as error:
        return [line.strip() for line in str(error).splitlines() if line.startswith("  ")]
    return []


def test_the_manifest_names_what_trains(saved: Path) -> None:
    training = read_manifest(saved)["training"]
    (given,) = training.pop("hyperparameters")
    assert (given["lr"], given["betas"]) == (0.01, [0.9, 0.999])
    assert training == {
        "optimizers": ["AdamW"],
        "schedulers": ["StepLR every 1ba"],
        "loss_fn": "CrossEntropyLoss",
        "objective": "Objective()",
        "max_duration": "3ep",
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"schedulers": [(lambda o: lr_scheduler.CosineAnnealingLR(o, 2), "1ba")]},
            "schedulers is ['CosineAnnealingLR every 1ba'], was ['StepLR every 1ba']",
        ),
        ({"schedulers": [STEP[0]]}, "schedulers is ['StepLR every 1ep'], was ['StepLR every 1ba']"),
        ({"loss_fn": nn.NLLLoss()}, "loss_fn is 'NLLLoss', was 'CrossEntropyLoss'"),
        ({"loss_fn": nn.functional.cross_entropy}, "loss_fn is 'cross_entropy', was 'CrossEntropyLoss'"),
        ({"loss_fn": functools.partial(absolute)}, f"loss_fn is '{__name__}.absolute', was 'CrossEntropyLoss'"),
        (
            {"max_duration": "9ep"},
            "max_duration is '9ep', was '3ep': schedules that depend on it will differ",
        ),
        (
            {"optimizers": lambda p: torch.optim.AdamW(p, lr=0.5)},
            "optimizers[0] was given lr=0.5 but resumes as saved: it was given lr=0.01",
        ),
        (
            {"optimizers": lambda p: AdamW(p, lr=0.01)},
            f"optimizers is ['{__name__}.AdamW'], was ['AdamW']",
        ),
    ],
)
def test_another_one_is_reported(settings: Any, message: str, saved: Path) -> None:
    assert told(saved, **settings) == [message]


@pytest.mark.parametrize("policy", ["warn", "adopt"])
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("other", "article"), [(torch.optim.SGD, "SGD"), (torch.optim.Adam, "Adam")])
def test_an_optimizer_of_another_class_is_refused_with_what_to_do(
    other: Any, article: str, strict: bool, policy: Any, saved: Path
) -> None:
    changes = {**GIVEN, "optimizers": lambda p: other(p, lr=0.01)}
    with pytest.raises(CheckpointError) as refused:
        trainer(load_path=saved, load_changed=policy, load_strict=strict, **changes)
    assert str(refused.value) == (
        f"optimizers[0] is {article} and can't load the saved state of AdamW: change it back, or start a new run from "
        "the saved weights (load_path with load_weights_only=True)"
    )


def test_an_optimizer_continues_with_the_saved_hyperparameters(saved: Path) -> None:
    other = {**GIVEN, "optimizers": lambda p: torch.optim.AdamW(p, lr=0.5), "load_changed": "adopt"}
    with trainer(load_path=saved, **other) as made:
        (group,) = made.state.optimizers[0].param_groups
    assert (group["initial_lr"], group["lr"]) == (0.01, 0.001)


def test_a_checkpoint_that_does_not_name_what_trains_is_loaded(saved: Path, tmp_path: Path) -> None:
    path = changed(saved, tmp_path, "training", None)
    assert told(path, loss_fn=nn.NLLLoss(), optimizers=lambda p: torch.optim.AdamW(p, lr=0.5)) == []


def test_a_run_is_made_longer_without_a_warning(saved: Path) -> None:
    trainer(load_path=saved, **{**GIVEN, "max_duration": "9ep"}).close()


def test_a_length_that_only_one_of_the_two_has_is_not_reported(saved: Path) -> None:
    assert told(saved, max_duration=None) == []
