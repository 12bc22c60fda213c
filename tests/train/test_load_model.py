"""`load_model` and `engine-core eval` take up what a training left."""

import json
import re
import shutil
import sys
from importlib import metadata

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import engine_core
from engine_core import Trainer
from engine_core.checkpoint import match_names, with_average
from engine_core.errors import ArgumentError, ArgumentTypeError, CheckpointError, EngineError, PluginError
from engine_core.run import result
from engine_core.run.load import Saved

from .leaving import CONFIG, cli, of_file, read, train, weights

__all__ = ["cli", "train"]
AVERAGED = CONFIG + "algorithms: [average]"
WIDENED = CONFIG + "algorithms: [widen]"


def net():
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout())


def test_the_weights_come_back_in_eval_mode_with_surgery_done_again(train, tmp_path):
    config = CONFIG + "algorithms: [{name: widen, args: {width: 6}}]"
    assert train(config=config).exit_code == 0
    trained = of_file(tmp_path / "out" / "model.safetensors")
    torch.manual_seed(3)
    drawn = torch.rand(1)
    for path in ("out", "out/checkpoints", "out/checkpoints/ep2-ba8"):
        for given in (net, net(), None):
            loaded = engine_core.load_model(path, given, trust=given is None)
            assert weights(loaded) == trained
            assert not any(module.training for module in loaded.modules())
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
    assert engine_core.load_model("out", net)


ANOTHERS = {"distribution": "engine-core", "version": metadata.version("engine-core")}
NOT_FOLLOWED = [
    ({"distribution": "gone-plugin", "registered": "gone"}, PluginError, "gone of gone-plugin 1.2 changed the model"),
    ({"registered": "average"}, CheckpointError, "calls 'average' surgery"),
    ({"settings": {"depth": 3}}, CheckpointError, "widen can't be made as in the saved run"),
    ({"settings": {"width": 7}}, CheckpointError, "the weights are another model's"),
    ({"settings": 3}, CheckpointError, "has .* for surgery"),
    ({"omitted": None}, CheckpointError, "has .* for surgery"),
    ({"distribution": None}, EngineError, "is not an installed algorithm: load it with trust=True"),
    (ANOTHERS, CheckpointError, "'widen' is of left-plugin, and the manifest says 'engine-core'"),
]


def test_a_manifest_that_can_not_be_followed_is_refused(train, tmp_path):
    train(config=WIDENED)
    manifest = read(tmp_path / "out" / "manifest.json")
    for change, raised, problem in NOT_FOLLOWED:
        changed = {**manifest, "surgery": [manifest["surgery"][0] | change]}
        (tmp_path / "out" / "manifest.json").write_text(json.dumps(changed))
        with pytest.raises(raised, match=problem):
            engine_core.load_model("out", net)
    for text in ("[1]", "nix", "null", "{}"):
        (tmp_path / "out" / "manifest.json").write_text(text)
        with pytest.raises(CheckpointError, match="manifest"):
            engine_core.load_model("out", net)


def test_another_version_of_what_changed_the_model_warns_and_where_it_is_disabled_it_is_a_plugin_error(
    train, tmp_path, monkeypatch
):
    train(config=WIDENED)
    file = tmp_path / "out" / "manifest.json"
    whole = file.read_text()
    file.write_text(whole.replace('"version": "1.2"', '"version": "1.1"'))
    with pytest.warns(engine_core.errors.CheckpointWarning, match=r"widen of left-plugin 1.1 .*; 1.2 is installed"):
        engine_core.load_model("out", trust=True)
    file.write_text(whole)
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "widen")
    for model in (net(), None):
        with pytest.raises(PluginError, match=r"widen.* is disabled: listed in ENGINE_CORE_DISABLE_PLUGINS"):
            engine_core.load_model("out", model, trust=model is None)


