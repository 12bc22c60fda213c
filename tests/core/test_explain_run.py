"""What a manifest keeps is enough to explain a run, whatever is installed later."""

import json
from importlib import import_module
from pathlib import Path

import pytest

from engine_core import algorithm_pass
from engine_core.explain import explain_algorithms, why
from engine_core.manifest import SCHEMA, read_manifest

from .parts import A, C, made, source_of

REST = {
    "schema": SCHEMA,
    "run_name": "run",
    "seed": 1,
    "device": "cpu",
    "precision": "fp32",
    "command": ["engine-core", "train"],
    "versions": {"python": "3.11"},
    "config_file": "run.yaml",
    "config": {},
}


@pytest.fixture
def kept(tmp_path):
    """Return `kept(explanation)`: what comes back from the manifest that holds it."""

    def keep(explanation):
        (tmp_path / "manifest.json").write_text(json.dumps({**REST, **explanation.to_json()}))
        return read_manifest(tmp_path).explanation()

    return keep


def test_everything_comes_back_and_the_reasons_for_a_pair_are_the_same(kept):
    extra, a = C(), made("A", after=("bee", "nobody"))

    @algorithm_pass(changes_members=True)
    def add_and_drop(algorithms, event):
        return [extra, *(algorithm for algorithm in algorithms[::-1] if not isinstance(algorithm, C))]

    explanation = explain_algorithms([a, C(), made("B", name="bee", events=("init", "after_loss"))], add_and_drop)
    again = kept(explanation)
    assert again == explanation
    assert dict(again) == dict(explanation)
    assert (len(again), again.skipped[0].what) == (26, "A: after='nobody'")
    for pair in (("A", "B"), ("B", "C"), ("C", "A")):
        for event in ("init", "after_loss", "fit_end"):
            assert why(again, *pair, event) == why(explanation, *pair, event)


def test_without_the_plugin(kept, install, monkeypatch):
    text = source_of("Gone") + (
        "\n@algorithm_pass(stage='placement')\ndef gone_first(algorithms, event):\n    return algorithms[::-1]\n"
    )
    points = {"algorithms": {"gone": "absent_module:Gone"}, "passes": {"gone_first": "absent_module:gone_first"}}
    install("gone-plugin", points, {"absent_module": text}, version="3.0")
    explanation = explain_algorithms([A(), import_module("absent_module").Gone()])
    monkeypatch.setenv("ENGINE_CORE_PLUGINS", "")
    again = kept(explanation)
    assert again["init"][0] == ("Gone", "gone", "before A: pass 'gone_first' of gone-plugin", "gone-plugin", "3.0")


def refusal_of(path):
    with pytest.raises(ValueError, match=path) as refusal:
        read_manifest(Path(path))
    return str(refusal.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "' holds no manifest.json: it is not a run's folder"),
        ("{", "/manifest.json' is damaged, it is not JSON: "),
        ("[]", "/manifest.json' is not a run's manifest: it has no schema number or no run_name"),
        ('{"schema": 1}', "/manifest.json' is not a run's manifest: it has no schema number or no run_name"),
        (
            '{"schema": 2, "run_name": "x"}',
            "/manifest.json' has schema 2, this engine-core reads schema 1; install the",
        ),
        ('{"schema": 1, "run_name": "x", "seed": "y"}', "/manifest.json' is damaged: algorithms: Field required"),
    ],
)
def test_anything_but_a_manifest_is_refused_in_one_message(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    if text is not None:
        Path("run/manifest.json").write_text(text)
    assert refusal_of("run").startswith(f"'run{message}")


def test_what_does_not_exist_is_refused_with_the_nearest_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("baseline").mkdir()
    assert refusal_of("basline") == "'basline' does not exist; did you mean 'baseline'?"
    assert refusal_of("x") == "'x' does not exist"
