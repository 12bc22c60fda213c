"""What an algorithm is by itself: its names, its repr, its metadata, and the list that observes it."""

import copy
import dataclasses
import inspect
import pickle
import traceback

import pytest
from pydantic import ValidationError

from engine_core import Algorithm, AlgorithmMetadata, Callback, Event, PassMetadata, State
from engine_core.algorithm import snake_case, unique_names
from engine_core.errors import MetadataError
from engine_core.observed import ObservedList

from .parts import A


def test_the_default_registered_name_is_the_class_in_snake_case():
    names = {"SelectiveBackprop": "selective_backprop", "EMA": "ema", "SAMOptimizer": "sam_optimizer"}
    names |= {"Conv2d": "conv2d", "already_snake": "already_snake"}
    assert {name: snake_case(name) for name in names} == names


def test_names_are_made_unique_in_order():
    assert unique_names([1, "a", 2, 3], taken=["str"]) == ["int", "str-2", "int-2", "int-3"]


def test_match_and_apply_have_to_be_written_and_an_algorithm_asks_for_nothing_else():
    with pytest.raises(TypeError, match="abstract"):
        Algorithm()
    asked = (A().backwards_create_graph, A().find_unused_parameters, A.required_on_load())
    assert (*asked, A().validate(State()), A().state_dict()) == (False, False, False, None, {})
    saved = (Callback().state_dict(), Callback().load_state_dict({}))
    assert (A().metadata, *saved) == (AlgorithmMetadata(), {}, None)


EDITS = {
    "append": lambda members: members.append(9),
    "extend": lambda members: members.extend([8, 9]),
    "insert": lambda members: members.insert(1, 9),
    "remove": lambda members: members.remove(2),
    "pop": lambda members: members.pop(),
    "pop one": lambda members: members.pop(0),
    "clear": lambda members: members.clear(),
    "reverse": lambda members: members.reverse(),
    "sort": lambda members: members.sort(key=lambda item: -item),
    "set": lambda members: members.__setitem__(0, 9),
    "set slice": lambda members: members.__setitem__(slice(0, 2), [7, 8, 9]),
    "set equal": lambda members: members.__setitem__(0, True),
    "delete": lambda members: members.__delitem__(0),
    "delete slice": lambda members: members.__delitem__(slice(None, None, 2)),
    "add in place": lambda members: members.__iadd__([9]),
    "multiply in place": lambda members: members.__imul__(2),
}


def test_each_edit_of_an_observed_list_is_reported_and_does_what_it_does_to_a_list():
    for edit in EDITS.values():
        told = []
        members, plain = ObservedList([1, 2, 3]), [1, 2, 3]
        members.observe(lambda told=told: told.append("changed"))
        assert edit(members) == edit(plain)
        assert (members, told) == (plain, ["changed"])


def test_every_method_that_changes_a_list_is_among_those_edits():
    reads = {"copy", "count", "index", "__len__", "__getitem__", "__contains__", "__iter__", "__reversed__", "__add__"}
    reads |= {"__mul__", "__rmul__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__repr__"}
    made = {"__new__", "__init__", "__doc__", "__sizeof__", "__class_getitem__", "__getattribute__"}
    told = {"append", "extend", "insert", "remove", "pop", "clear", "reverse", "sort"}
    told |= {"__setitem__", "__delitem__", "__iadd__", "__imul__"}
    assert set(vars(list)) - reads - made == told
    assert told <= set(vars(ObservedList))


def test_an_observer_that_stops_is_no_longer_called():
    told = []
    members = ObservedList([1])
    members.observe(told.clear)
    members.stop_observing(told.clear)
    told.append("kept")
    members.append(2)
    assert told == ["kept"]


def test_copies_of_an_observed_list_are_observed_lists_without_observers():
    told = []
    members = ObservedList([1, 2])
    members.observe(lambda: told.append("changed"))
    copies = [copy.copy(members), copy.deepcopy(members)]
    for made in copies:
        made.append(3)
    assert (copies, [type(made) for made in copies], told) == ([[1, 2, 3]] * 2, [ObservedList] * 2, [])
    assert pickle.loads(pickle.dumps(ObservedList([1]))) == [1]


