"""What a manifest keeps is enough to explain a run, whatever is installed later."""

import json
from importlib import import_module
from pathlib import Path

import pytest

from engine_core import Algorithm, AlgorithmMetadata, algorithm_pass, passes
from engine_core.explain import explain_algorithms, why
from engine_core.manifest import SCHEMA, read_manifest


class Quiet(Algorithm):
    def match(self, event, state):
        return False

    def apply(self, event, state, logger):
        raise AssertionError


class A(Quiet):
    metadata = AlgorithmMetadata(after=("bee", "nobody"))


class B(Quiet):
    metadata = AlgorithmMetadata(name="bee", events=("init", "after_loss"))


class C(Quiet):
    pass


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


def test_everything_comes_back(kept):
    extra = C()

    @algorithm_pass(changes_members=True)
    def add_and_drop(algorithms, event):
        return [extra, *passes.sort_to_front([a for a in algorithms if not isinstance(a, C)], A)]

    explanation = explain_algorithms([A(), C(), B()], add_and_drop)
    again = kept(explanation)
    assert again == explanation
    assert dict(again) == dict(explanation)
    assert len(again) == 26
    assert again.skipped[0].what == "A: after='nobody'"


def test_the_reasons_for_a_pair_are_the_same(kept):
    explanation = explain_algorithms([A(), C(), B()])
    again = kept(explanation)
    for pair in (("A", "B"), ("B", "C"), ("C", "A")):
        for event in ("init", "after_loss", "fit_end"):
            assert why(again, *pair, event) == why(explanation, *pair, event)


def test_without_the_plugin(kept, install, monkeypatch):
    text = """
        from engine_core import Algorithm, algorithm_pass, passes

        class Gone(Algorithm):
            match = apply = lambda self, *arguments: None

        @algorithm_pass(stage="placement")
        def gone_first(algorithms, event):
            return passes.sort_to_front(algorithms, Gone)
    """
    points = {"algorithms": {"gone": "absent_module:Gone"}, "passes": {"gone_first": "absent_module:gone_first"}}
    install("gone-plugin", points, {"absent_module": text}, version="3.0")
    explanation = explain_algorithms([C(), import_module("absent_module").Gone()])
    monkeypatch.setenv("ENGINE_CORE_PLUGINS", "")
    again = kept(explanation)
    assert again["init"][0] == ("Gone", "gone", "before C: pass 'gone_first' of gone-plugin", "gone-plugin", "3.0")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "'run' holds no manifest.json: it is not a run's folder"),
        ("{", "'run/manifest.json' is damaged, it is not JSON: "),
        ("[]", "'run/manifest.json' is not a run's manifest: it has no schema number or no run_name"),
        ('{"schema": 1}', "'run/manifest.json' is not a run's manifest: it has no schema number or no run_name"),
        (
            '{"schema": 2, "run_name": "x"}',
            (
                "'run/manifest.json' has schema 2, this engine-core reads schema 1; install the version that wrote it, "
                "or a newer one"
            ),
        ),
        ('{"schema": 1, "run_name": "x", "seed": "y"}', "'run/manifest.json' is damaged: algorithms: Field required"),
    ],
)
def test_anything_but_a_manifest_is_refused_in_one_message(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    if text is not None:
        Path("run/manifest.json").write_text(text)
    with pytest.raises(ValueError, match="run") as refusal:
        read_manifest(Path("run"))
    assert str(refusal.value).startswith(message)


def test_what_does_not_exist_is_refused_with_the_nearest_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("baseline").mkdir()
    for name, message in (
        ("basline", "'basline' does not exist; did you mean 'baseline'?"),
        ("x", "'x' does not exist"),
    ):
        with pytest.raises(ValueError, match="exist") as refusal:
            read_manifest(Path(name))
        assert str(refusal.value) == message
