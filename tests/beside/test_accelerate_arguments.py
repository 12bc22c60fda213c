"""What is given to a loop with Accelerate is checked when it is given, and what is refused is named."""

import json

import pytest
import torch
from accelerate.utils import GradientAccumulationPlugin
from torch import nn

from engine_core.errors import ArgumentError, ArgumentTypeError, CheckpointError, EngineError, UnsupportedError
from engine_core_accelerate import EngineLoop

from .accelerate_runs import Run, make_accelerator
from .cases import make_net


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        ({"max_grad_norm": 0}, ArgumentError, r"max_grad_norm=0 has to be within \(0, inf\)"),
        ({"max_grad_norm": float("nan")}, ArgumentError, "max_grad_norm=nan has to be a finite number"),
        ({"max_grad_norm": "1"}, ArgumentTypeError, r"max_grad_norm='1' \(str\) has to be a number"),
        ({"seed": "a"}, ArgumentError, "seed has to be an int from 0 to .* not 'a'"),
        ({"loss_fn": 3}, ArgumentTypeError, r"loss_fn has to be callable as loss_fn\(outputs, targets\), not 3"),
        ({"loss_fn": nn.MSELoss}, ArgumentTypeError, r"loss_fn is the class MSELoss; write MSELoss\(\)"),
    ],
    ids=str,
)
def test_an_argument_is_refused_before_anything_is_registered(given, kind, says):
    accelerator = make_accelerator()
    with pytest.raises(kind, match=f"^{says}"):
        EngineLoop(accelerator, **given)
    assert not accelerator._custom_objects


def test_an_accelerator_comes_first():
    with pytest.raises(ArgumentTypeError, match=r"^EngineLoop\(accelerator\) takes an Accelerator, not Sequential"):
        EngineLoop(make_net())


@pytest.mark.parametrize(
    ("given", "what"),
    [
        *(("run.model, None", "a torch optimizer, or a list"), ("run.model, []", "a torch optimizer, or a list")),
        ("run.model, [run.optimizer, 3]", "a torch optimizer, or a list of them"),
        ("run.model, run.optimizer, run.loader, 'x'", "a torch scheduler, or a list of them"),
        ("run.model, run.optimizer, run.loader, [3]", "a torch scheduler, or a list of them"),
        ("run.optimizer, run.model", "a model first"),
    ],
)
def test_fit_takes_a_model_optimizers_and_schedulers(given, what):
    run = Run()
    with pytest.raises(ArgumentTypeError, match=rf"^fit\(.*\) takes {what}.*, not "):
        run.loop.fit(*eval(f"[{given}]")).__enter__()


def test_a_parameter_of_two_optimizers_is_clipped_once():
    run = Run(max_grad_norm=0.1)
    other = run.accelerator.prepare_optimizer(torch.optim.SGD(run.net.parameters(), lr=0.1))
    with run.loop.fit(run.model, [run.optimizer, other], run.loader):
        run.cut(1)
    norm = torch.nn.utils.get_total_norm([p.grad for p in run.net.parameters()])
    assert norm.item() == pytest.approx(0.1, rel=1e-3)


def test_a_step_that_a_loader_would_not_end_is_refused():
    plugin = GradientAccumulationPlugin(num_steps=2, sync_with_dataloader=False)
    run = Run(accelerator=make_accelerator(1, gradient_accumulation_plugin=plugin))
    with pytest.raises(UnsupportedError, match="can't work with sync_with_dataloader=False: leave it out"), run.fit():
        pass
    run.accelerator.gradient_accumulation_steps = 1
    with run.fit():
        run.epoch()
    assert run.state.timestamp[:2] == (1, 7)


def two_loops(*algorithms):
    """Return two runs with one accelerator."""
    accelerator = make_accelerator()
    return [Run([*each], accelerator=accelerator, seed=n) for n, each in enumerate(algorithms)]


def test_one_fit_runs_at_a_time_in_an_accelerator():
    first, second = two_loops([], [])
    message = "another EngineLoop of this accelerator is in a fit: end it, or make another accelerator"
    with first.fit(), pytest.raises(EngineError, match=message), second.fit():
        pass
    with second.fit():
        second.epoch()
    assert second.state.timestamp[:2] == (1, 7)


def test_two_loops_of_one_accelerator_are_saved_and_loaded_each(tmp_path):
    for run in (runs := two_loops(["label_smoothing"], ["ema"])):
        run.train(1)
    runs[0].accelerator.save_state(tmp_path)
    again = two_loops(["label_smoothing"], ["ema"])
    for run in again:
        run.state.seed = 99
    again[0].accelerator.load_state(tmp_path)
    assert [run.state.seed for run in again] == [0, 1]
    with pytest.raises(CheckpointError, match="was saved with EMA, and this run does not have it"):
        two_loops(["ema"], [])[0].accelerator.load_state(tmp_path)


@pytest.mark.parametrize("text", ["{", "null", '{"format": 1}'])
def test_a_damaged_part_is_named_before_anything_is_loaded(tmp_path, text):
    run = Run()
    run.accelerator.save_state(tmp_path)
    (tmp_path / "engine-core.json").write_text(text)
    before = [p.clone().mul_(2) for p in run.net.parameters()]
    with torch.no_grad():
        for p in run.net.parameters():
            p.mul_(2)
    where = "engine-core.json'" if text != '{"format": 1}' else "is damaged: it lacks algorithms"
    with pytest.raises(CheckpointError, match=where):
        run.accelerator.load_state(tmp_path)
    assert all(map(torch.equal, run.net.parameters(), before))


def test_a_checkpoint_is_loaded_before_fit(tmp_path):
    run = Run("ema")
    run.accelerator.save_state(tmp_path)
    with run.fit():
        run.epoch()
        before = [p.clone() for p in run.net.parameters()]
        says = r"^load_state\(\) can't be called here: a fit is running; load before `with"
        with pytest.raises(EngineError, match=says):
            run.accelerator.load_state(tmp_path)
        with run.loop.evaluation("eval"), pytest.raises(EngineError, match=r"^load_state\(\) can't be called here"):
            run.accelerator.load_state(tmp_path)
        assert all(map(torch.equal, run.net.parameters(), before))
    assert json.loads((tmp_path / "engine-core.json").read_text())["clock"]["batch"] == 0