def test_what_can_not_be_loaded_is_refused(train):
    train()
    refused = [
        ("nowhere", {}, CheckpointError, "there is no checkpoint at 'nowhere'"),
        ("out", {"weights": "averaged"}, ArgumentError, "weights='averaged' has to be 'evaluated' or 'trained'"),
        ("out", {"model": 3}, ArgumentTypeError, "model has to be a module, or what makes one, not 3"),
        ("out", {"model": lambda: torch.nn.Linear(2, 2)}, CheckpointError, "the weights are another model's"),
    ]
    for path, given, raised, problem in refused:
        with pytest.raises(raised, match=re.escape(problem)):
            engine_core.load_model(path, **given)


@pytest.mark.parametrize("start", [0, 100])
def test_the_average_is_saved_beside_the_weights_once_there_is_one(train, tmp_path, start):
    config = f"{CONFIG}algorithms: [{{name: average, args: {{start: {start}}}}}]"
    assert train(config=config).exit_code == 0
    out = tmp_path / "out"
    trained, file = of_file(out / "model.safetensors"), out / "model-average.safetensors"
    manifest = read(out / "checkpoints" / "ep2-ba8" / "manifest.json")
    evaluated = trained if start else of_file(file)
    for path in ("out", "out/checkpoints"):
        assert weights(engine_core.load_model(path, trust=True, weights="trained")) == trained
        assert weights(engine_core.load_model(path, trust=True)) == evaluated
    assert read(out / "results.json")["weights"] == ("trained" if start else "average")
    if start:
        assert not file.exists() and "average" not in manifest
        return
    assert evaluated.keys() == trained.keys() and evaluated != trained
    assert manifest["average"] == {"algorithm": "Average", "registered": "average"}
    assert of_file(out / "checkpoints" / "ep2-ba8" / "average" / "model.safetensors") == evaluated


def test_export_and_show_say_and_give_which_weights_were_evaluated_and_the_average_is_written_first(
    cli, train, monkeypatch
):
    written, write = [], result.write_weights

    def noting(file, *given, **about):
        written.append(file.name)
        write(file, *given, **about)

    monkeypatch.setattr(result, "write_weights", noting)
    train(config=AVERAGED)
    assert written == ["model-average.safetensors", "model.safetensors"]
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
    def files():
        return sorted(path.name for path in tmp_path.rglob("*") if "__pycache__" not in str(path))

    config = f"{CONFIG}algorithms: {algorithms}"
    train(config=config)
    before, results = files(), read(tmp_path / "out" / "results.json")
    told = {"step": 8, "epoch": 2, "weights": "average" if "average" in algorithms else "trained"}
    both = {name: results[name] for name in ("dev/loss", "test/loss")}
    for path in ("out", "out/checkpoints"):
        done = cli("eval", path, "--trust", "--json", config=config)
        assert json.loads(done.output) == {**told, "results": pytest.approx(both, rel=1e-6)}
    one = cli("eval", "out", "--config", "run.yaml", "--data", "dev", config=config)
    lines = [f"dev/loss  {both['dev/loss']:.4g}", f"weights   {told['weights']}, after 8 batches"]
    assert (one.output.splitlines(), files()) == (lines, before)


def test_an_evaluation_that_can_not_be_is_refused(cli, train):
    train()
    refused = [
        (["out"], "give either --trust, to run what the run's own config names, or --config FILE"),
        (["out", "--trust", "--config", "run.yaml"], "give either --trust"),
        (["out", "--trust", "--data", "tests"], "no evaluation loader 'tests'; did you mean 'test'?"),
        (["nowhere", "--trust"], "there is no checkpoint at 'nowhere'"),
    ]
    for arguments, problem in refused:
        done = cli("eval", *arguments)
        assert (done.exit_code, problem in done.output) == (2, True), done.output


