import inspect

from engine_core import Event, hookspecs

SPECS = {name: thing for name, thing in vars(hookspecs).items() if hasattr(thing, "engine_core_spec")}


def test_there_is_one_spec_for_each_event_in_the_same_order():
    assert list(SPECS) == [event.value for event in Event]


def test_a_spec_takes_event_state_logger_and_traces_all_typed_and_says_when_it_fires_and_nothing_else():
    typed = "(event: 'Event', state: 'State', logger: 'Logger', traces: 'Traces') -> 'None'"
    assert {str(inspect.signature(spec)) for spec in SPECS.values()} == {typed}
    assert [name for name, spec in SPECS.items() if not spec.__doc__.startswith("Fire ")] == []
    assert {inspect.getsource(spec).split('"""')[-1].strip() for spec in SPECS.values()} == {""}
