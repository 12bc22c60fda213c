"""The built-in example: how it trains, and what it says where something is missing."""

import json
import re
import sys

import pytest
import torch
from click.testing import CliRunner

from engine_core.cli import main
from engine_core.config import load_config
from engine_core.examples import find_example
from engine_core.registry import Registry

torch.set_num_threads(1)


@pytest.fixture
def installed():
    pytest.importorskip("sklearn", reason="needs the extra 'examples'")
    required = load_config(find_example("digits")).require_plugins
    if not {record.distribution for record in Registry.scan().records}.issuperset(required):
        pytest.skip(f"needs {', '.join(required)}: run in the environments with plugins")


def test_digits_learns_with_the_algorithm_active(installed, tmp_path):
    result = CliRunner().invoke(main, ["train", "--example", "digits", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["eval/accuracy"] > 0.95
    counts = {name: count for name, count in results["algorithms"].items() if name.endswith("/AFTER_DATALOADER")}
    assert len(counts) == 1
    assert 0 < min(counts.values()) < results["batches"]


def test_an_unknown_example_suggests_the_nearest_and_a_config_or_an_example_is_given_not_both():
    result = CliRunner().invoke(main, ["train", "--example", "digit"])
    assert (result.exit_code, result.output) == (2, "Error: 'digit' is not an example; did you mean 'digits'?\n")
    for arguments in ([], ["run.yaml", "--example", "digits"]):
        result = CliRunner().invoke(main, ["train", *arguments])
        assert (result.exit_code, "either a CONFIG.yaml or --example NAME (digits)" in result.output) == (2, True)


def test_a_missing_plugin_is_named_with_how_to_get_it(monkeypatch):
    monkeypatch.setenv("ENGINE_CORE_PLUGINS", "")
    result = CliRunner().invoke(main, ["train", "--example", "digits"])
    assert (result.exit_code, "Traceback" in result.output) == (2, False)
    assert re.search(r"digits.yaml:.*require_plugins\[0\]: ", result.output)


def test_without_scikit_learn_the_extra_is_named(tmp_path, monkeypatch):
    for name in ("sklearn", "sklearn.datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "engine_core.examples.digits", raising=False)
    target = '{target: "engine_core.examples.digits:DigitsNet"}'
    parts = "".join(f"{part}: {target}\n" for part in ("model", "data", "optimizer"))
    (tmp_path / "run.yaml").write_text(parts + "trainer: {max_duration: 1ep}")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["train", "run.yaml"])
    says = r"run.yaml:1: model: the digits example needs scikit-learn .*pip install 'engine-core\[examples\]'"
    assert (result.exit_code, bool(re.search(says, result.output))) == (2, True)
