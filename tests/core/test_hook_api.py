"""The number of the hook API: which plugins are accepted, and what the message about the others says."""

import subprocess
import sys
import textwrap

import pytest

from engine_core import AlgorithmMetadata, PassMetadata, metadata
from engine_core.errors import MetadataError, PluginError
from engine_core.event import HOOK_API
from engine_core.registry import Registry

LATE = """
    from engine_core import Algorithm, AlgorithmMetadata

    class Late(Algorithm):
        metadata = AlgorithmMetadata(events=("after_everything",), speed="high", hook_api=2)
"""
LATE_PASS = """
    from engine_core import algorithm_pass

    @algorithm_pass(stage="afterwards", hook_api=3)
    def late_pass(algorithms, event):
        return algorithms
"""


@pytest.fixture
def newer_core(monkeypatch):
    """Return a function that makes this engine-core one that has a newer hook API."""

    def newer_core(has, oldest):
        monkeypatch.setattr(metadata, "HOOK_API", has)
        monkeypatch.setattr(metadata, "OLDEST_HOOK_API", oldest)

    return newer_core


def refusal_of(model, **fields):
    """Return what is said of metadata that has to be refused."""
    with pytest.raises(MetadataError) as refusal:
        model(**fields)
    return str(refusal.value).removeprefix(f"{model.__name__}: ")


def test_a_plugin_that_does_not_say_is_made_for_1_whatever_the_newest_is():
    program = """
        from engine_core import event

        event.HOOK_API = 3  # before anything has taken it over

        from engine_core import AlgorithmMetadata, PassMetadata

        print(AlgorithmMetadata().hook_api, PassMetadata().hook_api, AlgorithmMetadata(hook_api=3).hook_api)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1 1 3\n"


def test_older_apis_that_are_still_served_are_accepted_and_others_say_update_the_plugin(newer_core):
    newer_core(has=3, oldest=2)
    assert [AlgorithmMetadata(hook_api=number).hook_api for number in (2, 3)] == [2, 3]
    for fields in ({"hook_api": 1}, {"name": "old"}):
        assert refusal_of(AlgorithmMetadata, **fields) == (
            "hook_api: made for hook API 1, but this engine-core has 3 and accepts none before 2: "
            "update the plugin, or install an older engine-core"
        )


def test_a_number_is_an_integer_and_one_that_is_too_high_says_update_engine_core():
    assert (HOOK_API, metadata.OLDEST_HOOK_API) == (1, 1)
    for model in (AlgorithmMetadata, PassMetadata):
        expected = "hook_api: made for hook API 2, but this engine-core has 1: update engine-core"
        assert refusal_of(model, hook_api=2) == expected
    for number in ("1", 1.0, True, None):
        expected = f"hook_api: Input should be a valid integer, not {number!r}"
        assert refusal_of(PassMetadata, hook_api=number) == expected


@pytest.mark.parametrize(
    ("kind", "target", "text", "expected"),
    [
        ("algorithms", "late_module:Late", LATE, "AlgorithmMetadata: hook_api: made for hook API 2"),
        ("passes", "late_module:late_pass", LATE_PASS, "PassMetadata: hook_api: made for hook API 3"),
    ],
)
def test_a_newer_plugin_is_reported_as_newer_and_its_new_events_and_fields_not_as_misspelt(
    install, kind, target, text, expected
):
    install("late-plugin", {kind: {"late": target}}, {"late_module": text}, version="2.1")
    with pytest.raises(PluginError) as refusal:
        Registry.scan().load(kind, "late")
    singular = {"algorithms": "algorithm", "passes": "pass"}[kind]
    assert str(refusal.value).startswith(
        f"{singular} 'late' of late-plugin 2.1 can't be loaded from {target!r}: "
        f"{expected}, but this engine-core has 1: update engine-core"
    )
