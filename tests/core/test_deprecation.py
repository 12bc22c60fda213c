"""How an event or an argument is deprecated: each plugin that uses it is named once. No event is at present."""

import types
import warnings

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
    hookspecs,
)

from .parts import Quiet

EVENT = FutureWarning("it goes with hook API 2, use 'epoch_end' instead")
ARGUMENT = FutureWarning("it goes with hook API 2")
OLD = "the event 'batch_end', which is deprecated: it goes with hook API 2, use 'epoch_end' instead"


@pytest.fixture
def deprecate(monkeypatch):
    """Return a function that gives engines specifications where `batch_end` is marked as given."""

    def deprecate(**why):
        def batch_end(event, state, logger, traces): ...

        specs = types.ModuleType("specs")
        specs.__dict__.update(vars(hookspecs), batch_end=hookspecs.hookspec(**why)(batch_end))
        monkeypatch.setattr("engine_core.engine.host.hookspecs", specs)

    return deprecate


def warned_of(*, algorithms=(), callbacks=(), destinations=(), plugins=()):
    """Return the deprecations that two rounds with these participants warn of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine = Engine(State(algorithms=list(algorithms), callbacks=list(callbacks)), Logger(destinations))
        for plugin in plugins:
            engine.host.register(plugin)
        for event in ("batch_end", "epoch_end", "batch_end"):
            engine.run_event(event)
            engine.state.algorithms.append(Quiet())
    assert {type(warning.message) for warning in caught} <= {FutureWarning}
    return [str(warning.message) for warning in caught]


class OldAlgorithm(Quiet):
    metadata = AlgorithmMetadata(events=("epoch_end", "batch_end"))


class OldCallback(Callback):
    def batch_end(self, state, logger): ...

    def epoch_end(self, state, logger): ...


class OldDestination(LoggerDestination):
    def batch_end(self, state, logger): ...


class OldHooks:
    @hookimpl
    def batch_end(self, event, traces): ...

    @hookimpl(specname="batch_end", trylast=True)
    def once_more(self, traces): ...


def test_nothing_is_deprecated_now():
    specs = [getattr(hookspecs, event.value).engine_core_spec for event in Event]
    assert [spec for spec in specs if spec["warn_on_impl"] or spec["warn_on_impl_args"]] == []
    assert warned_of(algorithms=[OldAlgorithm()], callbacks=[OldCallback()], plugins=[OldHooks()]) == []


class New(Callback):
    def epoch_end(self, state, logger): ...


class NewHooks:
    @hookimpl
    def batch_start(self, traces): ...


def test_each_plugin_that_listens_to_a_deprecated_event_is_named_once_by_its_class(deprecate, install):
    deprecate(warn_on_impl=EVENT)
    install("any-plugin", modules={"old_hooks": "from engine_core import hookimpl\n\n@hookimpl\ndef batch_end(): ..."})
    assert warned_of(
        algorithms=[Quiet(), OldAlgorithm(), OldAlgorithm()],
        callbacks=[New(), OldCallback(), OldCallback()],
        destinations=[OldDestination()],
        plugins=[OldHooks(), OldHooks(), pytest.importorskip("old_hooks")],
    ) == [
        *(f"{name} (module {__name__}) uses {OLD}" for name in ("OldAlgorithm", "OldCallback", "OldDestination")),
        f"OldHooks (module {__name__}) uses {OLD}",
        f"module old_hooks uses {OLD}",
    ]


def test_a_hook_implementation_with_a_deprecated_argument_is_named(deprecate):
    deprecate(warn_on_impl_args={"traces": ARGUMENT})
    assert warned_of(plugins=[OldHooks(), NewHooks()]) == [
        f"OldHooks (module {__name__}) uses the argument 'traces' of 'batch_end', which is deprecated: {ARGUMENT}"
    ]


def test_the_distribution_is_named(deprecate, install):
    deprecate(warn_on_impl=EVENT)
    text = "class Old:\n    def batch_end(self, state, logger):\n        pass\n"
    install("old-plugin", {"callbacks": {"old": "old_module:Old"}}, {"old_module": text}, version="0.3")
    old = pytest.importorskip("old_module").Old()
    assert warned_of(callbacks=[old]) == [f"Old (old-plugin 0.3) uses {OLD}"]


def test_the_warning_points_to_the_line_that_added_the_plugin(deprecate):
    deprecate(warn_on_impl=EVENT)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine = Engine(State(callbacks=[OldCallback()]), Logger())
        engine.host.register(OldHooks())
    assert [warning.filename for warning in caught] == [__file__] * 2


def test_as_an_error_it_keeps_the_plugin_out_and_is_not_forgotten(deprecate):
    deprecate(warn_on_impl=EVENT)
    engine = Engine(State(), Logger())
    plugin = OldHooks()
    for _ in range(2):
        with pytest.raises(FutureWarning, match="OldHooks"):
            engine.host.register(plugin)
    assert not engine.host.is_registered(plugin)
    engine.state.callbacks.append(OldCallback())
    for _ in range(2):
        with pytest.raises(FutureWarning, match="OldCallback"):
            engine.run_event("batch_end")
