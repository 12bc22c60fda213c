"""What loops offer and what algorithms and callbacks need of them: who is refused, with which words, and when."""

from dataclasses import replace
from importlib import import_module

import pytest

from engine_core import AlgorithmMetadata, Callback, Engine, Event, Logger, LoggerDestination, State
from engine_core.errors import ArgumentError, EngineError, MetadataError, UnsupportedError
from engine_core.explain import explain_algorithms
from engine_core.needs import EVERYTHING, FSDP_OFFERS, NEEDS, WRITABLE, Offers
from engine_core.state import LoopControl

from .parts import A, Quiet, made, source_of

LIMITED = (
    replace(EVERYTHING, loop="toy 1.2")
    .without("before_loss", "after_loss", "loss", why="the loss is inside the model; call it outside")
    .without("create_graph", "freezing", why="backward is not ours; use another loop")
)


BACKWARD = "backward is not ours; use another loop"


def declaring(**metadata):
    return made("Toy", Quiet, **metadata)


class Watch(Callback):
    def batch_end(self, state, logger): ...


def refusal(*algorithms, callbacks=(), loggers=(), offers=LIMITED):
    """Return what an engine in this loop says."""
    state = State(algorithms=list(algorithms), callbacks=list(callbacks), loop=LoopControl(offers))
    with pytest.raises(UnsupportedError) as refused:
        Engine(state, Logger(list(loggers)))
    return str(refused.value)


def test_names_of_needs_events_and_fields_are_not_confused_and_are_left_out_with_a_reason():
    assert len({*NEEDS, *map(str, Event), *WRITABLE}) == len(NEEDS) + len(Event) + len(WRITABLE)
    assert [need for need, said in NEEDS.items() if said.count(".") != 1 or not said.endswith(".")] == []
    assert EVERYTHING.events - LIMITED.events == {Event.BEFORE_LOSS, Event.AFTER_LOSS}
    assert EVERYTHING.writes - LIMITED.writes == {"loss"}
    assert EVERYTHING.gives - LIMITED.gives == {"create_graph", "freezing"}
    assert LIMITED.without("freezing", why="not here").why["freezing"] == "not here"
    assert (EVERYTHING.gives, EVERYTHING.why) == (frozenset(NEEDS), {})
    assert hash(LIMITED) == hash(replace(LIMITED))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EVERYTHING.without("freezin", why=""), "'freezin' is not an event, a field to write or a need; did"),
        (lambda: EVERYTHING.without("befor_loss", why=""), "did you mean 'before_loss'?"),
        (
            lambda: Offers("toy", gives=frozenset({"graph"})),
            "Offers: 'graph' is not a need; known: closure, create_gra",
        ),
        (lambda: Offers("toy", writes=frozenset({"losses"})), "'losses' is not a field to write; did you mean 'loss'?"),
        (lambda: Offers("toy", events=frozenset({"freezing"})), "'freezing' is not an event; known: after_backward, "),
    ],
)
def test_an_unknown_name_in_offers_is_refused_with_the_nearest(make, message):
    with pytest.raises(ArgumentError) as refused:
        make()
    assert message in str(refused.value)


def test_a_part_of_the_model_needs_a_loop_in_which_the_model_counts():
    offers = LIMITED.without("model", why="it is compiled")
    assert "no model: it is compiled" in refusal(declaring(writes=("model.layout",)), offers=offers)


def test_an_unknown_need_is_refused_with_the_nearest():
    with pytest.raises(MetadataError, match=r"needs\[0\]: 'freezin' is not what a loop can offer; did you mean 'fre"):
        AlgorithmMetadata(needs=("freezin",))
    for callback, said in [
        (
            type("Wrong", (Watch,), {"needs": ("whole_weight",)})(),
            r"Wrong\.needs: 'whole_weight' is not what a loop can",
        ),
        (
            type("Text", (Watch,), {"needs": "freezing"})(),
            r"Text.needs is 'freezing'; it has to be a tuple of names, su",
        ),
        (
            WatchByArgument("stopp"),
            r"WatchByArgument\.needs: 'stopp' is not what a loop can offer; did you mean 'stop'",
        ),
    ]:
        with pytest.raises(TypeError, match=said):
            Engine(State(callbacks=[callback]), Logger())


def test_events_fields_and_needs_that_a_loop_lacks_are_refused_with_the_reason_if_there_is_one():
    for metadata, missing in [
        ({"events": ("batch_end", "after_loss")}, "after_loss: the loss is inside"),
        ({"events": ("before_loss", "after_loss"), "writes": ("batch", "loss")}, "before_loss, after_loss, loss: the"),
        ({"needs": ("whole_weights", "freezing")}, f"freezing: {BACKWARD}"),
    ]:
        assert refusal(declaring(**metadata)).startswith(f"Toy can't work in toy 1.2: no {missing}")
    differentiating = type("Twice", (Quiet,), {"backwards_create_graph": property(lambda self: True)})
    assert refusal(differentiating()).startswith(f"Twice can't work in toy 1.2: no create_graph: {BACKWARD}")
    bare = Offers("bare", gives=frozenset())
    said = "Toy can't work in bare: no late_surgery: this loop does not offer it"
    assert refusal(declaring(needs=("late_surgery",)), offers=bare) == said


