"""The pluggy host: what is called, when, and in which order."""

import pluggy
import pytest

from engine_core import (
    AlgorithmMetadata,
    Callback,
    Engine,
    Event,
    Logger,
    LoggerDestination,
    State,
    hookimpl,
)

from .parts import Always

calls: list[str] = []
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


class Wrapper:
    def __init__(self, name="wrapper"):
        self.name = name

    @hookimpl(wrapper=True)
    def batch_end(self):
        calls.append(f"{self.name} in")
        result = yield
        calls.append(f"{self.name} out")
        return result

    @hookimpl(wrapper=True)
    def init(self):
        return (yield from self.batch_end())


class Inner:
    @hookimpl(wrapper=True, trylast=True)
    def batch_end(self):
        calls.append("inner in")
        result = yield
        calls.append("inner out")
        return result


def make(*plugins):
    engine = Engine(State(algorithms=[Alg()], callbacks=[Cb()]), Logger([Dest()]))
    for plugin in plugins:
        engine.host.register(plugin)
    return engine


def test_the_host_is_pluggys_manager_with_a_spec_for_each_event():
    host = make().host
    assert isinstance(host, pluggy.PluginManager)
    assert [event for event in Event if not getattr(host.hook, event.value).spec] == []


def test_an_implementation_gets_the_arguments_that_it_names():
    class Curious:
        @hookimpl
        def batch_end(self, traces, event, logger, state):
            calls.append((list(traces), event, logger is engine.logger, state is engine.state))

    engine = make(Curious())
    engine.run_event("batch_end")
    assert calls == [*PLAIN, (["Alg/BATCH_END"], Event.BATCH_END, True, True)]


@pytest.mark.parametrize(
    ("plugins", "event", "order"),
    [
        ([Plain(), Wrapper()], "batch_end", ["wrapper in", *PLAIN, "plain", "wrapper out"]),
        ([Plain(), Wrapper()], "init", ["wrapper in", *PLAIN[:0:-1], "plain", "algorithm", "wrapper out"]),
        ([Wrapper("a"), Wrapper("b")], "batch_end", ["b in", "a in", *PLAIN, "a out", "b out"]),
        ([Wrapper(), Inner()], "batch_end", ["wrapper in", "inner in", *PLAIN, "inner out", "wrapper out"]),
        ([Early()], "batch_end", ["algorithm", "early", "callback", "destination"]),
    ],
    ids=["wrapper", "init", "two wrappers", "trylast wrapper", "tryfirst"],
)
def test_wrappers_surround_all_and_of_the_rest_algorithms_come_first_and_at_init_last(plugins, event, order):
    make(*plugins).run_event(event)
    assert calls == order


def test_the_order_is_the_same_after_the_algorithms_were_edited():
    engine = make(Plain("one"), Plain("two"), Wrapper(), Inner(), Early())
    engine.run_event("batch_end")
    before = calls.copy()
    calls.clear()
    engine.state.algorithms.append(Alg())
    engine.state.algorithms.pop()
    engine.run_event("batch_end")
    assert calls == before
    assert before.index("two") < before.index("one")


def test_plugins_come_and_go_between_events():
    engine, plugin = make(), Plain()
    assert engine.host.register(plugin, name="mine") == "mine"
    engine.run_event("batch_end")
    assert engine.host.unregister(name="mine") is plugin
    engine.run_event("batch_end")
    assert calls == [*PLAIN, "plain", *PLAIN]


def test_a_plugin_may_come_while_an_event_runs_and_hears_the_next_one():
    class Inviting(Callback):
        def batch_end(self, state, logger):
            if not engine.host.has_plugin("guest"):
                engine.host.register(Plain("guest"), name="guest")

    engine = Engine(State(callbacks=[Inviting()]), Logger())
    engine.run_event("batch_end")
    assert calls == []
    engine.run_event("batch_end")
    assert calls == ["guest"]


def test_unregistering_everything_removes_the_callbacks_until_something_changes():
    engine = make()
    for plugin in engine.host.get_plugins():
        engine.host.unregister(plugin)
    engine.run_event("batch_end")
    engine.state.algorithms.clear()
    engine.run_event("batch_end")
    engine.close()
    assert calls == PLAIN


def test_a_module_may_be_a_plugin(install):
    text = "from engine_core import hookimpl\nseen = []\n\n@hookimpl\ndef batch_end(event):\n    seen.append(event)\n"
    install("any-plugin", modules={"hook_module": text})
    module = pytest.importorskip("hook_module")
    make(module).run_event("batch_end")
    assert module.seen == [Event.BATCH_END]


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


def test_pluggys_tracing_works():
    engine = Engine(State(), Logger())
    lines = []
    engine.host.trace.root.setwriter(lines.append)
    undo = engine.host.enable_tracing()
    engine.run_event("fit_end")
    undo()
    assert [line.strip().split(" ")[0] for line in lines[:1]] == ["fit_end"]
