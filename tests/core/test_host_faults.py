import functools

import pytest

from engine_core import Algorithm, Callback, Engine, Logger, State, hookimpl
from engine_core.errors import EngineError, PluginError


class Good:
    def __init__(self):
        self.heard = 0

    @hookimpl
    def batch_end(self):
        self.heard += 1


def refuse(plugin, match, **how):
    """Register a plugin that has to be refused, and check that nothing of it remains."""
    engine = Engine(State(), Logger())
    with pytest.raises(EngineError, match=match):
        engine.host.register(plugin, **how)
    assert not engine.host.is_registered(plugin)
    engine.run_event("batch_end")


def test_a_misspelt_hook_names_the_nearest_event():
    class Misspelt(Good):
        @hookimpl
        def batch_ended(self):
            raise AssertionError

    plugin = Misspelt()
    refuse(
        plugin, "plugin of type 'Misspelt' implements 'batch_ended', which is not an event; did you mean 'batch_end'"
    )
    assert plugin.heard == 0


def test_a_misspelt_hook_by_another_name_is_found_too():
    class Misspelt:
        @hookimpl(specname="after_los")
        def look(self):
            raise AssertionError

    refuse(
        Misspelt(),
        "plugin 'mine' implements 'after_los', which is not an event; did you mean 'after_loss'",
        name="mine",
    )


def test_an_optional_hook_of_a_newer_engine_is_left_alone():
    class Modern(Good):
        @hookimpl(optionalhook=True)
        def after_everything(self):
            raise AssertionError

    engine = Engine(State(), Logger())
    plugin = Modern()
    engine.host.register(plugin)
    engine.run_event("batch_end")
    assert plugin.heard == 1


def test_an_unknown_argument_names_the_nearest():
    class Wrong(Good):
        @hookimpl
        def init(self, states):
            raise AssertionError

    refuse(Wrong(), "hook 'init': argument 'states' is unknown; did you mean 'state'")


def test_a_default_value_is_refused_because_it_would_hide_the_real_one():
    class Wrong(Good):
        @hookimpl
        def init(self, event, state=None):
            raise AssertionError

    refuse(Wrong(), "hook 'init': argument 'state' has a default value, which pluggy would use instead")


def decorated(function):
    @functools.wraps(function)
    def call(*args, **options):
        return function(*args, **options)

    return call


@pytest.mark.parametrize(
    ("hook", "argument"),
    [
        (lambda self, *arguments: None, "'arguments' can't be variadic positional"),
        (lambda self, **options: None, "'options' can't be variadic keyword"),
        (lambda self, *, state: None, "'state' can't be keyword-only"),
        (decorated(lambda self, state: None), "'args' can't be variadic positional"),
    ],
    ids=["args", "kwargs", "keyword-only", "decorated"],
)
def test_arguments_that_pluggy_cannot_fill_are_refused(hook, argument):
    plugin = type("Wrong", (Good,), {"init": hookimpl(hook)})()
    refuse(plugin, f"plugin of type 'Wrong', hook 'init': argument {argument}; name those you want of: event, state")


def test_a_wrapper_that_does_not_yield_is_refused():
    class Wrong(Good):
        @hookimpl(wrapper=True)
        def init(self):
            return None

    refuse(Wrong(), "plugin of type 'Wrong': ")


def test_a_class_is_refused_in_favour_of_an_instance():
    refuse(Good, r"plugin of type 'type' is a class; register an instance: Good\(\)")


def test_a_callback_is_refused_in_favour_of_callbacks():
    class Watching(Callback):
        def batch_end(self, state, logger):
            raise AssertionError

    refuse(Watching(), r"plugin 'mine' is a Callback; give it to callbacks=\[...\] instead of the host", name="mine")


def test_an_algorithm_without_hooks_is_refused_in_favour_of_algorithms():
    class Idle(Algorithm):
        match = apply = lambda *_: None

    refuse(Idle(), r"plugin of type 'Idle' is an Algorithm; give it to algorithms=\[...\] instead of the host")


def test_a_plugin_is_registered_once():
    engine = Engine(State(), Logger())
    plugin = Good()
    engine.host.register(plugin, name="mine")
    with pytest.raises(ValueError, match="plugin of type 'Good': "):
        engine.host.register(plugin)
    with pytest.raises(ValueError, match="plugin 'mine': "):
        engine.host.register(Good(), name="mine")
    engine.run_event("batch_end")
    assert plugin.heard == 1


def test_properties_of_a_plugin_are_not_run():
    class Guarded(Good):
        @property
        def secret(self):
            raise AssertionError

        @functools.cached_property
        def late(self):
            raise AssertionError

    engine = Engine(State(), Logger())
    plugin = Guarded()
    engine.host.register(plugin)
    engine.run_event("batch_end")
    assert plugin.heard == 1


def test_an_exception_stops_the_others_and_reaches_the_caller():
    class Failing:
        @hookimpl
        def batch_end(self):
            raise ZeroDivisionError

    engine = Engine(State(), Logger())
    plugin = Good()
    engine.host.register(plugin)
    engine.host.register(Failing())
    with pytest.raises(ZeroDivisionError):
        engine.run_event("batch_end")
    assert plugin.heard == 0


def test_a_wrapper_may_handle_an_exception_of_an_algorithm_or_callback():
    class Failing(Callback):
        def batch_end(self, state, logger):
            raise ZeroDivisionError

    class Calm:
        @hookimpl(wrapper=True)
        def batch_end(self):
            try:
                return (yield)
            except ZeroDivisionError:
                return []

    engine = Engine(State(callbacks=[Failing()]), Logger())
    engine.host.register(Calm())
    assert list(engine.run_event("batch_end")) == []


def test_a_refused_plugin_error_is_a_plugin_error():
    with pytest.raises(PluginError):
        Engine(State(), Logger()).host.register(type("T", (), {"x": hookimpl(lambda self: None)})())
