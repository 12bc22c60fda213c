"""What hook API 1 promises to plugins is there. The lists may grow; what is in them may neither go nor change."""

import inspect
from operator import attrgetter

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
    passes,
)
from engine_core.engine.host import ARGUMENTS
from engine_core.registry.installed import KINDS

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


def test_its_names_and_fields_of_state_are_there():
    assert [name for name in NAMES.split() if getattr(engine_core, name) is None] == []
    assert [name for name in STATE.split() if not hasattr(State(), name)] == []


def test_its_fields_of_state_that_have_moved_are_read_set_and_given_under_their_names():
    for name, now in MOVED.items():
        given, told, plain = object(), object(), State()
        state = State(**{name: given}, seed=3)
        assert (attrgetter(now)(state), state.seed) == (given, 3)
        setattr(state, name, told)
        assert (getattr(state, name), attrgetter(now)(state)) == (told, told)
        assert getattr(plain, name) is attrgetter(now)(State())


def test_its_fields_of_state_may_be_declared_as_written():
    assert AlgorithmMetadata(writes=WRITABLE).writes == WRITABLE


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