GATE = """
    import torch
    from engine_core import Algorithm, AlgorithmMetadata

    class Gate(Algorithm):
        metadata = AlgorithmMetadata(events=("init",), writes=("model",), tags=("surgery",))

        def __init__(self, activation=torch.tanh):
            self.activation = activation

        def match(self, event, state):
            return True

        def apply(self, event, state, logger):
            state.model.activation = self.activation
"""
OWN = """
import torch

class Extra(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.steps = torch.nn.Linear(4, 3), 0

    def forward(self, x):
        self.steps += self.training
        return self.inner(x)

    def get_extra_state(self):
        return {"steps": self.steps}

    def set_extra_state(self, state):
        self.steps = state["steps"]

def lazy():
    return torch.nn.Sequential(torch.nn.LazyLinear(3))
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return the text of a config, and let its module be beside that file alone."""
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(tmp_path))])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(OWN)
    yield CONFIG.replace("left:net", "mine:Extra")
    sys.modules.pop("mine", None)


def with_header(file, renamed=lambda name: name, **changes):
    with safe_open(file, framework="pt") as opened:
        about = {**opened.metadata(), **changes}
    save_file({renamed(name): value for name, value in load_file(file).items()}, file, about)


def test_an_argument_that_json_can_not_hold_is_not_left_out(cli, install, tmp_path):
    install("gate-plugin", {"algorithms": {"gate": "gate:Gate"}}, {"gate": GATE})
    import gate  # noqa: PLC0415

    given = {"max_duration": "1ep", "optimizers": lambda p: torch.optim.SGD(p, lr=0.1), "loss_fn": nn.MSELoss()}
    savers = [("checkpoint_saver", {"folder": tmp_path / "saved"})]
    data = [(torch.ones(4, 4), torch.ones(4, 3))]
    with Trainer(net(), data, algorithms=[gate.Gate(torch.square)], callbacks=savers, **given) as trainer:
        trainer.fit()
    with pytest.raises(CheckpointError, match=r"gate, .* has a value of activation that a manifest .*trust=True"):
        engine_core.load_model(tmp_path / "saved", net)


@pytest.mark.parametrize(
    ("own", "given"),
    [
        ("_orig_mod.0.weight 0._orig_mod.bias", "0.weight 0.bias"),
        ("module.weight bn.bias", "_orig_mod.module.weight _orig_mod.bn.bias"),
        ("_orig_mod.module.weight _orig_mod.module.bias", "module.weight module.bias"),
        ("module.module.weight module.bn.bias", "module.weight bn.bias"),
        ("weight bias", "module._orig_mod.weight module._orig_mod.bias"),
        ("module.module.w module.w", "module.w w"),
    ],
)
def test_names_of_weights_match_whichever_of_the_models_is_wrapped(own, given):
    pairs = dict(zip(own.split(), given.split(), strict=True))
    assert match_names(pairs, pairs.values()) == pairs
    assert match_names(pairs.values(), pairs) == {theirs: name for name, theirs in pairs.items()}


def test_a_part_of_an_average_that_has_no_place_is_not_lost():
    one = torch.ones(1)
    assert with_average({"module.w": one, "n": one}, {"module.w": 2 * one}) == {"module.w": 2 * one, "n": one}
    with pytest.raises(CheckpointError, match="the average has 'v', which is not a weight of the model"):
        with_average({"w": one}, {"w": one, "v": one})


def test_a_compiled_model_takes_plain_weights_and_gives_them(train, tmp_path):
    train(config=AVERAGED)
    file = tmp_path / "out" / "model-average.safetensors"
    average = of_file(file)
    loaded = engine_core.load_model("out", lambda: torch.compile(net(), backend="eager"))
    assert weights(loaded) == {f"_orig_mod.{name}": value for name, value in average.items()}
    with_header(file, renamed="_orig_mod.{}".format)
    assert weights(engine_core.load_model("out", net)) == average


