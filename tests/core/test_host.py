"""The pluggy host: what is called, when, and in which order."""

import pluggy
import pytest

from engine_core import (
    Algorithm,
    AlgorithmMetadata,
    Callback,
    Engine,
    Event,
    Logger,
    LoggerDestination,
    State,
    hookimpl,
)

calls: list[str] = []


@pytest.fixture(autouse=True)
def forget():
    calls.clear()


class Alg(Algorithm):
    metadata = AlgorithmMetadata(events=("init", "batch_end"))

    def match(self, event, state):
        return True

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

    @hookimpl
    def init(self):
        calls.append(self.name)


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


def make():
    return Engine(State(algorithms=[Alg()], callbacks=[Cb()]), Logger([Dest()]))


def test_the_host_is_pluggys_manager_with_a_spec_for_each_event():
    host = make().host
    assert isinstance(host, pluggy.PluginManager)
    assert [event for event in Event if not getattr(host.hook, event.value).spec] == []


def test_an_implementation_gets_the_arguments_that_it_names():
    class Curious:
        @hookimpl
        def batch_end(self, traces, event, logger, state):
            calls.append((list(traces), event, logger is engine.logger, state is engine.state))

    engine = make()
    engine.host.register(Curious())
    engine.run_event("batch_end")
    assert calls == ["algorithm", "callback", "destination", (["Alg/BATCH_END"], Event.BATCH_END, True, True)]


def test_a_wrapper_surrounds_algorithms_callbacks_destinations_and_implementations():
    engine = make()
    engine.host.register(Plain())
    engine.host.register(Wrapper())
    engine.run_event("batch_end")
    assert calls == ["wrapper in", "algorithm", "callback", "destination", "plain", "wrapper out"]


def test_at_init_it_is_the_other_way_round():
    engine = make()
    engine.host.register(Plain())
    engine.host.register(Wrapper())
    engine.run_event("init")
    assert calls == ["wrapper in", "destination", "callback", "plain", "algorithm", "wrapper out"]


def test_the_later_of_two_wrappers_is_the_outer_one():
    engine = make()
    engine.host.register(Wrapper("first"))
    engine.host.register(Wrapper("second"))
    engine.run_event("batch_end")
    assert calls[:2] + calls[-2:] == ["second in", "first in", "first out", "second out"]


def test_the_algorithms_are_innermost_even_to_a_trylast_wrapper_that_comes_later():
    engine = make()
    engine.host.register(Wrapper())
    engine.host.register(Inner())
    engine.run_event("batch_end")
    assert calls == [
        "wrapper in",
        "inner in",
        "algorithm",
        "callback",
        "destination",
        "inner out",
        "wrapper out",
    ]


def test_a_tryfirst_implementation_runs_before_callbacks_but_after_algorithms():
    engine = make()
    engine.host.register(Early())
    engine.run_event("batch_end")
    assert calls == ["algorithm", "early", "callback", "destination"]


def test_the_order_is_the_same_after_the_algorithms_were_edited():
    engine = make()
    for plugin in (Plain("one"), Plain("two"), Wrapper(), Inner(), Early()):
        engine.host.register(plugin)
    engine.run_event("batch_end")
    before = calls.copy()
    calls.clear()
    engine.state.algorithms.append(Alg())
    engine.state.algorithms.pop()
    engine.run_event("batch_end")
    assert calls == before
    assert before.index("two") < before.index("one")


def test_plugins_come_and_go_between_events():
    engine = make()
    plugin = Plain()
    for step in (lambda: None, lambda: engine.host.register(plugin), lambda: engine.host.unregister(plugin)):
        step()
        engine.run_event("batch_end")
        calls.append("|")
    plain = ["algorithm", "callback", "destination"]
    assert calls == [*plain, "|", *plain, "plain", "|", *plain, "|"]


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


def test_a_plugin_is_found_and_unregistered_by_its_name():
    engine = make()
    plugin = Plain()
    assert engine.host.register(plugin, name="mine") == "mine"
    assert engine.host.unregister(name="mine") is plugin
    engine.run_event("batch_end")
    assert calls == ["algorithm", "callback", "destination"]


def test_unregistering_everything_removes_the_callbacks_until_something_changes():
    engine = make()
    for plugin in engine.host.get_plugins():
        engine.host.unregister(plugin)
    engine.run_event("batch_end")
    engine.state.algorithms.clear()
    engine.run_event("batch_end")
    engine.close()
    assert calls == ["algorithm", "callback", "destination"]


def test_a_module_may_be_a_plugin(install):
    text = "from engine_core import hookimpl\nseen = []\n\n@hookimpl\ndef batch_end(event):\n    seen.append(event)\n"
    install("any-plugin", modules={"hook_module": text})
    module = pytest.importorskip("hook_module")
    engine = make()
    engine.host.register(module)
    engine.run_event("batch_end")
    assert module.seen == [Event.BATCH_END]


def test_what_implementations_return_does_not_matter():
    class Talking:
        @hookimpl
        def batch_end(self):
            return "listen to me"

    engine = make()
    engine.host.register(Talking())
    assert list(engine.run_event("batch_end")) == ["Alg/BATCH_END"]


@pytest.mark.parametrize("event", [Event.FIT_START, Event.BATCH_END, Event.INIT], ids=["none", "all", "init"])
def test_monitoring_sees_every_event(event):
    engine = make()
    undo = engine.host.add_hookcall_monitoring(
        lambda name, implementations, arguments: calls.append(f"before {name}"),
        lambda outcome, name, implementations, arguments: calls.append(f"after {name}"),
    )
    engine.run_event(event)
    undo()
    engine.run_event(event)
    seen = [call for call in calls if " " in call]
    assert seen == [f"before {event}", f"after {event}"]


def test_monitoring_may_be_stopped_twice_and_started_again():
    engine = Engine(State(), Logger())

    def start():
        return engine.host.add_hookcall_monitoring(lambda *seen: calls.append(seen[0]), lambda *seen: None)

    undo = start()
    undo()
    undo()
    start()
    engine.run_event("fit_end")
    assert calls == ["fit_end"]


def test_monitoring_sees_an_event_that_only_algorithms_listen_to_as_it_happens():
    engine = Engine(State(algorithms=[Alg()]), Logger())
    engine.host.add_hookcall_monitoring(
        lambda name, implementations, arguments: calls.append("before"),
        lambda outcome, name, implementations, arguments: calls.append("after"),
    )
    engine.run_event("batch_end")
    assert calls == ["before", "algorithm", "after"]


def test_pluggys_tracing_works():
    engine = Engine(State(), Logger())
    lines = []
    engine.host.trace.root.setwriter(lines.append)
    undo = engine.host.enable_tracing()
    engine.run_event("fit_end")
    undo()
    assert [line.strip().split(" ")[0] for line in lines[:1]] == ["fit_end"]
