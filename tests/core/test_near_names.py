"""A reference that nearly names an algorithm in the run is not a constraint, and a warning says so."""

import pytest

from engine_core import Engine, Logger, State
from engine_core.errors import EngineError, OrderWarning

from .parts import made, source_of


def at_init(class_name, /, **metadata):
    return made(class_name, events=("init",), **metadata)


def start(*algorithms):
    Engine(State(algorithms=list(algorithms)), Logger()).close()


def told(*algorithms):
    with pytest.warns(OrderWarning) as caught:
        start(*algorithms)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("relation", "reference", "other", "meant"),
    [
        ("before", "BigThing", at_init("BigThing"), "big_thing"),
        ("after", "BigThing", at_init("BigThing", name="huge"), "huge"),
        ("conflicts", "bigthing", at_init("BigThing"), "big_thing"),
        ("before", "big-thing", at_init("BigThing"), "big_thing"),
        ("after", "label_smoothng", at_init("LabelSmoothing"), "label_smoothing"),
        ("before", "augmentation", at_init("Flip", tags=("augmentation",)), "@augmentation"),
    ],
)
def test_the_name_to_write_is_suggested(relation, reference, other, meant):
    assert told(at_init("Small", **{relation: (reference,)}), other) == [
        (
            f"{relation}={reference!r} in the metadata of Small has no effect: no algorithm here has that name; "
            f"did you mean {meant!r}?"
        )
    ]


@pytest.mark.parametrize(
    "algorithms",
    [
        [at_init("A", before=("b",))],
        [at_init("A", before=("augmix",)), at_init("B", name="augmixx")],
        [at_init("A", before=("scale_layers_1",)), at_init("B", name="scale_layers_2")],
        [at_init("A", before=("a",))],
        [at_init("A", before=("BigThing",)), at_init("B", name="BigThing"), at_init("BigThing", name="other")],
        [at_init("A", before=("@big_thin",)), at_init("BigThing")],
    ],
    ids=["absent", "short names", "other numbers", "its own name", "a registered name", "a tag"],
)
def test_a_name_that_may_be_meant_as_written_causes_no_warning(algorithms):
    start(*algorithms)


def test_the_name_of_another_installed_algorithm_causes_no_warning(install):
    install("other", {"algorithms": {"label_smoothng": "other:Other"}}, {"other": source_of("Other")})
    start(at_init("A", before=("label_smoothng",)), at_init("LabelSmoothing"))


def test_a_requirement_by_class_name_is_refused_with_the_name_to_write():
    with pytest.raises(EngineError) as error:
        start(at_init("Small", requires=("BigThing",)), at_init("BigThing"))
    assert str(error.value) == (
        "'small' (Small) requires 'BigThing', and no such algorithm is listed; did you mean 'big_thing'?"
    )
