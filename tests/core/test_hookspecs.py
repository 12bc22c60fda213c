import inspect

import pytest

from engine_core import Event, hookspecs

SPECS = {name: thing for name, thing in vars(hookspecs).items() if hasattr(thing, "engine_core_spec")}


def test_there_is_one_spec_for_each_event_in_the_same_order():
    assert list(SPECS) == [event.value for event in Event]


@pytest.mark.parametrize("name", SPECS)
def test_a_spec_takes_event_state_logger_and_traces_all_typed(name):
    signature = inspect.signature(SPECS[name])
    assert str(signature) == "(event: 'Event', state: 'State', logger: 'Logger', traces: 'Traces') -> 'None'"


@pytest.mark.parametrize("name", SPECS)
def test_a_spec_says_when_it_fires(name):
    assert SPECS[name].__doc__.startswith("Fire ")


@pytest.mark.parametrize("name", SPECS)
def test_a_spec_is_nothing_but_a_spec(name):
    lines = inspect.getsource(SPECS[name]).split('"""')
    assert lines[-1].strip() == ""
