"""What becomes of a resumed run that differs from the saved one: an error, a warning of each difference, or nothing."""

import functools
import math
import shutil
import sys
import warnings
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from engine_core import AlgorithmMetadata, Batches, Event
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint import read_manifest, resolve
from engine_core.errors import CheckpointError, CheckpointWarning
from engine_core.trainer.manifest import differences

from .parts import at, net, same, trainer
from .test_checkpoint_fuzz import sign
from .test_resume import Noise, loader, run, saved_runs


class Other(Noise):
    metadata = AlgorithmMetadata(events=(Event.BATCH_END,))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    saved_runs(folder)
    return folder / "ep1-ba5"


def changed(checkpoint, folder, section, value):
    """Return a copy with another section in its manifest; a dict is put into it, None takes it away."""
    shutil.copytree(checkpoint, folder / "changed")
    manifest = read_manifest(checkpoint)
    if value is None:
        del manifest[section]
    else:
        manifest[section] = {**manifest[section], **value} if isinstance(value, dict) else value
    sign(folder / "changed", manifest)
    return folder / "changed"


def warned(**settings):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made, _ = run(**{"seed": None, **settings})
    made.close()
    assert {warning.category for warning in caught} <= {CheckpointWarning}
    assert {Path(warning.filename).name for warning in caught} <= {"parts.py"}  # where the Trainer is made
    return [str(warning.message).partition(": ")[2] for warning in caught]


DIFFERENT = {
    "algorithms": [Noise(0.5), Noise(0.2), Other()],
    "microbatch_size": 4,
    "grad_clip_norm": 1.0,
    "batches": Batches(shared=("scale",), tokens=len),
    "seed": 9,
}
TOLD = [
    "it keeps the seed 4 of the saved run; seed=9 is ignored",
    "Other was not in the saved run and starts fresh",
    "microbatch_size is 4, was None",
    "grad_clip_norm is 1.0, was None",
    "batches is \"Batches(shared=('scale',), tokens=builtins.len)\", was 'Batches()'",
    "Noise: std is 0.5, was 0.1",
]


def test_error_lists_all_that_differs_in_one_message_says_how_to_accept_it_and_loads_nothing(saved):
    model, fresh, heard, algorithm = net(dropout=0.3), net(dropout=0.3), [], Noise(0.5)
    before = {path: path.read_bytes() for path in saved.iterdir()}
    with pytest.raises(CheckpointError) as refused:
        run(load_path=saved, load_changed="error", **DIFFERENT)
    assert str(refused.value) == (
        "this run differs from the one that was saved, and load_changed='error' allows no differences:"
        + "".join(f"\n  {difference}" for difference in TOLD)
        + "\nundo these changes, or accept all of them with load_changed='warn' or 'adopt'; nothing has been loaded"
    )
    given = {"algorithms": [algorithm, Noise(0.2)], "callbacks": [at("after_load", heard.append)]}
    with pytest.raises(CheckpointError):
        trainer(loader(), model, load_path=saved, load_changed="error", **given)
    assert same(dict(model.state_dict()), dict(fresh.state_dict()))
    assert (algorithm.state_dict()["count"], heard) == (0, [])
    assert {path: path.read_bytes() for path in saved.iterdir()} == before


def test_warn_warns_of_each_difference_once_and_adopt_of_the_seed_which_it_does_not_adopt(saved):
    assert warned(load_path=saved, **DIFFERENT) == TOLD
    assert warned(load_path=saved, load_changed="adopt", **DIFFERENT) == TOLD[:1]


@pytest.mark.parametrize(
    ("section", "values"),
    [
        ("versions", {"torch": "2.4.0", "engine-core": "0.0.1"}),
        ("machine", {"device": "cuda", "threads": 77, "instructions": "Z VECTOR", "deterministic": True}),
    ],
)
def test_what_the_bits_depend_on_is_compared(section, values, saved, tmp_path):
    for name, value in values.items():
        path = changed(saved, tmp_path / name, section, {name: value})
        now = read_manifest(saved)[section][name]
        assert warned(load_path=path) == [f"{name} is {now!r}, was {value!r}"]


