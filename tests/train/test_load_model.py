"""`load_model` and `engine-core eval` take up what a training left."""

import json
import re

import pytest
import torch

import engine_core
from engine_core.errors import ArgumentError, ArgumentTypeError, CheckpointError, EngineError, PluginError

from .leaving import CONFIG, cli, of_file, read, train, weights

__all__ = ["cli", "train"]


def test_the_weights_come_back_in_eval_mode_with_surgery_done_again(train, tmp_path):
    config = CONFIG + "algorithms: [{name: widen, args: {width: 6}}]"
    assert train(config=config).exit_code == 0
    trained = of_file(tmp_path / "out" / "model.safetensors")
    torch.manual_seed(3)
    drawn = torch.rand(1)
    torch.manual_seed(3)
    import left  # noqa: PLC0415  of the plugin that was installed

    for given in (left.net, left.net(), None):
        for path in ("out", "out/checkpoints", "out/checkpoints/ep2-ba8"):
            loaded = engine_core.load_model(path, given if given is not left.net() else left.net(), trust=given is None)
            assert weights(loaded) == trained
            assert not any(module.training for module in loaded.modules())
            if isinstance(given, torch.nn.Module):
                break
    torch.manual_seed(3)
    engine_core.load_model("out", trust=True)
    assert torch.equal(torch.rand(1), drawn)  # loading draws from no global generator


def test_without_trust_nothing_that_the_folder_names_is_imported(train, tmp_path):
    train()
    manifest = read(tmp_path / "out" / "manifest.json")
    manifest["config"]["model"]["target"] = "antigravity_of_a_stranger:net"
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(EngineError, match=r"'antigravity_of_a_stranger:net' and more would be imported .* trust=True"):
        engine_core.load_model("out")
    assert engine_core.load_model("out", lambda: torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout()))


@pytest.mark.parametrize(
    ("change", "raised", "problem"),
    [
        (
            {"distribution": "gone-plugin", "registered": "gone"},
            PluginError,
            "gone of gone-plugin 1.2 changed the model",
        ),
        ({"registered": "average"}, CheckpointError, "calls 'average' surgery"),
        ({"settings": {"depth": 3}}, CheckpointError, "widen can't be made as in the saved run"),
        ({"settings": {"width": 7}}, CheckpointError, "the weights are another model's"),
        ({"settings": 3}, CheckpointError, "has .* for surgery"),
        ({"distribution": None}, EngineError, "is not an installed algorithm: load it with trust=True"),
    ],
)
def test_a_manifest_that_can_not_be_followed_is_refused(train, tmp_path, change, raised, problem):
    train(config=CONFIG + "algorithms: [widen]")
    file = tmp_path / "out" / "manifest.json"
    manifest = read(file)
    manifest["surgery"][0] |= change
    file.write_text(json.dumps(manifest))
    with pytest.raises(raised, match=problem):
        engine_core.load_model("out", lambda: torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout()))


@pytest.mark.parametrize("knows_model", [True, False], ids=["a model", "the config"])
def test_a_disabled_algorithm_that_changed_the_model_is_a_plugin_error(train, monkeypatch, knows_model):
    train(config=CONFIG + "algorithms: [widen]")
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "widen")
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout()) if knows_model else None
    with pytest.raises(PluginError, match=r"widen.* is disabled: listed in ENGINE_CORE_DISABLE_PLUGINS"):
        engine_core.load_model("out", model, trust=not knows_model)


def test_another_version_of_what_changed_the_model_warns(train, tmp_path):
    train(config=CONFIG + "algorithms: [widen]")
    file = tmp_path / "out" / "manifest.json"
    file.write_text(file.read_text().replace('"version": "1.2"', '"version": "1.1"'))
    with pytest.warns(engine_core.errors.CheckpointWarning, match=r"widen of left-plugin 1.1 .*; 1.2 is installed"):
        engine_core.load_model("out", trust=True)


@pytest.mark.parametrize(
    ("path", "given", "raised", "problem"),
    [
        ("nowhere", {}, CheckpointError, "there is no checkpoint at 'nowhere'"),
        ("out", {"weights": "averaged"}, ArgumentError, "weights='averaged' has to be 'evaluated' or 'trained'"),
        ("out", {"model": 3}, ArgumentTypeError, "model has to be a module, or what makes one, not 3"),
        ("out", {"model": lambda: torch.nn.Linear(2, 2)}, CheckpointError, "the weights are another model's"),
    ],
)
def test_what_can_not_be_loaded_is_refused(train, path, given, raised, problem):
    train()
    with pytest.raises(raised, match=re.escape(problem)):
        engine_core.load_model(path, **given)


