import traceback

import pytest
from pydantic import ValidationError

from engine_core import AlgorithmMetadata, Event, PassMetadata
from engine_core.errors import MetadataError


def test_events_may_be_given_by_name():
    assert AlgorithmMetadata(events=["AFTER_LOSS", Event.INIT]).events == (Event.AFTER_LOSS, Event.INIT)
    assert PassMetadata(events=("init",)).events == (Event.INIT,)


def test_tags_are_kept_without_their_mark_and_references_with_it():
    metadata = AlgorithmMetadata(tags=("@compile", "loss"), before=("@loss", "ema"))
    assert (metadata.tags, metadata.before) == (("compile", "loss"), ("@loss", "ema"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"events": ("befor_loss",)}, "'befor_loss' is not an event; did you mean 'before_loss'?"),
        ({"event": ("init",)}, "unknown field 'event'; did you mean 'events'?"),
        ({"writes": ("batches",)}, "'batches' is not a State field that algorithms write; did you mean 'batch'?"),
        ({"name": "sb-plugin:sb"}, "'sb-plugin:sb' can't be a name"),
        ({"before": ("two words",)}, "'two words' can't be a name"),
        ({"tags": ("@",)}, "'' can't be a name"),
        ({"name": "ema", "after": ("ema",)}, "after: 'ema' names itself"),
        ({"before": ("ema",), "after": ("ema",)}, "'ema' is in both before and after"),
        ({"before": ("@pair",), "around": ("@pair",)}, "in both before and around: around is reversed at the second"),
        ({"after": ("ema",), "within": ("ema", "@pair")}, "'ema' is in both after and within: within is reversed"),
        ({"before": ("ema",), "within": ("ema",)}, "'ema' is in both before and within: within is reversed"),
        ({"around": ("ema",), "within": ("ema",)}, "'ema' is in both around and within"),
        ({"name": "ema", "requires": ("ema",)}, "requires: 'ema' names itself"),
        ({"requires": ("@x", "y"), "conflicts": ("@x",)}, "'@x' is in both requires and conflicts"),
        ({"events": "init"}, "events: 'init' is a string, not a tuple: write ('init',)"),
        ({"before": "ema"}, "before: 'ema' is a string, not a tuple: write ('ema',)"),
        ({"tags": 3}, "tags: Input should be a valid tuple, not 3"),
        ({"description": 3}, "Input should be a valid string"),
    ],
)
def test_an_impossible_algorithm_is_refused_with_field_and_value(fields, message):
    with pytest.raises(ValueError, match="Metadata: ") as refusal:
        AlgorithmMetadata(**fields)
    field = list(fields)[-1]
    assert message in str(refusal.value)
    assert field in str(refusal.value)
    assert type(refusal.value) is MetadataError
    assert "https://" not in "".join(traceback.format_exception(refusal.value))


def test_an_impossible_pass_is_refused_with_field_and_value():
    for fields, message in [
        ({"stage": "end"}, "Input should be 'direction', 'placement' or 'check'"),
        ({"pur": False}, "unknown field 'pur'; did you mean 'pure'?"),
        ({"before": ("@tag",)}, "'@tag' can't be a name"),
        ({"hook_api": 0}, "made for hook API 0, but this engine-core has 1"),
    ]:
        with pytest.raises(MetadataError) as refusal:
            PassMetadata(**fields)
        assert message in str(refusal.value)


def test_metadata_is_frozen():
    for metadata in (AlgorithmMetadata(), PassMetadata()):
        with pytest.raises(ValidationError, match="frozen"):
            metadata.name = "other"