def test_what_changes_no_bit_is_not_reported_but_another_minor_version_of_python_is(saved, tmp_path):
    now = ".".join(map(str, sys.version_info[:2]))
    path = changed(saved, tmp_path, "versions", {"python": f"{now}.99", "a-callbacks-plugin": "1.0"})
    assert warned(load_path=path, callbacks=[CheckpointSaver(tmp_path / "own", "2ba", keep_last=7)]) == []
    path = changed(saved, tmp_path / "other", "versions", {"python": "3.8.1"})
    assert warned(load_path=path) == [f"python is '{now}', was '3.8'"]


@pytest.mark.filterwarnings("ignore:BatchNorm .* each microbatch:UserWarning")
def test_adopt_continues_with_what_there_is_and_saves_it(saved, tmp_path):
    adopted = {"algorithms": [Noise(0.5), Noise(0.2)], "microbatch_size": 4, "seed": None}
    made, _ = run([CheckpointSaver(tmp_path, "1ba")], load_path=saved, load_changed="adopt", **adopted)
    since = {"most": math.inf, "none": math.nan, "since": date(2026, 1, 1), "sizes": [1, 2.5]}  # which JSON has not
    made.state.config = {"args": since}
    with made:
        made.fit("1ba")
    manifest = read_manifest(resolve(tmp_path))
    assert [entry["settings"] for entry in manifest["algorithms"]] == [{"std": 0.5}, {"std": 0.2}]
    assert manifest["settings"]["microbatch_size"] == 4
    assert manifest["config"]["args"] == {**since, "most": "Infinity", "none": "NaN", "since": "2026-01-01"}


def test_an_algorithm_from_another_distribution_or_from_none_is_reported():
    shipped = {"name": "Pad", "distribution": "pad-plugin", "version": "1.0", "settings": {}}
    own = {**shipped, "distribution": None, "version": None}
    saved, now = ({"algorithms": [entry]} for entry in (shipped, own))
    assert list(differences(saved, now)) == ["the distribution of Pad is None, was 'pad-plugin'"]


STEP, COSINE = (lambda o: lr_scheduler.StepLR(o, 2), "1ba"), (lambda o: lr_scheduler.CosineAnnealingLR(o, 2), "1ba")
GIVEN = {"optimizers": lambda p: torch.optim.AdamW(p, lr=0.01), "schedulers": [STEP], "max_duration": "3ep"}


class AdamW(torch.optim.AdamW):
    """A custom class with the same name as torch's."""


def absolute(outputs, targets):
    return (outputs - nn.functional.one_hot(targets, 3)).abs().mean()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    with trainer(callbacks=[CheckpointSaver(folder, "1ep")], **GIVEN) as made:
        made.fit("1ep")
    return resolve(folder)


def told(path, **settings):
    """Return the lines in which load_changed='error' lists what differs."""
    try:
        trainer(load_path=path, load_changed="error", **{**GIVEN, **settings}).close()
    except CheckpointError as error:
        return [line.strip() for line in str(error).splitlines() if line.startswith("  ")]
    return []


def test_the_manifest_names_what_trains(trained):
    training = read_manifest(trained)["training"]
    (given,) = training.pop("hyperparameters")
    assert (given["lr"], given["betas"]) == (0.01, [0.9, 0.999])
    names = {"optimizers": ["AdamW"], "schedulers": ["StepLR every 1ba"], "loss_fn": "CrossEntropyLoss"}
    assert training == {**names, "objective": "Objective()", "max_duration": "3ep"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedulers": [COSINE]}, "schedulers is ['CosineAnnealingLR every 1ba'], was ['StepLR every 1ba']"),
        ({"schedulers": [STEP[0]]}, "schedulers is ['StepLR every 1ep'], was ['StepLR every 1ba']"),
        ({"loss_fn": nn.NLLLoss()}, "loss_fn is 'NLLLoss', was 'CrossEntropyLoss'"),
        ({"loss_fn": nn.functional.cross_entropy}, "loss_fn is 'cross_entropy', was 'CrossEntropyLoss'"),
        ({"loss_fn": functools.partial(absolute)}, f"loss_fn is '{__name__}.absolute', was 'CrossEntropyLoss'"),
        ({"max_duration": "9ep"}, "max_duration is '9ep', was '3ep': schedules that depend on it will differ"),
        (
            {"optimizers": lambda p: torch.optim.AdamW(p, lr=0.5)},
            "optimizers[0] was given lr=0.5 but resumes as saved: it was given lr=0.01",
        ),
        ({"optimizers": lambda p: AdamW(p, lr=0.01)}, f"optimizers is ['{__name__}.AdamW'], was ['AdamW']"),
    ],
)
def test_another_one_is_reported(settings, message, trained):
    assert told(trained, **settings) == [message]