def test_an_average_belongs_to_the_weights_beside_it(train, tmp_path):
    train(config=AVERAGED)
    file = tmp_path / "out" / "model-average.safetensors"
    for path in ("model.safetensors", "model-average.safetensors"):
        assert weights(engine_core.load_model(f"out/{path}", net)) == of_file(file)
    with_header(file, batch="7")
    with pytest.raises(CheckpointError, match=r"does not belong to the model.safetensors beside it"):
        engine_core.load_model("out", net)
    file.unlink()
    with pytest.raises(CheckpointError, match=r"the average that was evaluated, is missing: .*weights='trained'"):
        engine_core.load_model("out", net)
    assert weights(engine_core.load_model("out", net, weights="trained")) == of_file("out/model.safetensors")


def test_a_header_with_a_bad_number_is_refused_and_what_it_says_does_not_reach_the_terminal(cli, train, tmp_path):
    train(config=AVERAGED)
    files = [tmp_path / "out" / name for name in ("model.safetensors", "model-average.safetensors")]
    for file in files:
        with_header(file, algorithm="\x1b[31mred")
    assert r"\x1b[31mred, after 8 batches" in cli("eval", "out", "--config", "run.yaml", config=AVERAGED).output
    files[1].unlink()
    for number in ("9" * 6000, "²", "", "-1"):
        with_header(files[0], batch=number)
        with pytest.raises(CheckpointError, match="does not say its batch"):
            engine_core.load_model("out", net, weights="trained")


def test_a_model_with_extra_state_comes_back_whole(cli, train, own, tmp_path):
    assert train(config=own).exit_code == 0
    for path in ("out", "out/checkpoints", "out/checkpoints/ep2-ba8"):
        assert engine_core.load_model(path, trust=True).steps == 8
    assert cli("eval", "out", "--trust", config=own).exit_code == 0
    shutil.rmtree(tmp_path / "out" / "checkpoints")
    with pytest.raises(CheckpointError, match=r"extra state.* 'out.checkpoints' has none of batch 8: give the path of"):
        engine_core.load_model("out", trust=True)


def test_a_lazy_model_takes_the_shapes_of_the_weights(train, own):
    assert train(config=own.replace("mine:Extra", "mine:lazy")).exit_code == 0
    loaded = engine_core.load_model("out", trust=True)
    assert weights(loaded) == of_file("out/model.safetensors")
    assert loaded(torch.ones(1, 4)).shape == (1, 3)


def test_modules_are_found_beside_the_config_from_another_folder(train, own, tmp_path, monkeypatch):
    assert train(config=own).exit_code == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "out" / "model.safetensors").unlink()  # as after a crash
    for path in ("out", "out/checkpoints", "out/checkpoints/latest"):
        sys.modules.pop("mine", None)
        monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(tmp_path)])
        before = list(sys.path)
        assert engine_core.load_model(tmp_path / path, trust=True).steps == 8
        assert sys.path == before
    (tmp_path / "mine.py").unlink()
    sys.modules.pop("mine")
    says = rf"no module 'mine'.*; looked for where Python looks, and in .*{tmp_path.name}"
    with pytest.raises(EngineError, match=says):
        engine_core.load_model(tmp_path / "out", trust=True)


def test_nothing_is_imported_from_the_runs_folder(train, own, tmp_path, monkeypatch):
    train(config=own)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(tmp_path)])
    sys.modules.pop("mine")
    (tmp_path / "mine.py").rename(tmp_path / "out" / "mine.py")
    file = tmp_path / "out" / "manifest.json"
    file.write_text(json.dumps({**read(file), "import_from": [str(tmp_path / "out"), "relative", 3]}))
    with pytest.raises(EngineError, match="no module 'mine'"):
        engine_core.load_model("out", trust=True)
    manifest = {"import_from": [str(tmp_path / "out"), str(tmp_path)]}
    source = Saved({}, tmp_path / "out/checkpoints/ep2-ba8", manifest, "trained", 2, 8)
    assert source.import_from() == [str(tmp_path)]
