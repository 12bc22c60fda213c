"""Config files: what they may say, and the one message for what they may not."""

import json
import subprocess
import sys

import pytest

from engine_core.config import Config, ConfigError, load_config, override
from engine_core.config.reading import read_yaml
from engine_core.errors import MetadataError

TARGET = {"target": "nets:Net"}
VALID = """
model: {target: "nets:Net"}
data: {target: "nets:loader"}
optimizer: {target: "torch.optim:SGD", args: {lr: 1e-3}}
"""


@pytest.fixture
def refused(tmp_path):
    """Return what `load_config` says about a text, with the folder left out."""

    def refused(text):
        file = tmp_path / "run.yaml"
        file.write_text(text)
        with pytest.raises(ConfigError) as caught:
            load_config(file)
        return str(caught.value).replace(f"{tmp_path}/", "")

    return refused


def test_what_is_left_out_has_its_default(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(VALID + "algorithms:\n  # - ema\n")
    assert load_config(file).model_dump(exclude_defaults=True) == {
        "model": {"target": "nets:Net"},
        "data": {"target": "nets:loader"},
        "optimizer": {"target": "torch.optim:SGD", "args": {"lr": 0.001}},
    }


def test_a_plugin_is_a_name_or_a_mapping(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(VALID + "algorithms: [ema, {name: mixup, args: {alpha: 0.1}}, {target: 'nets:Own'}]")
    assert [entry.model_dump(exclude_unset=True) for entry in load_config(file).algorithms] == [
        {"name": "ema"},
        {"name": "mixup", "args": {"alpha": 0.1}},
        {"target": "nets:Own"},
    ]


def test_yaml_is_version_1_2(tmp_path):
    file = tmp_path / "values.yaml"
    file.write_text("[1e-3, off, no, 1:30, 010, 0x10, 2026-01-01, true, ~, .5, -.inf, 3ep, '1']")
    assert read_yaml(file).root.plain() == [
        *(0.001, "off", "no", "1:30", 10, 16, "2026-01-01", True, None, 0.5, float("-inf"), "3ep", "1"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("modle: 3", "1: modle: unknown key; did you mean 'model'?"),
        ("seed: 3", "1: seed: unknown key here; it belongs under trainer: write it as trainer.seed"),
        ("trainer: {seed: true}", "1: trainer.seed: has to be a valid integer, not True"),
        ("trainer: {precision: fp17}", "1: trainer.precision: has to be 'fp32', 'amp_bf16' or 'amp_fp16', not 'fp17'"),
        ("trainer: {device: gpu}", "1: trainer.device: has to be auto, cpu, cuda, cuda:1 or mps, not 'gpu'"),
        ("trainer: {max_duration: 0ep}", "1: trainer.max_duration: has to be longer than zero, not '0ep'"),
        (
            "trainer: {run_name: ../x}",
            "1: trainer.run_name: has to be a folder's name, without spaces and slashes, not",
        ),
        ("loss: 'nets:loss'", "1: loss: has to be a mapping (target, args), not 'nets:loss'"),
        (
            "loss: {target: nets.loss}",
            "1: loss.target: has to be 'module:attribute', as in 'torch.nn:Linear', not 'nets.",
        ),
        ("loss: {target: nets.loss}", "'nets.loss'; did you mean 'nets:loss'?"),
        ("algorithms:\n- ema\n- {nam: ema}", "3: algorithms[1].nam: unknown key; did you mean 'name'?"),
        ("algorithms: [{args: {}}]", "1: algorithms[0]: has neither name nor target; give the name of an installed"),
        ("order: {befor_loss: []}", "1: order.befor_loss: 'befor_loss' is not an event; did you mean 'before_loss'?"),
        ("require_plugins: [a b]", "1: require_plugins[0]: 'a b' is not a requirement such as 'some-plugin>=1.2,<2': "),
    ],
)
def test_a_mistake_is_reported_with_file_line_key_and_remedy(refused, text, said):
    told = refused(text + VALID)
    assert told.startswith("run.yaml:")
    assert said in told


def test_all_problems_come_in_the_order_of_the_file(refused):
    assert refused("trainer: {seed: -1}\ndata: {target: a}\n").splitlines() == [
        "run.yaml: model: this key is missing",
        "run.yaml: optimizer: this key is missing",
        "run.yaml:1: trainer.seed: has to be greater than or equal to 0, not -1",
        "run.yaml:2: data.target: has to be 'module:attribute', as in 'torch.nn:Linear', not 'a'",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# nothing", ": has to be a mapping (model, data, optimizer, "),
        ("- a", ": has to be a mapping (model, data, optimizer, "),
        ("a: [1", ":1: not valid YAML: while parsing a flow sequence, expected ',' or ']', but got"),
        ("a: {b: 1,\n b: 2}", ":2: not valid YAML: duplicate key 'b', first used in line 1; remove one"),
        ("a: !!python/name:os.system", ":1: not valid YAML: could not determine a constructor for the tag"),
        ("a: 1\n---\nb: 2", ":2: not valid YAML: expected a single document in the stream"),
    ],
)
def test_anything_but_a_mapping_is_reported_with_its_line(refused, text, message):
    assert refused(text).startswith(f"run.yaml{message}")


def test_a_missing_file_suggests_the_nearest_and_a_binary_one_is_refused(tmp_path):
    (tmp_path / "digits.yaml").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(ConfigError, match=r"digit\.yaml: there is no such file; did you mean 'digits\.yaml'\?$"):
        load_config(tmp_path / "digit.yaml")
    with pytest.raises(ConfigError, match=r"digits.yaml: not a text file"):
        load_config(tmp_path / "digits.yaml")


def test_merged_keys_may_be_overridden(tmp_path):
    (tmp_path / "x.yaml").write_text("base: &base {lr: 1, m: 2}\nown: {<<: *base, lr: 3}")
    assert read_yaml(tmp_path / "x.yaml").root.plain()["own"] == {"lr": 3, "m": 2}


def test_override_replaces_settings_leaves_none_alone_and_refuses_what_a_file_could_not_say():
    config = Config(model=TARGET, data=TARGET, optimizer=TARGET)
    changed = override(config, seed=3, device=None)
    assert changed.model_dump(exclude_unset=True)["trainer"] == {"seed": 3}
    with pytest.raises(ConfigError, match=r"^trainer\.max_duration: '3' has no unit"):
        override(config, max_duration="3")


def test_a_config_made_in_python_is_refused_with_the_place_and_without_a_url():
    with pytest.raises(MetadataError) as refusal:
        Config(model={"target": 3}, data=TARGET)
    assert str(refusal.value).splitlines() == [
        "model.target: has to be a valid string, not 3",
        "optimizer: this key is missing",
    ]


def test_a_mistake_in_a_config_is_told_without_torch_as_json_too(tmp_path):
    (tmp_path / "run.yaml").write_text("modle: 3")
    code = "import sys; sys.modules['torch'] = None; from engine_core.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "train", "run.yaml", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)["exit_code"]) == (2, 2)
    assert done.stderr == "Error: run.yaml:1: modle: unknown key; did you mean 'model'?\n"
