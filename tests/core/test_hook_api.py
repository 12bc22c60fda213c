"""The hook API: its number, what number 1 promises, and how an event or an argument of it is deprecated."""

import inspect
import subprocess
import sys
import textwrap
import types
import warnings
from operator import attrgetter

import pytest

import engine_core
from engine_core import (
    Algorithm,
    AlgorithmMetadata,
    Callback,
    Engine,
    Event,
    Logger,
    LoggerDestination,
    PassMetadata,
    State,
    Trace,
    hookimpl,
    hookspecs,
    metadata,
    passes,
)
from engine_core.engine.host import ARGUMENTS
from engine_core.errors import MetadataError, PluginError
from engine_core.event import HOOK_API
from engine_core.registry import Registry
from engine_core.registry.installed import KINDS

from .parts import Quiet, source_of


def refusal_of(model, **fields):
    """Return what is said of metadata that has to be refused."""
    with pytest.raises(MetadataError) as refusal:
        model(**fields)
    return str(refusal.value).removeprefix(f"{model.__name__}: ")


def test_a_plugin_that_does_not_say_is_made_for_1_whatever_the_newest_is():
    program = """
        from engine_core import event

        event.HOOK_API = 3  # before anything has taken it over

        from engine_core import AlgorithmMetadata, PassMetadata

        print(AlgorithmMetadata().hook_api, PassMetadata().hook_api, AlgorithmMetadata(hook_api=3).hook_api)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1 1 3\n"


def test_older_apis_that_are_still_served_are_accepted_and_others_say_update_the_plugin(monkeypatch):
    monkeypatch.setattr(metadata, "HOOK_API", 3)
    monkeypatch.setattr(metadata, "OLDEST_HOOK_API", 2)
    assert [AlgorithmMetadata(hook_api=number).hook_api for number in (2, 3)] == [2, 3]
    for fields in ({"hook_api": 1}, {"name": "old"}):
        assert refusal_of(AlgorithmMetadata, **fields) == (
            "hook_api: made for hook API 1, but this engine-core has 3 and accepts none before 2: "
            "update the plugin, or install an older engine-core"
        )


def test_a_number_is_an_integer_and_one_that_is_too_high_says_update_engine_core():
    assert (HOOK_API, metadata.OLDEST_HOOK_API) == (1, 1)
    for model in (AlgorithmMetadata, PassMetadata):
        expected = "hook_api: made for hook API 2, but this engine-core has 1: update engine-core"
        assert refusal_of(model, hook_api=2) == expected
    for number in ("1", 1.0, True, None):
        expected = f"hook_api: Input should be a valid integer, not {number!r}"
        assert refusal_of(PassMetadata, hook_api=number) == expected


def test_a_newer_plugin_is_reported_as_newer_and_its_new_events_and_fields_not_as_misspelt(install):
    text = source_of("Late", events=("after_everything",), speed="high", hook_api=2)
    install("late-plugin", {"algorithms": {"late": "late_module:Late"}}, {"late_module": text}, version="2.1")
    said = "AlgorithmMetadata: hook_api: made for hook API 2, but this engine-core has 1: update engine-core"
    with pytest.raises(PluginError, match=f"'late' of late-plugin 2.1 can't be loaded from 'late_module:Late': {said}"):
        Registry.scan().load("algorithms", "late")


EVENTS = """
init after_load fit_start epoch_start before_dataloader after_dataloader batch_start before_train_batch before_forward
after_forward before_loss after_loss before_backward after_backward after_train_batch batch_end batch_checkpoint
epoch_end epoch_checkpoint fit_end eval_start eval_batch_start eval_before_forward eval_after_forward eval_batch_end
eval_end
"""
PAIRS = """
fit_start-fit_end epoch_start-epoch_end before_dataloader-after_dataloader batch_start-batch_end
before_train_batch-after_train_batch before_forward-after_forward before_loss-after_loss before_backward-after_backward
eval_start-eval_end eval_batch_start-eval_batch_end eval_before_forward-eval_after_forward
"""
STATE = """
model optimizers schedulers train_dataloader evaluators algorithms callbacks loss_fn max_duration device precision seed
run_name profiler rank world_size timestamp eval_timestamp dataloader dataloader_label dataloader_len stop_requested
batch outputs loss metrics
"""
MOVED = {
    "awaits_batch": "between_batches",
    "closure": "loop.closure",
    "go_back": "loop.go_back",
    "interrupted_by": "loop.interrupted_by",
    "offers": "loop.offers",
    "pause_agreed": "loop.pause_agreed",
    "pause_requested": "loop.pause_requested",
    "schedulers_rest": "loop.schedulers_paused",
    "skip_requested": "loop.skip_requested",
    "snapshot": "loop.snapshot",
    "stop_reason": "loop.stop_reason",
    "stop_requested": "loop.stop_requested",
}
WRITABLE = ("batch", "outputs", "loss", "model", "optimizers", "schedulers", "metrics", "loss_fn")
NAMES = """
Algorithm AlgorithmMetadata Callback Engine Event Logger LoggerDestination PassMetadata State Time TimeUnit Timestamp
Trace Traces algorithm_pass hookimpl passes
"""
METHODS = [
    (Algorithm.match, "self event state"),
    (Algorithm.apply, "self event state logger"),
    (Algorithm.validate, "self state"),
    (Algorithm.load_state_dict, "self state"),
    (Callback.close, "self state logger"),
    (Callback.load_state_dict, "self state"),
    *((method, "self") for method in (Algorithm.state_dict, Callback.state_dict, Callback.post_close)),
    (LoggerDestination.log_metrics, "self metrics step"),
    (LoggerDestination.log_hyperparameters, "self hyperparameters"),
    (LoggerDestination.log_traces, "self traces"),
    (Logger.log_metrics, "self metrics step"),
    (Logger.log_hyperparameters, "self hyperparameters"),
    (State.batch_get_item, "self key"),
    (State.batch_set_item, "self key value"),
    (State.derive_seed, "self name"),
    *((method, "self") for method in (State.get_elapsed_duration, State.stop_training, Engine.restoring)),
    (Engine.run_event, "self event"),
    (passes.sort_to_front, "list_to_sort cls"),
    (passes.sort_to_back, "list_to_sort cls"),
]


def test_its_events_are_there_in_this_order_and_its_pairs_are_pairs():
    promised = EVENTS.split()
    assert [event.value for event in Event if event.value in promised] == promised
    halves = [pair.split("-") for pair in PAIRS.split()]
    assert [[first, Event(first).partner] for first, _ in halves] == halves


def test_its_hooks_have_these_arguments_its_traces_these_fields_and_its_entry_points_these_groups():
    assert {"event", "state", "logger", "traces"} <= set(ARGUMENTS)
    assert Trace._fields[:5] == ("name", "event", "exit_code", "order", "run")
    assert {"algorithms", "passes", "callbacks"} <= set(KINDS)


def test_its_names_and_fields_of_state_are_there_and_these_may_be_declared_as_written():
    assert [name for name in NAMES.split() if getattr(engine_core, name) is None] == []
    assert [name for name in STATE.split() if not hasattr(State(), name)] == []
    assert AlgorithmMetadata(writes=WRITABLE).writes == WRITABLE


def test_its_fields_of_state_that_have_moved_are_read_set_and_given_under_their_names():
    for name, now in MOVED.items():
        given, told, plain = object(), object(), State()
        state = State(**{name: given}, seed=3)
        assert (attrgetter(now)(state), state.seed) == (given, 3)
        setattr(state, name, told)
        assert (getattr(state, name), attrgetter(now)(state)) == (told, told)
        assert getattr(plain, name) is attrgetter(now)(State())


def test_its_metadata_has_these_fields_and_defaults_and_new_ones_may_be_left_out():
    both = {"name": None, "description": "", "events": None, "before": (), "after": (), "hook_api": 1}
    lists = ("tags", "around", "within", "requires", "conflicts")
    for model, promised in [
        (AlgorithmMetadata, {**both, **dict.fromkeys(lists, ()), "writes": None}),
        (PassMetadata, {**both, "stage": "placement", "pure": True, "changes_members": False}),
    ]:
        assert {name: value for name, value in model().model_dump().items() if name in promised} == promised


def test_its_methods_take_these_arguments_and_need_no_others():
    for method, promised in METHODS:
        parameters = list(inspect.signature(method).parameters.values())
        names = promised.split()
        assert [p.name for p in parameters][: len(names)] == names
        assert [p.name for p in parameters[len(names) :] if p.default is p.empty] == []


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


class NewHooks:
    @hookimpl
    def batch_start(self, traces): ...


def test_each_plugin_that_listens_to_a_deprecated_event_is_named_once_by_its_class_or_distribution(deprecate, install):
    deprecate(warn_on_impl=EVENT)
    hooks = "from engine_core import hookimpl\n\n@hookimpl\ndef batch_end(): ...\n"
    install("any-plugin", modules={"old_hooks": hooks})
    old = "class Old:\n    def batch_end(self, state, logger): ...\n"
    install("old-plugin", {"callbacks": {"old": "old_module:Old"}}, {"old_module": old}, version="0.3")
    assert warned_of(
        algorithms=[Quiet(), OldAlgorithm(), OldAlgorithm()],
        callbacks=[pytest.importorskip("old_module").Old(), OldCallback(), OldCallback()],
        destinations=[OldDestination()],
        plugins=[NewHooks(), OldHooks(), OldHooks(), pytest.importorskip("old_hooks")],
    ) == [
        f"OldAlgorithm (module {__name__}) uses {OLD}",
        f"Old (old-plugin 0.3) uses {OLD}",
        *(f"{name} (module {__name__}) uses {OLD}" for name in ("OldCallback", "OldDestination", "OldHooks")),
        f"module old_hooks uses {OLD}",
    ]


def test_a_hook_implementation_with_a_deprecated_argument_is_named(deprecate):
    deprecate(warn_on_impl_args={"traces": ARGUMENT})
    assert warned_of(plugins=[OldHooks(), NewHooks()]) == [
        f"OldHooks (module {__name__}) uses the argument 'traces' of 'batch_end', which is deprecated: {ARGUMENT}"
    ]


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
