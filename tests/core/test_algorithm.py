import copy
import pickle

import pytest

from engine_core import Algorithm, AlgorithmMetadata, State
from engine_core.algorithm import snake_case, unique_names
from engine_core.state import ObservedList


class Plain(Algorithm):
    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        return None


@pytest.mark.parametrize(
    ("name", "registered"),
    [
        ("SelectiveBackprop", "selective_backprop"),
        ("EMA", "ema"),
        ("MixUp", "mix_up"),
        ("FusedLayerNorm", "fused_layer_norm"),
        ("SAMOptimizer", "sam_optimizer"),
        ("Conv2d", "conv2d"),
        ("already_snake", "already_snake"),
    ],
)
def test_the_default_registered_name_is_the_class_in_snake_case(name, registered):
    assert snake_case(name) == registered


def test_names_are_made_unique_in_order():
    assert unique_names([1, "a", 2, 3], taken=["str"]) == ["int", "str-2", "int-2", "int-3"]


def test_match_and_apply_have_to_be_written():
    with pytest.raises(TypeError, match="abstract"):
        Algorithm()


def test_an_algorithm_asks_for_nothing_by_default():
    algorithm = Plain()
    asked = (algorithm.backwards_create_graph, algorithm.find_unused_parameters, Plain.required_on_load())
    assert (*asked, algorithm.validate(State()), algorithm.state_dict()) == (False, False, False, None, {})
    assert algorithm.metadata == AlgorithmMetadata()


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


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_each_edit_of_an_observed_list_is_reported_and_does_what_it_does_to_a_list(edit):
    told = []
    members, plain = ObservedList([1, 2, 3]), [1, 2, 3]
    members.observe(lambda: told.append("changed"))
    assert edit(members) == edit(plain)
    assert members == plain
    assert told == ["changed"]


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


@pytest.mark.parametrize(
    ("given", "members"), [(None, []), ((), []), ([1, 2], [1, 2]), ((1,), [1]), (5, [5]), ("x", ["x"])]
)
def test_an_observed_list_is_made_of_one_object_several_or_none(given, members):
    assert ObservedList.of(given) == members
    assert type(ObservedList.of(given)) is ObservedList
