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


def saved(folder, *names, epochs=1, **settings):
    """Train so many epochs with these algorithms, and save."""
    run = Run([*names], **settings)
    with run.fit():
        for _ in range(epochs):
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
    with resumed.fit():
        assert resumed.state.timestamp.epoch == 1
        resumed.epoch()
        resumed.evaluate()
    assert differences(resumed.ended(), whole) == []
    assert resumed.state.seed == 3


@pytest.mark.parametrize("names", RESUMED.values(), ids=list(RESUMED))
def test_resumed_within_an_epoch_by_skipping_batches_is_uninterrupted(tmp_path, names):
    steps, batch = 2, BATCH // 2
    settings = {"loaders": make_loaders(batch=batch, rows=EVEN), "accelerator": make_accelerator(steps)}
    whole = Run(algorithms(names), **settings).train()
    cut = Run(algorithms(names), **{**settings, "accelerator": make_accelerator(steps)})
    with cut.fit():
        for number, loaded in enumerate(cut.loop.batches(cut.loader)):
            cut.loop.gradients(loaded)
            cut.optimizer.step()
            if number == 7:
                cut.accelerator.save_state(tmp_path)
                break
    resumed = Run(algorithms(names), **{**settings, "accelerator": make_accelerator(steps)})
    resumed.accelerator.load_state(tmp_path)
    with resumed.fit():
        done = resumed.state.timestamp.batch_in_epoch
        assert done == 4
        resumed.epoch(resumed.accelerator.skip_first_batches(resumed.loader, done * steps))
        resumed.evaluate()
        resumed.epoch()
        resumed.evaluate()
    assert differences(resumed.ended(), whole) == []


def weights(run):
    return {name: value.clone() for name, value in run.net.state_dict().items()}


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
    before = weights(run)
    with pytest.raises(CheckpointError, match=says):
        run.accelerator.load_state(tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in weights(run).items())


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


class Counter:
    def state_dict(self):
        return {"n": 3}

    def load_state_dict(self, state):
        raise AssertionError("not mine")


def test_parts_in_another_order_are_named(tmp_path):
    first = make_accelerator()
    first.register_for_checkpointing(Counter())
    saved(tmp_path, accelerator=first)
    run = Run()
    run.accelerator.register_for_checkpointing(Counter())
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
