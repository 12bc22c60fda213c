"""The callbacks change no bit of a run, and a run that was resumed logs what one that was not does."""

from importlib import import_module

import pytest
import torch
from parts import at, same

import insight_plugin
from engine_core.registry import Registry

ALL = ["model_summary", ("norms", {"interval": "3ba"}), ("memory", {"interval": "3ba"}), "confusion"]
EVALUATES = {"eval_dataloader": [(torch.ones(5, 4), torch.arange(5) % 3)], "eval_interval": "3ba"}


def test_all_are_found_by_name():
    records = [record for record in Registry.scan().records if record.distribution == "insight-plugin"]
    names = ["confusion", "gradient_norm", "memory", "model_summary", "norms", "profiler", "train_metrics"]
    assert sorted((record.kind, record.name) for record in records) == [("callbacks", name) for name in names]


@pytest.mark.filterwarnings("ignore:BatchNorm .* each microbatch:UserWarning")
@pytest.mark.parametrize("settings", [{}, {"precision": "amp_bf16", "microbatch_size": 3}], ids=["plain", "bf16"])
def test_no_bit_of_a_run_changes(run, settings):
    plain, without = run(**EVALUATES, **settings)
    watched, seen = run(callbacks=ALL, **EVALUATES, **settings)
    for stateful in (lambda trainer: trainer.state.model, lambda trainer: trainer.state.optimizers[0]):
        assert same(stateful(plain).state_dict(), stateful(watched).state_dict())
    for name in ("train/loss", "eval/loss"):
        assert without.values(name) == seen.values(name) != []


def logged(*seen):
    """Return the norms, the files, and the steps at which memory was logged."""
    metrics = [(step, values) for each in seen for step, values in each.metrics]
    norms = [(step, values) for step, values in metrics if any(name.startswith("norms/") for name in values)]
    memory = [step for step, values in metrics if any(name.startswith("memory/") for name in values)]
    return norms, [file for each in seen for file in each.files], memory


@pytest.mark.parametrize("cut", [1, 3, pytest.param(6, marks=pytest.mark.full)])
def test_a_run_that_was_resumed_logs_what_one_that_was_not_does(run, tmp_path, cut):
    saver = ("checkpoint_saver", {"folder": tmp_path})
    pause = at("batch_end", lambda state: state.timestamp.batch == cut and state.pause_training())
    _, whole = run(callbacks=ALL, **EVALUATES)
    _, first = run(callbacks=[*ALL, saver, pause], autoresume=True, run_name="cut", **EVALUATES)
    _, second = run(callbacks=[*ALL, saver], autoresume=True, run_name="cut", **EVALUATES)
    assert logged(first, second) == logged(whole)
    assert len(logged(whole)[0]) == 3


def test_a_lazy_model_trains_and_is_watched(run):
    model = torch.nn.Sequential(torch.nn.LazyLinear(5), torch.nn.ReLU(), torch.nn.LazyLinear(3))
    _, seen = run(model, callbacks=ALL, optimizers=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    assert "[8, 3]" in seen.files[0][2]
    assert seen.names("norms")[0] == "norms/gradient/0"


@pytest.mark.parametrize(
    ("module", "name"), [("gradient_norm", "GradientNorm"), ("profiler", "Profiler"), ("train_metrics", "TrainMetrics")]
)
def test_its_former_place_in_the_core_leads_here(module, name):
    with pytest.warns(DeprecationWarning, match=f"insight_plugin.{module}"):
        assert getattr(import_module(f"engine_core.callbacks.{module}"), name) is getattr(insight_plugin, name)
