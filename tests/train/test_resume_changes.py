"""What becomes of a resumed run that differs from the saved one: an error, a warning of each difference, or nothing."""

import json
import math
import shutil
import sys
import warnings
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from engine_core import AlgorithmMetadata, Batches, Event
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint import read_manifest, resolve
from engine_core.cli import main
from engine_core.config import load_config
from engine_core.errors import CheckpointError, CheckpointWarning, ConfigError
from engine_core.trainer.manifest import differences

from .parts import at, net, same, trainer
from .test_checkpoint_fuzz import sign
from .test_resume import Noise, all_of, loader, run, saved_runs


class Other(Noise):
    metadata = AlgorithmMetadata(events=(Event.BATCH_END,))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    saved_runs(folder)
    return folder / "ep1-ba5"


def changed(checkpoint: Path, folder: Path, section: str, value: Any) -> Path:
    """Return a copy with another section in its manifest; a dict is put into it, None takes it away."""
    shutil.copytree(checkpoint, folder / "changed")
    manifest = read_manifest(checkpoint)
    if value is None:
        del manifest[section]
    else:
        manifest[section] = {**manifest[section], **value} if isinstance(value, dict) else value
    sign(folder / "changed", manifest)
    return folder / "changed"


def warned(**settings: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made, _ = run(**{"seed": None, **settings})
    made.close()
    assert {warning.category for warning in caught} <= {CheckpointWarning}
    assert {Path(warning.filename).name for warning in caught} <= {"parts.py"}  # where the Trainer is made
    return [str(warning.message).partition(": ")[2] for warning in caught]


DIFFERENT: dict[str, Any] = {
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


def test_error_lists_all_that_differs_in_one_message_and_says_how_to_accept_it(saved: Path) -> None:
    with pytest.raises(CheckpointError) as refused:
        run(load_path=saved, load_changed="error", **DIFFERENT)
    assert str(refused.value) == (
        "this run differs from the one that was saved, and load_changed='error' allows no differences:"
        + "".join(f"\n  {difference}" for difference in TOLD)
        + "\nundo these changes, or accept all of them with load_changed='warn' or 'adopt'; nothing has been loaded"
    )


def test_error_names_the_missing_too(saved: Path) -> None:
    with pytest.raises(
        CheckpointError,
        match=r"saved with Noise-2, and .*: add 'noise'[\s\S]*std is 0\.5, was 0\.1",
    ):
        run(load_path=saved, load_changed="error", algorithms=[Noise(0.5)], seed=None)


def test_error_loads_nothing(saved: Path) -> None:
    model, fresh, heard = net(dropout=0.3), net(dropout=0.3), []
    algorithm = Noise(0.5)
    before = {path: path.read_bytes() for path in saved.iterdir()}
    with pytest.raises(CheckpointError):
        trainer(
            loader(),
            model,
            algorithms=[algorithm, Noise(0.2)],
            callbacks=[at("after_load", heard.append)],
            load_path=saved,
            load_changed="error",
        )
    assert same(dict(model.state_dict()), dict(fresh.state_dict()))
    assert (algorithm.state_dict()["count"], heard) == (0, [])
    assert {path: path.read_bytes() for path in saved.iterdir()} == before


def test_error_lets_the_same_run_continue(saved: Path, tmp_path: Path) -> None:
    whole, _ = saved_runs(tmp_path)
    made, _ = run(load_path=saved, load_changed="error", seed=None)
    with made:
        made.fit()
    assert same(all_of(made), whole)


def test_warn_warns_of_each_difference_once(saved: Path) -> None:
    assert warned(load_path=saved, **DIFFERENT) == TOLD


@pytest.mark.filterwarnings("ignore:BatchNorm .* each microbatch:UserWarning")
def test_adopt_continues_with_what_there_is_and_saves_it(saved: Path, tmp_path: Path) -> None:
    saver = CheckpointSaver(tmp_path, "1ba")
    made, _ = run(
        [saver],
        load_path=saved,
        load_changed="adopt",
        algorithms=[Noise(0.5), Noise(0.2)],
        microbatch_size=4,
        seed=None,
    )
    with made:
        made.fit("1ba")
    manifest = read_manifest(resolve(tmp_path))
    assert [entry["settings"] for entry in manifest["algorithms"]] == [{"std": 0.5}, {"std": 0.2}]
    assert manifest["settings"]["microbatch_size"] == 4


def test_a_config_with_what_json_has_not_is_saved_as_text(tmp_path: Path) -> None:
    made, _ = run([CheckpointSaver(tmp_path, "1ba")])
    made.state.config = {"args": {"most": math.inf, "none": math.nan, "since": date(2026, 1, 1), "sizes": [1, 2.5]}}
    with made:
        made.fit("1ba")
    assert read_manifest(resolve(tmp_path))["config"] == {
        "args": {"most": "Infinity", "none": "NaN", "since": "2026-01-01", "sizes": [1, 2.5]}
    }


def test_the_seed_is_not_adopted_and_a_warning_says_so(saved: Path) -> None:
    assert warned(load_path=saved, load_changed="adopt", **DIFFERENT) == TOLD[:1]


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("versions", "torch", "2.4.0"),
        ("versions", "engine-core", "0.0.1"),
        ("machine", "device", "cuda"),
        ("machine", "threads", 77),
        ("machine", "instructions", "Z VECTOR"),
        ("machine", "deterministic", True),
    ],
)
def test_what_the_bits_depend_on_is_compared(section: str, name: str, value: Any, saved: Path, tmp_path: Path) -> None:
    path = changed(saved, tmp_path, section, {name: value})
    now = read_manifest(saved)[section][name]
    assert warned(load_path=path) == [f"{name} is {now!r}, was {value!r}"]


