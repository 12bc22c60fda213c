"""Lightning's checkpoints hold the engine's part: resumed equals uninterrupted; what can't be resumed is refused."""

import re
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from engine_core import Event
from engine_core.errors import CheckpointError
from engine_core_author.probes import at_events

from . import cases
from .cases import differences, ended, make_loaders
from .lightning_runs import ITS_WARNINGS, Digits, make_callback, make_trainer

OF_FOLDERS = ("ignore:Checkpoint directory .* exists and is not empty", "ignore:The dirpath has changed")
pytestmark = [*ITS_WARNINGS, pytest.mark.filterwarnings(*OF_FOLDERS)]
CASES = {
    "ema": cases.CASES["ema"],
    "drawing": {"stochastic_depth": {"drop_rate": 0.5}, "cutout": {}},
    "choosing": {"selective_backprop": cases.SB, "mixup": {}, "ema": {"decay": 0.9}},
}
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "lightning.md"
FIRST_EPOCH = "epoch=0-step=7.ckpt"


def run(folder, case="ema", resume=None, callback=None, more=(), **settings):
    """Train, all of it or from a checkpoint on, and return the callback and what it left."""
    module = Digits()
    if resume:
        torch.nn.init.zeros_(module.net[0].weight)  # the checkpoint has the weights
    callback = make_callback(case) if callback is None else callback
    saver = ModelCheckpoint(folder, filename="{epoch}-{step}", save_top_k=-1, every_n_epochs=1)
    trainer = make_trainer([callback, saver, *more], enable_checkpointing=True, **settings)
    trainer.fit(module, *make_loaders(), ckpt_path=resume)
    return callback, ended(module.net, callback.state, module.losses)


@pytest.fixture
def saved(tmp_path):
    """Return the path of a checkpoint of the first epoch, with EMA."""
    run(tmp_path, max_epochs=1)
    return tmp_path / FIRST_EPOCH


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_equals_the_uninterrupted_one(case, tmp_path, monkeypatch):
    monkeypatch.setitem(cases.CASES, case, CASES[case])
    _, whole = run(tmp_path / "whole", case)
    _, resumed = run(tmp_path / "resumed", case, tmp_path / "whole" / FIRST_EPOCH)

    assert differences(whole._replace(losses=whole.losses[1:]), resumed) == []


def test_the_checkpoint_loads_without_pickle_and_has_our_part_under_the_callbacks_key(saved):
    part = torch.load(saved, weights_only=True)["callbacks"]["EngineCallback"]

    assert {**part, "algorithms": [*part["algorithms"]]} | {"clock": part["clock"]["batch"]} == {
        "format": 1,
        "clock": 7,
        "seed": cases.SEED,
        "algorithms": ["EMA"],
        "callbacks": {},
        "required": [],
    }


def test_a_run_that_is_at_its_end_has_its_states_back(tmp_path):
    heard = []
    watch = at_events([Event.AFTER_LOAD, Event.FIT_START, Event.FIT_END], lambda event, _: heard.append(event.value))
    _, whole = run(tmp_path)
    callback, resumed = run(
        tmp_path, resume=tmp_path / "epoch=1-step=14.ckpt", callback=make_callback("ema", callbacks=[watch])
    )

    assert differences(whole._replace(losses=[]), resumed) == []
    assert heard == ["after_load", "fit_start", "fit_end"] and callback.state.timestamp.batch == 14


def test_the_averages_of_a_checkpoint_are_read_as_the_page_says(tmp_path):
    _, whole = run(tmp_path)
    (lines,) = re.findall(r"```python\n(checkpoint = .*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names = {"torch": torch, "path": tmp_path / "epoch=1-step=14.ckpt", "module": Digits()}
    exec(lines, names)

    kept = names["module"].net.state_dict()
    assert all(torch.equal(kept[name], average) for name, average in whole.averages.items())
    assert not torch.equal(kept["0.weight"], whole.weights["0.weight"])
    saved = torch.load(names["path"], weights_only=True)["state_dict"]
    assert torch.equal(saved["net.0.weight"], whole.weights["0.weight"])  # Lightning saves what was trained


def test_state_of_an_algorithm_that_the_run_has_not_is_named(saved, tmp_path):
    with pytest.raises(CheckpointError, match="was saved with EMA, and this run does not have it"):
        run(tmp_path, "swa", saved)


def test_missing_surgery_is_named(tmp_path):
    run(tmp_path, "squeeze_excite", max_epochs=1)
    part = torch.load(tmp_path / FIRST_EPOCH, weights_only=True)
    part["state_dict"] = Digits().state_dict()  # Lightning would find the other names before us
    torch.save(part, tmp_path / "same-names.ckpt")

    with pytest.raises(CheckpointError, match="was saved with SqueezeExcite, and this run does not have it"):
        run(tmp_path, "none", tmp_path / "same-names.ckpt")


def test_a_checkpoint_of_a_trainer_without_ours_is_refused(tmp_path):
    trainer = make_trainer([ModelCheckpoint(tmp_path, filename="bare")], enable_checkpointing=True, max_epochs=1)
    trainer.fit(Digits(), *make_loaders())

    with pytest.raises(CheckpointError, match="has no part of engine-core: resume from another one, or load its"):
        run(tmp_path, resume=tmp_path / "bare.ckpt")


def test_a_newer_format_is_refused_by_its_number(saved, tmp_path):
    whole = torch.load(saved, weights_only=True)
    whole["callbacks"]["EngineCallback"]["format"] = 2
    torch.save(whole, saved)

    with pytest.raises(CheckpointError, match="has format 2, and this version reads up to 1: pip install -U"):
        run(tmp_path, resume=saved)


def test_the_seed_of_the_saved_run_holds(saved, tmp_path):
    callback, _ = run(tmp_path, resume=saved, callback=make_callback("ema", seed=99))

    assert callback.state.seed == cases.SEED


def test_a_checkpoint_in_mid_epoch_keeps_clock_and_averages(tmp_path):
    saver = ModelCheckpoint(tmp_path / "steps", filename="{step}", save_top_k=-1, every_n_train_steps=4)
    run(tmp_path / "whole", more=[saver], max_epochs=1)
    part = torch.load(tmp_path / "steps" / "step=4.ckpt", weights_only=True)["callbacks"]["EngineCallback"]

    assert (part["clock"]["batch"], part["clock"]["sample"], part["clock"]["epoch"]) == (4, 32, 0)
