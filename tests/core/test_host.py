"""The pluggy host: what is called, when, in which order, and what is refused."""

import functools
import re

import pytest

from engine_core import AlgorithmMetadata, Callback, Engine, Event, Logger, LoggerDestination, State, hookimpl
from engine_core.errors import EngineError, PluginError

from .parts import Always, Quiet

calls = []
PLAIN = ["algorithm", "callback", "destination"]


@pytest.fixture(autouse=True)
def forget():
    calls.clear()


class Alg(Always):
    metadata = AlgorithmMetadata(events=("init", "batch_end"))

    def apply(self, event, state, logger):
        calls.append("algorithm")


class Cb(Callback):
    def init(self, state, logger):
        calls.append("callback")

    batch_end = init


class Dest(LoggerDestination):
    def init(self, state, logger):
        calls.append("destination")

    batch_end = init


class Plain:
    def __init__(self, name="plain"):
        self.name = name

    @hookimpl
    def batch_end(self):
        calls.append(self.name)
        return "what it returns does not matter"

    init = batch_end


class Early:
    @hookimpl(tryfirst=True)
    def batch_end(self):
        calls.append("early")


def wrapper(name="wrapper", **options):
    class Wrapper:
        @hookimpl(wrapper=True, **options)
        def batch_end(self):
            calls.append(f"{name} in")
            result = yield
            calls.append(f"{name} out")
            return result

        @hookimpl(wrapper=True, **options)
        def init(self):
            return (yield from self.batch_end())

    return Wrapper()


def make(*plugins):
    engine = Engine(State(algorithms=[Alg()], callbacks=[Cb()]), Logger([Dest()]))
    for plugin in plugins:
        engine.host.register(plugin)
    return engine


@pytest.mark.parametrize(
    ("plugins", "event", "order"),
    [
        ([Plain(), wrapper()], "batch_end", ["wrapper in", *PLAIN, "plain", "wrapper out"]),
        ([Plain(), wrapper()], "init", ["wrapper in", *PLAIN[:0:-1], "plain", "algorithm", "wrapper out"]),
        ([wrapper("a"), wrapper("b")], "batch_end", ["b in", "a in", *PLAIN, "a out", "b out"]),
        (
            [wrapper(), wrapper("inner", trylast=True)],
            "batch_end",
            ["wrapper in", "inner in", *PLAIN, "inner out", "wrapper out"],
        ),
        ([Early()], "batch_end", ["algorithm", "early", "callback", "destination"]),
    ],
    ids=["wrapper", "init", "two wrappers", "trylast wrapper", "tryfirst"],
)
def test_wrappers_surround_all_and_of_the_rest_algorithms_come_first_and_at_init_last(plugins, event, order):
    make(*plugins).run_event(event)
    assert calls == order


def test_the_order_is_the_same_after_the_algorithms_were_edited():
    engine = make(Plain("one"), Plain("two"), wrapper(), wrapper("inner", trylast=True), Early())
    engine.run_event("batch_end")
    before = calls.copy()
    calls.clear()
    engine.state.algorithms.append(Alg())
    engine.state.algorithms.pop()
    engine.run_event("batch_end")
    assert calls == before
    assert before.index("two") < before.index("one")


def test_plugins_come_and_go_between_events_and_get_the_arguments_that_they_name():
    class Curious:
        @hookimpl
        def batch_end(self, traces, event, logger, state):
            calls.append((list(traces), event, logger is engine.logger, state is engine.state))

    engine, plugin = make(), Curious()
    assert engine.host.register(plugin, name="mine") == "mine"
    engine.run_event("batch_end")
    assert engine.host.unregister(name="mine") is plugin
    engine.run_event("batch_end")
    assert calls == [*PLAIN, (["Alg/BATCH_END"], Event.BATCH_END, True, True), *PLAIN]


def test_unregistering_everything_removes_the_callbacks_until_something_changes():
    engine = make()
    for plugin in engine.host.get_plugins():
        engine.host.unregister(plugin)
    engine.run_event("batch_end")
    engine.state.algorithms.clear()
    engine.run_event("batch_end")
    engine.close()
    assert calls == PLAIN


def test_monitoring_sees_every_event_as_it_happens_until_it_is_undone_and_may_start_again():
    engine = make()

    def monitor():
        return engine.host.add_hookcall_monitoring(
            lambda name, implementations, arguments: calls.append(f"before {name}"),
            lambda outcome, name, implementations, arguments: calls.append(f"after {name}"),
        )

    for event, happens in (("fit_start", []), ("batch_end", PLAIN), ("init", [*PLAIN[:0:-1], "algorithm"])):
        undo = monitor()
        engine.run_event(event)
        undo()
        undo()
        assert calls == [f"before {event}", *happens, f"after {event}"]
        engine.run_event(event)
        assert calls[len(happens) + 2 :] == happens
        calls.clear()


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