def test_the_number_of_threads_is_that_of_the_process(saved: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        assert warned(load_path=saved) == [f"threads is {before + 1}, was {before}"]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("python", ["3.8.1", "3.8", "3"])
def test_another_minor_version_of_python_is_reported(python: str, saved: Path, tmp_path: Path) -> None:
    now = ".".join(map(str, sys.version_info[:2]))
    path = changed(saved, tmp_path, "versions", {"python": python})
    assert warned(load_path=path) == [f"python is '{now}', was {python[:3]!r}"]


PATCH = ".".join(map(str, [*sys.version_info[:2], 99]))


@pytest.mark.parametrize("versions", [{"python": PATCH}, {"a-callbacks-plugin": "1.0"}], ids=str)
def test_what_changes_no_bit_is_not_reported(versions: Any, saved: Path, tmp_path: Path) -> None:
    assert warned(load_path=changed(saved, tmp_path, "versions", versions)) == []


def test_the_arguments_of_callbacks_may_change(saved: Path, tmp_path: Path) -> None:
    made, _ = run([CheckpointSaver(tmp_path, "2ba", keep_last=7)], load_path=saved, load_changed="error", seed=None)
    made.close()


def test_a_checkpoint_that_does_not_describe_its_machine_is_loaded(saved: Path, tmp_path: Path) -> None:
    path = changed(saved, tmp_path, "machine", None)
    made, _ = run(load_path=path, load_changed="error", seed=None)
    made.close()


@pytest.mark.parametrize("section", ["machine", "versions", "settings", "training", "order", "algorithms"])
@pytest.mark.parametrize("value", [True, "__import__('os')", [1], 7], ids=str)
def test_a_section_of_another_type_is_an_error_of_the_checkpoint(
    section: str, value: Any, saved: Path, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match="checkpoint"):
        run(load_path=changed(saved, tmp_path, section, value), seed=None)


def backwards(algorithms: list[Any], event: Event) -> list[Any]:
    return algorithms[::-1]


def test_another_order_is_named_with_its_event(saved: Path) -> None:
    assert warned(load_path=saved, algorithm_passes=backwards) == [
        "the order at after_dataloader is 'Noise, Noise-2', was 'Noise-2, Noise'"
    ]


def test_another_policy_is_refused_before_anything_begins() -> None:
    with pytest.raises(ValueError, match="load_changed is 'error', 'warn' or 'adopt', not 'adapt'; did you mean"):
        run(load_changed="adapt")


def test_a_config_says_it_too(tmp_path: Path) -> None:
    text = "model: {target: 'a:b'}\ndata: {target: 'a:b'}\noptimizer: {target: 'a:b'}\ntrainer: {load_changed: WORD}"
    (tmp_path / "run.yaml").write_text(text.replace("WORD", "error"))
    assert load_config(tmp_path / "run.yaml").trainer.load_changed == "error"
    (tmp_path / "run.yaml").write_text(text.replace("WORD", "ignore"))
    with pytest.raises(ConfigError, match=r"trainer\.load_changed: has to be 'error', 'warn' or 'adopt', not 'ignore'"):
        load_config(tmp_path / "run.yaml")


def test_checkpoint_show_describes_the_machine(saved: Path) -> None:
    shown = CliRunner().invoke(main, ["checkpoint", "show", str(saved)]).output.splitlines()
    rows = dict(line.split(maxsplit=1) for line in shown)
    assert (rows["device"], rows["threads"]) == ("cpu", str(torch.get_num_threads()))
    manifest = json.loads((saved / "manifest.json").read_text())
    assert rows["instructions"] == manifest["machine"]["instructions"]


def test_an_algorithm_from_another_distribution_or_from_none_is_reported() -> None:
    shipped = {"name": "Pad", "distribution": "pad-plugin", "version": "1.0", "settings": {}}
    own = {**shipped, "distribution": None, "version": None}
    saved, now = ({"algorithms": [entry]} for entry in (shipped, own))
    assert list(differences(saved, now)) == ["the distribution of Pad is None, was 'pad-plugin'"]


def test_only_what_a_constructor_was_given_can_differ(saved: Path, tmp_path: Path) -> None:
    class Deeper(Noise):
        depth = 0

        def apply(self, event: Any, state: Any, logger: Any) -> None:
            super().apply(event, state, logger)
            self.depth += 1

    saved_runs(tmp_path, algorithms=[Deeper()])
    assert read_manifest(tmp_path / "ep1-ba5")["algorithms"][0]["settings"] == {"std": 0.1}
    assert warned(algorithms=[Deeper()], load_path=tmp_path / "ep1-ba5") == []


def test_an_algorithm_without_its_own_class_has_no_settings(tmp_path: Path) -> None:
    plain = SimpleNamespace(match=lambda event, state: True, apply=lambda event, state, logger: None)
    made, _ = run([CheckpointSaver(tmp_path)], algorithms=[plain])
    with made:
        made.fit()
    (described,) = read_manifest(resolve(tmp_path))["algorithms"]
    assert (described["settings"], described["required_on_load"]) == ({}, False)
