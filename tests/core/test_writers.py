"""Two algorithms that write one field at one event: `explain` says so if only the list decides which comes first."""

import re
from importlib import import_module

import pytest

from engine_core import AlgorithmMetadata, algorithm_pass, passes
from engine_core.errors import MetadataError
from engine_core.explain import explain_algorithms

from .parts import made, source_of


def writer(class_name, **fields):
    return made(class_name, **{"events": ("after_dataloader",), "writes": ("batch",), **fields})


A, B = writer("A"), writer("B")
C = writer("C", writes=())


def told(algorithms, algorithm_passes=None):
    return list(explain_algorithms(algorithms, algorithm_passes).warnings)


def test_the_warning_names_both_the_fields_the_events_and_the_remedy():
    (message,) = told([A, B])
    assert message == (
        "A and B both write batch, and only their positions in the list decide which runs first at after_dataloader: "
        "declare before, after, around or within in the metadata of one, or set the order with explicit_order, in a "
        "config with `order:`"
    )
    both = {"events": ("init", "before_loss", "after_loss"), "writes": ("outputs", "model", "loss")}
    (message,) = told([writer("A", **both), writer("B", **both)])
    assert message.startswith(
        "A and B both write loss, model and outputs, and only their positions in the list decide which runs first at "
        "init, before_loss and after_loss:"
    )


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (("model",), ("model.layout",), "model.layout"),
        (("model.norm", "loss"), ("model.norm.weight", "loss"), "loss and model.norm.weight"),
        (("model.norm",), ("model.norm",), "model.norm"),
    ],
)
def test_a_part_of_the_model_is_written_by_who_writes_it_or_what_it_is_a_part_of(one, other, both):
    for algorithms in (one, other), (other, one):
        a, b = (writer(name, writes=writes) for name, writes in zip("AB", algorithms, strict=True))
        (message,) = told([a, b])
        assert message.startswith(f"A and B both write {both}, and only")


@pytest.mark.parametrize("writes", ["model.", "model.a-b", "model..a", "batch.images", "modl.layout"])
def test_what_is_not_a_part_of_the_model_is_refused(writes):
    with pytest.raises(MetadataError, match=re.escape(writes)):
        AlgorithmMetadata(writes=(writes,))


def test_the_remedy_that_it_names_ends_it_and_keeps_the_order():
    for names in (["b", "a"], ["a", "b"]):
        for algorithms in ([A, B], [B, A]):
            explanation = explain_algorithms(algorithms, passes.explicit_order({"after_dataloader": names}))
            assert explanation.warnings == ()
            assert [explained.name for explained in explanation["after_dataloader"]] == names


@pytest.mark.parametrize(
    "algorithms",
    [
        [A, C],
        [A, writer("B", writes=None)],
        [A, writer("B", writes=("loss",))],
        [A, writer("B", events=("before_dataloader",))],
        [A, type(A)()],  # which nothing could tell apart
        [writer("A", writes=("model.LayerNorm",)), writer("B", writes=("model.LayerNormal", "model.layout"))],
        [writer("A", before=("b",)), B],
        [writer("A", around=("b",)), B],
        [writer("A", after=("@mix",)), writer("B", tags=("mix",))],
        [writer("A", before=("c",)), C, writer("B", after=("c",))],
    ],
)
def test_no_warning_where(algorithms):
    assert told(algorithms) == []


def test_a_pass_that_settles_it_ends_the_warning_and_one_that_mirrors_the_list_settles_nothing():
    def b_first(algorithms, event):
        return passes.sort_to_front(algorithms, type(B))

    @algorithm_pass(stage="placement")
    def mirror(algorithms, event):
        return algorithms[::-1]

    assert told([A, B], b_first) == []
    (message,) = told([A, B, writer("C")], b_first)
    assert message.startswith("A and C both write batch")
    assert len(told([A, B], mirror)) == 1


def test_a_pass_of_a_plugin_that_settles_it_ends_the_warning_which_else_names_the_distribution(install, monkeypatch):
    text = source_of("Prune", events=("after_dataloader",), writes=("batch",)) + (
        "\n@algorithm_pass(stage='placement')\ndef prune_first(algorithms, event):\n"
        "    return passes.sort_to_front(algorithms, Prune)\n"
    )
    points = {"algorithms": {"prune": "prune_too:Prune"}, "passes": {"prune_first": "prune_too:prune_first"}}
    install("prune-plugin", points, {"prune_too": text}, version="0.3")
    prune = import_module("prune_too").Prune()
    assert told([A, prune]) == []
    monkeypatch.setenv("ENGINE_CORE_DISABLE_PLUGINS", "prune_first")
    (message,) = told([prune, A])
    assert message.startswith("Prune (prune-plugin 0.3) and A both write batch, and only")
