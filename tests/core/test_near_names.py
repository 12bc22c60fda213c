"""A reference that nearly names an algorithm in the run is not a constraint, and a warning says so."""

import pytest

from engine_core import Algorithm, AlgorithmMetadata, Engine, Logger, State
from engine_core.errors import EngineError, MetadataError, OrderWarning


def algorithm(class_name, **fields):
    same = {"metadata": AlgorithmMetadata(events=("init",), **fields), "match": lambda *_: True, "apply": lambda *_: 0}
    return type(class_name, (Algorithm,), same)()


def made(*algorithms):
    Engine(State(algorithms=list(algorithms)), Logger()).close()


def told(*algorithms):
    with pytest.warns(OrderWarning) as caught:
        made(*algorithms)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("relation", ["before", "after", "conflicts"])
@pytest.mark.parametrize(
    ("reference", "other", "meant"),
    [
        ("BigThing", algorithm("BigThing"), "big_thing"),
        ("BigThing", algorithm("BigThing", name="huge"), "huge"),
        ("bigthing", algorithm("BigThing"), "big_thing"),
        ("big-thing", algorithm("BigThing"), "big_thing"),
        ("label_smothing", algorithm("LabelSmoothing"), "label_smoothing"),
        ("augmentation", algorithm("Flip", tags=("augmentation",)), "@augmentation"),
    ],
)
def test_the_name_to_write_is_suggested(relation, reference, other, meant):
    assert told(algorithm("Small", **{relation: (reference,)}), other) == [
        (
            f"{relation}={reference!r} in the metadata of Small has no effect: no algorithm here has that name; "
            f"did you mean {meant!r}?"
        )
    ]


@pytest.mark.parametrize(
    "algorithms",
    [
        [algorithm("A", before=("b",))],
        [algorithm("A", before=("augmix",)), algorithm("B", name="augmixx")],
        [algorithm("A", before=("scale_layers_1",)), algorithm("B", name="scale_layers_2")],
        [algorithm("A", before=("a",))],
        [algorithm("A", before=("BigThing",)), algorithm("B", name="BigThing"), algorithm("BigThing", name="other")],
        [algorithm("A", before=("@big_thin",)), algorithm("BigThing")],
    ],
    ids=["absent", "short names", "other numbers", "its own name", "a registered name", "a tag"],
)
def test_a_name_that_may_be_meant_as_written_causes_no_warning(algorithms):
    made(*algorithms)


def test_the_name_of_another_installed_algorithm_causes_no_warning(install):
    text = "from engine_core import Algorithm\n\nclass Smothing(Algorithm):\n    match = apply = lambda *_: 0\n"
    install("smothing", {"algorithms": {"label_smothing": "smothing:Smothing"}}, {"smothing": text})
    made(algorithm("A", before=("label_smothing",)), algorithm("LabelSmoothing"))


def test_a_requirement_by_class_name_is_refused_with_the_name_to_write():
    with pytest.raises(EngineError) as error:
        made(algorithm("Small", requires=("BigThing",)), algorithm("BigThing"))
    assert str(error.value) == (
        "'small' (Small) requires 'BigThing', and no such algorithm is listed; did you mean 'big_thing'?"
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "ema", "requires": ("ema",)}, "requires: 'ema' names itself"),
        ({"requires": ("@x", "y"), "conflicts": ("@x",)}, "'@x' is in both requires and conflicts"),
    ],
)
def test_what_can_never_be_met_is_refused_when_it_is_declared(fields, message):
    with pytest.raises(MetadataError, match=message):
        AlgorithmMetadata(**fields)