def test_what_declares_nothing_or_only_what_is_offered_is_admitted():
    bare = type("Bare", (), {"match": Quiet.match, "apply": Quiet.apply})()
    offered = declaring(events=("batch_end",), writes=("batch",), needs=("whole_weights",))
    state = State(algorithms=[bare, declaring(), offered], callbacks=[Watch()], loop=LoopControl(LIMITED))
    Engine(state, Logger()).close()


class WatchByArgument(Watch):
    needs = ("freezing",)

    def __init__(self, *needs):
        self.needs = needs


def test_callbacks_and_destinations_are_refused_by_what_they_say_of_themselves_or_their_class_says():
    Engine(State(callbacks=[WatchByArgument("stop")], loop=LoopControl(LIMITED)), Logger()).close()
    freezing = type("Freezes", (Watch,), {"needs": ("freezing",)})()
    logging = type("Logs", (LoggerDestination,), {"needs": ("create_graph",)})()
    assert refusal(callbacks=[freezing, WatchByArgument("create_graph")], loggers=[logging]).splitlines() == [
        "3 things are wrong with this combination:",
        f"- Freezes can't work in toy 1.2: no freezing: {BACKWARD}",
        f"- WatchByArgument can't work in toy 1.2: no create_graph: {BACKWARD}",
        f"- Logs can't work in toy 1.2: no create_graph: {BACKWARD}",
    ]
    said = explain_algorithms([], listeners=[type("Inherits", (WatchByArgument,), {})], offers=LIMITED).problems
    assert said == (f"Inherits can't work in toy 1.2: no freezing: {BACKWARD}",)


def test_all_that_is_missing_is_told_at_once_a_line_for_each_reason_beside_other_problems(install):
    text = source_of("Needy", events=("after_loss",), requires=("@b",), needs=("freezing",))
    install("toy-plugin", {"algorithms": {"needy": "needy_module:Needy"}}, {"needy_module": text}, version="2")
    assert refusal(import_module("needy_module").Needy()).splitlines() == [
        "3 things are wrong with this combination:",
        "- 'needy' (Needy of toy-plugin 2) requires '@b', and no such algorithm is listed; add one with that tag",
        "- Needy (toy-plugin 2) can't work in toy 1.2: no after_loss: the loss is inside the model; call it outside",
        f"- Needy (toy-plugin 2) can't work in toy 1.2: no freezing: {BACKWARD}",
    ]


def test_who_joins_later_is_refused_and_the_others_stay_in_use():
    state = State(algorithms=[A()], loop=LoopControl(LIMITED))
    with Engine(state, Logger()) as engine:
        engine.run_event("init")
        state.algorithms.append(declaring(needs=("freezing",)))
        with pytest.raises(UnsupportedError, match="Toy can't work in toy"):
            engine.run_event("batch_end")
        state.algorithms.pop()
        engine.run_event("batch_end")
    assert issubclass(UnsupportedError, EngineError)


def test_fsdp_lacks_these_needs_and_no_event_or_field_each_with_a_reason_and_a_remedy():
    lacking = {"create_graph", "whole_weights", "freezing", "partial_forward", "own_forward", "late_surgery"}
    assert EVERYTHING.gives - FSDP_OFFERS.gives == FSDP_OFFERS.why.keys() == lacking
    assert (FSDP_OFFERS.events, FSDP_OFFERS.writes, FSDP_OFFERS.loop) == (EVERYTHING.events, EVERYTHING.writes, "fsdp")
    assert [why for why in FSDP_OFFERS.why.values() if "; train with DDP instead" not in why] == []


class ByArgument(Quiet):
    metadata = AlgorithmMetadata(name="by_argument", events=("batch_start", "batch_end", "after_loss"), tags=("toy",))

    def __init__(self, narrow):
        self.asked = []
        if narrow:
            self.metadata = self.metadata.replace(events=("batch_end",), needs=("late_surgery",))

    def match(self, event, state):
        self.asked.append(event.value)
        return False


def test_metadata_of_an_instance_is_checked_as_a_classs_and_keeps_the_rest():
    metadata = ByArgument(narrow=True).metadata
    fields = {"name": "by_argument", "tags": ("toy",), "events": ("batch_end",), "needs": ("late_surgery",)}
    assert metadata == AlgorithmMetadata(**fields)
    for wrong, said in [
        ({"need": ()}, "unknown field 'need'; did you mean 'needs'"),
        ({"events": ("befor_loss",)}, "'befor_loss' is not an event"),
        ({"before": ("x",), "after": ("x",)}, "'x' is in both before and after"),
    ]:
        with pytest.raises(MetadataError, match=said):
            metadata.replace(**wrong)


def test_events_explanations_and_refusals_go_by_the_instance():
    narrow, wide = ByArgument(narrow=True), ByArgument(narrow=False)
    with Engine(State(algorithms=[narrow, wide]), Logger()) as engine:
        for event in ("batch_start", "after_loss", "batch_end"):
            engine.run_event(event)
    assert (narrow.asked, wide.asked) == (["batch_end"], ["batch_start", "after_loss", "batch_end"])
    explanation = explain_algorithms([narrow], offers=FSDP_OFFERS)
    assert (list(explanation), explanation.algorithms[0].events) == (["batch_end"], ("batch_end",))
    said = f"ByArgument can't work in fsdp: no late_surgery: {FSDP_OFFERS.why['late_surgery']}"
    assert explanation.problems == (said,)
    assert explain_algorithms([wide], offers=FSDP_OFFERS).problems == ()
    assert "no after_loss" in refusal(wide)
