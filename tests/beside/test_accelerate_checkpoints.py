"""Accelerate's checkpoints hold the engine's part: a resumed run is the uninterrupted one, and misfits are named."""

import itertools
import json
from pathlib import Path

import pytest
import torch

from engine_core.errors import CheckpointError, EngineError
from engine_core.registry import Registry

from .accelerate_runs import EVEN, Run, make_accelerator
from .cases import BATCH, CASES, SB, differences, make_loaders

RESUMED = {
    "ema": CASES["ema"],
    "depth and cutout": {**CASES["stochastic_depth"], **CASES["cutout"]},
    "chosen, mixed, averaged": {"selective_backprop": SB, "mixup": {}, "ema": {"decay": 0.9}},
}


def algorithms(names):
    registry = Registry.scan()
    return [registry.load("algorithms", name)(**arguments) for name, arguments in names.items()]


def saved(folder, *names, **settings):
    """Train an epoch with these algorithms, and save."""
    run = Run([*names], **settings)
    with run.fit():
        run.epoch()
        run.evaluate()
        run.accelerator.save_state(folder)
    return run


@pytest.mark.parametrize("names", RESUMED.values(), ids=list(RESUMED))
def test_resumed_at_the_end_of_an_epoch_is_uninterrupted(tmp_path, names):
    whole = Run(algorithms(names)).train()
    cut = saved(tmp_path, *algorithms(names))
    resumed = Run(algorithms(names), seed=99)
    resumed.losses = cut.losses
    resumed.accelerator.load_state(tmp_path)
    assert differences(resumed.train(), whole) == []
    assert resumed.state.seed == 3


@pytest.mark.parametrize("names", RESUMED.values(), ids=list(RESUMED))
def test_resumed_within_an_epoch_by_skipping_batches_is_uninterrupted(tmp_path, names):
    steps, batch = 2, BATCH // 2
    settings = {"loaders": make_loaders(batch=batch, rows=EVEN), "accelerator": make_accelerator(steps)}
    whole = Run(algorithms(names), **settings).train()
    cut = Run(algorithms(names), **{**settings, "accelerator": make_accelerator(steps)})
    with cut.fit():
        cut.cut(8, tmp_path)
    resumed = Run(algorithms(names), **{**settings, "accelerator": make_accelerator(steps)})
    resumed.accelerator.load_state(tmp_path)
    with resumed.fit():
        done = resumed.state.timestamp.batch_in_epoch
        assert done == 4
        resumed.rest(done * steps)
        resumed.evaluate()
    assert differences(resumed.train(), whole) == []


@pytest.mark.parametrize(
    ("had", "has", "says"),
    [
        ({"squeeze_excite": {"min_channels": 1}}, {}, "was saved with SqueezeExcite, and this run does not"),
        ({"stochastic_depth": {}, "ema": {}}, {}, "was saved with StochasticDepth, .* was saved with EMA, and"),
    ],
)
def test_what_a_checkpoint_needs_is_named_before_anything_is_loaded(tmp_path, had, has, says):
    saved(tmp_path, *algorithms(had))
    run = Run(algorithms(has))
    before = [value.clone() for value in run.net.state_dict().values()]
    with pytest.raises(CheckpointError, match=says):
        run.accelerator.load_state(tmp_path)
    assert all(map(torch.equal, run.net.state_dict().values(), before))


def test_a_newer_format_is_named_before_anything_is_loaded(tmp_path):
    saved(tmp_path)
    mark = tmp_path / "engine-core.json"
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "format": 7}))
    with pytest.raises(CheckpointError, match="has format 7, and this version reads up to 1: pip install"):
        Run().accelerator.load_state(tmp_path)


def test_a_checkpoint_without_our_part_is_named_before_anything_is_loaded(tmp_path):
    accelerator = make_accelerator()
    accelerator.prepare(torch.nn.Linear(1, 1))
    accelerator.save_state(tmp_path)
    run = Run()
    with pytest.raises(CheckpointError, match=f"{tmp_path} has no part of engine-core: load it before EngineLoop"):
        run.accelerator.load_state(tmp_path)


def test_parts_in_another_order_are_named(tmp_path):
    first = make_accelerator()
    first.register_for_checkpointing(torch.nn.Linear(1, 1))
    saved(tmp_path, accelerator=first)
    run = Run()
    run.accelerator.register_for_checkpointing(torch.nn.Linear(1, 1))
    with pytest.raises(CheckpointError, match="another object's state is in engine-core's place: register"):
        run.accelerator.load_state(tmp_path)


def test_an_evaluation_is_no_time_to_save(tmp_path):
    run = Run("ema")
    with run.fit(), pytest.raises(EngineError, match=r"save_state\(\) can't be called here: an evaluation is running"):
        run.epoch()
        with run.loop.evaluation("eval"):
            run.accelerator.save_state(tmp_path)
    assert not any(Path(tmp_path).glob("*.safetensors"))


def test_saving_outside_of_a_fit_and_before_gradients_fires_nothing(tmp_path):
    run = Run()
    run.accelerator.save_state(tmp_path / "before")
    with run.fit():
        for batch in itertools.islice(run.loop.batches(run.loader), 1):
            run.accelerator.save_state(tmp_path / "at the top")
            run.loop.gradients(batch)
            assert run.state.timestamp.batch == 0
    run.accelerator.save_state(tmp_path / "after")
    clocks = [torch.load(f / "custom_checkpoint_0.pkl")["clock"]["batch"] for f in sorted(tmp_path.iterdir())]
    assert clocks == [1, 0, 0]
