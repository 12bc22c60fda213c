import functools
import re

import pytest

from engine_core import Callback, Engine, Logger, State, hookimpl
from engine_core.errors import EngineError, PluginError

from .parts import Quiet


class Good:
    heard = 0

    @hookimpl
    def batch_end(self):
        self.heard += 1


def test_optional_hooks_of_a_newer_engine_and_properties_are_left_alone():
    class Modern(Good):
        @hookimpl(optionalhook=True)
        def after_everything(self):
            raise AssertionError

        @property
        def secret(self):
            raise AssertionError

        @functools.cached_property
        def late(self):
            raise AssertionError

    engine = Engine(State(), Logger())
    plugin = Modern()
    engine.host.register(plugin)
    engine.run_event("batch_end")
    assert plugin.heard == 1


class Watching(Callback):
    def batch_end(self, state, logger):
        raise AssertionError


def decorated(function):
    @functools.wraps(function)
    def call(*args, **options):
        return function(*args, **options)

    return call


def wrong(**hooks):
    """Return a plugin with one hook more, which is wrong."""
    return type("Wrong", (Good,), {name: hookimpl(hook) for name, hook in hooks.items()})()


def look(self):
    raise AssertionError


MORE = "name those you want of: event, state"
FAULTS = {
    "misspelt": (wrong(batch_ended=look), "plugin 'mine' implements 'batch_ended', which is not an event; did you"),
    "misspelt elsewhere": (
        type("Wrong", (), {"look": hookimpl(specname="after_los")(lambda self: 0)})(),
        "implements 'after_los', which is not an event; did you mean 'after_loss'",
    ),
    "argument": (wrong(init=lambda self, states: 0), "hook 'init': argument 'states' is unknown; did you mean 'state'"),
    "default": (wrong(init=lambda self, state=None: 0), "argument 'state' has a default value, which pluggy would use"),
    "args": (wrong(init=lambda self, *arguments: 0), f"argument 'arguments' can't be variadic positional; {MORE}"),
    "kwargs": (wrong(init=lambda self, **options: 0), f"argument 'options' can't be variadic keyword; {MORE}"),
    "keyword": (wrong(init=lambda self, *, state: 0), f"argument 'state' can't be keyword-only; {MORE}"),
    "decorated": (wrong(init=decorated(lambda self, state: 0)), "argument 'args' can't be variadic positional"),
    "no yield": (type("Wrong", (), {"init": hookimpl(wrapper=True)(lambda self: 0)})(), "plugin 'mine': "),
    "class": (Good, "plugin 'mine' is a class; register an instance: Good()"),
    "callback": (Watching(), "plugin 'mine' is a Callback; give it to callbacks=[...] instead of the host"),
    "algorithm": (Quiet(), "plugin 'mine' is an Algorithm; give it to algorithms=[...] instead of the host"),
}


@pytest.mark.parametrize(("plugin", "said"), FAULTS.values(), ids=FAULTS)
def test_a_plugin_that_pluggy_cannot_use_is_refused_and_nothing_of_it_remains(plugin, said):
    engine = Engine(State(), Logger())
    with pytest.raises(PluginError, match=re.escape(said)) as refusal:
        engine.host.register(plugin, name="mine")
    assert isinstance(refusal.value, EngineError)
    assert not engine.host.is_registered(plugin)
    engine.run_event("batch_end")
    assert getattr(plugin, "heard", 0) == 0


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