@pytest.mark.parametrize("start", [0, 100])
def test_the_average_is_saved_beside_the_weights_once_there_is_one(train, tmp_path, start):
    config = f"{CONFIG}algorithms: [{{name: average, args: {{start: {start}}}}}]"
    assert train(config=config).exit_code == 0
    trained, file = of_file(tmp_path / "out" / "model.safetensors"), tmp_path / "out" / "model-average.safetensors"
    manifest = read(tmp_path / "out" / "checkpoints" / "ep2-ba8" / "manifest.json")
    for path in ("out", "out/checkpoints"):
        assert weights(engine_core.load_model(path, trust=True, weights="trained")) == trained
    if start:
        assert not file.exists()
        assert "average" not in manifest
        assert weights(engine_core.load_model("out", trust=True)) == trained
        assert read(tmp_path / "out" / "results.json")["weights"] == "trained"
        return
    average = of_file(file)
    assert average.keys() == trained.keys()
    assert average != trained
    assert read(tmp_path / "out" / "results.json")["weights"] == "average"
    assert manifest["average"] == {"algorithm": "Average", "registered": "average"}
    assert of_file(tmp_path / "out" / "checkpoints" / "ep2-ba8" / "average" / "model.safetensors") == average
    for path in ("out", "out/checkpoints"):
        assert weights(engine_core.load_model(path, trust=True)) == average


def test_export_and_show_say_and_give_which_weights_were_evaluated(cli, train, tmp_path):
    train(config=CONFIG + "algorithms: [average]")
    assert cli("checkpoint", "export", "out/checkpoints", "evaluated.safetensors").exit_code == 0
    assert cli("checkpoint", "export", "out", "trained.safetensors", "--weights", "trained").exit_code == 0
    assert of_file("evaluated.safetensors") == of_file("out/model-average.safetensors")
    assert of_file("trained.safetensors") == of_file("out/model.safetensors")
    assert re.search(r"^evaluated +with the average of Average$", cli("checkpoint", "show", "out").output, re.MULTILINE)


def test_two_averages_in_a_run_are_refused(train):
    done = train(config=CONFIG + "algorithms: [average, second]")
    assert done.exit_code == 2
    assert "an evaluation uses one average of the weights; leave one of them out" in done.output


@pytest.mark.parametrize("algorithms", ["[]", "[widen, average]"])
def test_an_evaluation_afterwards_gives_the_results_of_the_run(cli, train, tmp_path, algorithms):
    train(config=f"{CONFIG}algorithms: {algorithms}")
    files = sorted(path.name for path in tmp_path.rglob("*") if "__pycache__" not in str(path))
    results = read(tmp_path / "out" / "results.json")
    told = {"step": 8, "epoch": 2, "weights": "average" if "average" in algorithms else "trained"}
    both = {name: results[name] for name in ("dev/loss", "test/loss")}
    for path in ("out", "out/checkpoints"):
        done = cli("eval", path, "--trust", "--json", config=f"{CONFIG}algorithms: {algorithms}")
        assert json.loads(done.output) == {**told, "results": pytest.approx(both, rel=1e-6)}
    one = cli("eval", "out", "--config", "run.yaml", "--data", "dev", config=f"{CONFIG}algorithms: {algorithms}")
    assert one.output.splitlines() == [
        f"dev/loss  {both['dev/loss']:.4g}",
        f"weights   {told['weights']}, after 8 batches",
    ]
    assert sorted(path.name for path in tmp_path.rglob("*") if "__pycache__" not in str(path)) == files


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["out"], "give either --trust, to run what the run's own config names, or --config FILE"),
        (["out", "--trust", "--config", "run.yaml"], "give either --trust"),
        (["out", "--trust", "--data", "tests"], "no evaluation loader 'tests'; did you mean 'test'?"),
        (["nowhere", "--trust"], "there is no checkpoint at 'nowhere'"),
    ],
)
def test_an_evaluation_that_can_not_be_is_refused(cli, train, arguments, problem):
    train()
    done = cli("eval", *arguments)
    assert done.exit_code == 2
    assert problem in done.output