def test_an_observed_list_is_made_of_one_object_several_or_none():
    for given, members in [(None, []), ((), []), ([1, 2], [1, 2]), ((1,), [1]), (5, [5]), ("x", ["x"])]:
        made = ObservedList.of(given)
        assert (made, type(made)) == (members, ObservedList)


class Scale(A):
    def __init__(self, scale=0.5, every: int = 1, *, key="x"):
        self.scale, self._every = float(scale), every
        self.held = (key,)  # found nowhere under its name: shown as it was given


class Needs(A):
    def __init__(self, model, sizes=(), **options):
        pass


class Many(A):
    def __init__(self, *names):
        pass


class Odd:
    def __repr__(self):
        raise ZeroDivisionError


def named():
    pass


@pytest.mark.parametrize(
    ("algorithm", "shown"),
    [
        (A(), "A()"),
        (Scale(), "Scale()"),
        (Scale(every=1.0, key="x"), "Scale()"),
        (Scale(key="y", every=3), "Scale(every=3, key='y')"),
        (Scale(2), "Scale(scale=2.0)"),
        (Needs(object(), [1, 2]), "Needs(model=<object>, sizes=[1, 2])"),
        (Needs(named, (int, object())), "Needs(model=named, sizes=(int, <object>))"),
        (Needs(None, deep=[None]), "Needs(model=None, **{'deep': [None]})"),
        (Needs(Odd()), "Needs(model=<Odd>)"),
        (Needs(Scale(2)), "Needs(model=Scale(scale=2.0))"),
        (Many("a", "b"), "Many(*('a', 'b'))"),
    ],
)
def test_it_shows_what_differs_from_the_defaults_in_the_constructors_order_and_no_address(algorithm, shown):
    assert repr(algorithm) == shown


@dataclasses.dataclass(frozen=True, repr=False)
class Frozen(A):
    scale: float = 1.0


def test_attributes_are_shown_as_they_are_now_long_ones_cut_and_the_same_in_copies():
    algorithm, needs = Scale(), Needs(1)
    assert [*vars(needs), *vars(A())] == []  # what was given is not among the attributes that others read
    algorithm.scale, algorithm._every = 3.0, 7
    assert repr(algorithm) == "Scale(scale=3.0, every=7)"
    assert len(repr(Needs("x" * 10_000, [[i] * 1000 for i in range(1000)]))) < 500
    for made in (copy.copy(needs), copy.deepcopy(needs), pickle.loads(pickle.dumps(needs))):
        assert repr(made) == "Needs(model=1)"
    assert (repr(Frozen(2.0)), repr(object.__new__(Needs))) == ("Frozen(scale=2.0)", "Needs()")


def test_a_class_has_the_signature_of_its_constructor_and_takes_no_other_arguments():
    signatures = {A: "()", Many: "(*names)", type("Heir", (Scale,), {}): "(scale=0.5, every: int = 1, *, key='x')"}
    assert {cls: str(inspect.signature(cls)) for cls in signatures} == signatures
    with pytest.raises(TypeError, match=r"A\(\) takes no arguments"):
        A(1)
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        Scale(scala=1)


def test_events_may_be_given_by_name_tags_are_kept_without_their_mark_and_all_is_frozen():
    assert AlgorithmMetadata(events=["AFTER_LOSS", Event.INIT]).events == (Event.AFTER_LOSS, Event.INIT)
    metadata = AlgorithmMetadata(tags=("@compile", "loss"), before=("@loss", "ema"))
    assert (metadata.tags, metadata.before) == (("compile", "loss"), ("@loss", "ema"))
    for frozen in (metadata, PassMetadata(events=("init",))):
        with pytest.raises(ValidationError, match="frozen"):
            frozen.name = "other"


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
