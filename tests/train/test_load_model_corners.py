"""`load_model` where the model is wrapped or lazy or has extra state, and where files or modules are not as usual."""

import json
import shutil
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import engine_core
from engine_core import Trainer
from engine_core.checkpoint import match_names, with_average
from engine_core.errors import CheckpointError, EngineError

from .leaving import CONFIG, cli, of_file, read, train, weights

__all__ = ["cli", "train"]
AVERAGED = CONFIG + "algorithms: [average]"
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


def net():
    return nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))


def compiled():
    return torch.compile(net(), backend="eager")


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return the text of a config, and let its module be beside that file alone."""
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(tmp_path))])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(OWN)
    yield CONFIG.replace("left:net", "mine:Extra")
    sys.modules.pop("mine", None)


def with_header(file, **changes):
    with safe_open(file, framework="pt") as opened:
        about = {**opened.metadata(), **changes}
    save_file(load_file(file), file, about)


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
        ("0.weight 1.bias", "0.weight 1.bias"),
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
    average = of_file(tmp_path / "out" / "model-average.safetensors")
    loaded = engine_core.load_model("out", compiled)
    assert weights(loaded) == {f"_orig_mod.{name}": value for name, value in average.items()}
    file = tmp_path / "out" / "model-average.safetensors"
    with safe_open(file, framework="pt") as opened:
        about = opened.metadata()
    save_file({f"_orig_mod.{name}": value for name, value in load_file(file).items()}, file, about)
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


def test_the_weights_are_written_after_the_average(train, tmp_path, monkeypatch):
    from engine_core.run import result  # noqa: PLC0415

    written, write = [], result.write_weights
    monkeypatch.setattr(
        result, "write_weights", lambda file, values, about: (written.append(file.name), write(file, values, about))
    )
    train(config=AVERAGED)
    assert written == ["model-average.safetensors", "model.safetensors"]


@pytest.mark.parametrize("number", ["9" * 6000, "²", "", "-1"])
def test_a_header_with_a_bad_number_is_refused(train, tmp_path, number):
    train()
    with_header(tmp_path / "out" / "model.safetensors", batch=number)
    with pytest.raises(CheckpointError, match="does not say its batch"):
        engine_core.load_model("out", net)


@pytest.mark.parametrize("text", ["[1]", "nix", "null", "{}"])
def test_a_manifest_that_is_none_is_refused(train, tmp_path, text):
    train()
    (tmp_path / "out" / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"manifest"):
        engine_core.load_model("out", net)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"distribution": "engine-core"}, "'widen' is of left-plugin, and the manifest says 'engine-core'"),
        ({"omitted": None}, "for surgery"),
    ],
)
def test_what_changed_the_model_is_what_the_manifest_says(train, tmp_path, change, problem):
    train(config=CONFIG + "algorithms: [widen]")
    file = tmp_path / "out" / "manifest.json"
    manifest = read(file)
    manifest["surgery"][0] |= change
    if "distribution" in change:
        manifest["surgery"][0]["version"] = manifest["versions"]["engine-core"]
    file.write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=problem):
        engine_core.load_model("out", net)


def test_what_a_folder_says_does_not_reach_the_terminal(cli, train, tmp_path):
    train(config=AVERAGED)
    for name in ("model.safetensors", "model-average.safetensors"):
        with_header(tmp_path / "out" / name, algorithm="\x1b[31mred")
    assert r"\x1b[31mred, after 8 batches" in cli("eval", "out", "--config", "run.yaml", config=AVERAGED).output


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
    with pytest.raises(
        EngineError, match=rf"no module 'mine'.*; looked for where Python looks, and in .*{tmp_path.name}"
    ):
        engine_core.load_model(tmp_path / "out", trust=True)


@pytest.mark.parametrize("path", ["out", "out/checkpoints/ep2-ba8"])
def test_nothing_is_imported_from_the_runs_folder(train, own, tmp_path, monkeypatch, path):
    train(config=own)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(tmp_path)])
    sys.modules.pop("mine")
    (tmp_path / "mine.py").rename(tmp_path / "out" / "mine.py")
    file = tmp_path / "out" / "manifest.json"
    file.write_text(json.dumps({**read(file), "import_from": [str(tmp_path / "out"), "relative", 3]}))
    if path != "out":
        from engine_core.run.load import Source  # noqa: PLC0415

        source = Source(tmp_path / path, {"import_from": [str(tmp_path / "out"), str(tmp_path)]})
        assert source.import_from() == [str(tmp_path)]
        return
    with pytest.raises(EngineError, match="no module 'mine'"):
        engine_core.load_model(path, trust=True)