@pytest.mark.parametrize(
    ("other", "strict", "policy"), [(torch.optim.SGD, True, "warn"), (torch.optim.Adam, False, "adopt")]
)
def test_an_optimizer_of_another_class_is_refused_with_what_to_do(other, strict, policy, trained):
    changes = {**GIVEN, "optimizers": lambda p: other(p, lr=0.01)}
    says = (
        rf"^optimizers\[0\] is {other.__name__} and can't load the saved state of AdamW: change it back, or start a "
        r"new run from the saved weights \(load_path with load_weights_only=True\)"
    )
    with pytest.raises(CheckpointError, match=says):
        trainer(load_path=trained, load_changed=policy, load_strict=strict, **changes)


def test_an_optimizer_continues_with_the_saved_hyperparameters(trained):
    other = {**GIVEN, "optimizers": lambda p: torch.optim.AdamW(p, lr=0.5), "load_changed": "adopt"}
    with trainer(load_path=trained, **other) as made:
        (group,) = made.state.optimizers[0].param_groups
    assert (group["initial_lr"], group["lr"]) == (0.01, 0.001)


@pytest.mark.parametrize("section", ["machine", "training"])
def test_a_checkpoint_without_such_a_section_is_loaded(section, trained, tmp_path):
    path = changed(trained, tmp_path, section, None)
    assert told(path, **({"loss_fn": nn.NLLLoss()} if section == "training" else {})) == []


class Private(Noise):
    def __init__(self, scale):
        super().__init__()
        self._scale = scale


@dataclass(frozen=True)
class Arguments:
    scale: float
    unit: str = "sample"


@dataclass
class Progress:
    scale: float


class Together(Noise):
    kind = Arguments

    def __init__(self, scale):
        super().__init__()
        self.settings = self.kind(scale)


class Moving(Together):
    kind = Progress  # which may change in the run, and so is not an argument


def described(folder, algorithm):
    with trainer(algorithms=[algorithm], callbacks=[CheckpointSaver(folder)]) as made:
        made.fit()
    (entry,) = read_manifest(resolve(folder))["algorithms"]
    return entry["settings"]


@pytest.mark.parametrize("cls", [Private, Together])
def test_another_argument_is_found_where_it_is_kept_and_shown(cls, tmp_path):
    assert described(tmp_path, cls(0.1)) == {"scale": 0.1}
    assert described(tmp_path / "moving", Moving(0.1)) == {}
    with pytest.raises(CheckpointError, match=rf"{cls.__name__}: scale is 9\.0, was 0\.1"):
        trainer(algorithms=[cls(9.0)], load_path=tmp_path, load_changed="error")
    shown = [repr(each) for each in (cls(9.0), cls(torch.zeros(1)), Moving(nn.Linear(1, 1)))]
    name = cls.__name__
    assert shown == [f"{name}(scale=9.0)", f"{name}(scale=<Tensor>)", "Moving(scale=<Linear>)"]


def test_another_order_is_named_with_its_event_and_another_policy_is_refused(saved):
    told = ["the order at after_dataloader is 'Noise, Noise-2', was 'Noise-2, Noise'"]
    assert warned(load_path=saved, algorithm_passes=lambda algorithms, event: algorithms[::-1]) == told
    with pytest.raises(ValueError, match="load_changed is 'error', 'warn' or 'adopt', not 'adapt'; did you mean"):
        run(load_changed="adapt")


def test_an_algorithm_without_its_own_class_has_no_settings(tmp_path):
    plain = SimpleNamespace(match=lambda event, state: True, apply=lambda event, state, logger: None)
    made, _ = run([CheckpointSaver(tmp_path)], algorithms=[plain])
    with made:
        made.fit()
    (described,) = read_manifest(resolve(tmp_path))["algorithms"]
    assert (described["settings"], described["required_on_load"]) == ({}, False)
