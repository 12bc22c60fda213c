"""What each algorithm and callback needs of a loop, and whom the loops of the core refuse."""

import pytest

from engine_core import Engine, Event, Logger, State
from engine_core.callback import needs_of
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.callbacks.loss_guard import LossGuard
from engine_core.callbacks.stoppers import EarlyStopper, ThresholdStopper
from engine_core.callbacks.time_limit import TimeLimit
from engine_core.errors import UnsupportedError
from engine_core.needs import EVERYTHING, FSDP_OFFERS
from engine_core.registry import Registry

from .conftest import NAMES, make_default

STEP = "before_train_batch before_forward after_forward"
DECLARED = {  # with default arguments: the needs and the events
    "blurpool": ("surgery", "init"),
    "channels_last": ("whole_weights surgery", "init fit_start fit_end"),
    "curriculum": ("duration epoch_order", "epoch_start"),
    "cutmix": ("", f"{STEP} before_loss after_loss after_train_batch"),
    "cutout": ("", "after_dataloader"),
    "alternating_flip": ("", "after_dataloader"),
    "col_out": ("", "after_dataloader"),
    "rand_augment": ("", "after_dataloader"),
    "random_shift": ("", "after_dataloader"),
    "test_time_augmentation": ("", "eval_after_forward"),
    "ema": ("", "fit_start batch_end epoch_end eval_start eval_end"),
    "ema that starts late": ("duration", "fit_start batch_end epoch_end eval_start eval_end"),
    "fused_layernorm": ("surgery", "init"),
    "gated_linear_units": ("surgery", "init"),
    "gradient_penalty": ("create_graph whole_batch", "before_forward after_forward before_backward"),
    "info_batch": (
        "duration whole_batch row_loss epoch_order",
        "init after_load fit_start epoch_start before_train_batch after_loss batch_end",
    ),
    "activation_checkpointing": ("surgery", "init"),
    "compile": ("surgery", "init fit_start batch_end eval_end"),
    "gradient_clipping": ("whole_weights", "after_train_batch"),
    "layer_stacking": ("duration surgery late_surgery", "init batch_start fit_end"),
    "label_smoothing": ("", "before_loss after_loss"),
    "lawa": ("duration", "fit_start batch_end epoch_end eval_start eval_end"),
    "layer_freezing": ("freezing duration", "batch_start batch_checkpoint epoch_checkpoint"),
    "logit_soft_cap": ("surgery", "init"),
    "lookahead": ("", "fit_start batch_end"),
    "mixup": ("", f"{STEP} before_loss after_loss after_train_batch"),
    "ngram_embedding": ("surgery", "init"),
    "progressive_resizing": ("duration", "after_dataloader"),
    "sam": ("whole_weights closure", "after_train_batch"),
    "selective_backprop": ("duration row_loss global_batch", "init fit_start after_dataloader fit_end"),
    "sequence_warmup": ("duration", "after_dataloader"),
    "sequence_warmup in tokens": ("", "after_dataloader"),
    "squeeze_excite": ("surgery", "init"),
    "stochastic_depth": ("surgery", "init"),
    "stochastic_depth of batches": ("partial_forward surgery", "init"),
    "stochastic_depth that warms up": ("duration surgery", "init"),
    "swa": ("duration", "fit_start batch_end epoch_end eval_start eval_end fit_end"),
    "token_shift": ("surgery", "init"),
    "whitened_stem": ("surgery first_batch", "init"),
    "zclip": ("whole_weights", "after_train_batch"),
}
REFUSED_IN_FSDP = {
    "channels_last": "whole_weights",
    "gradient_clipping": "whole_weights",
    "gradient_penalty": "create_graph",
    "layer_freezing": "freezing",
    "layer_stacking": "late_surgery",
    "sam": "whole_weights",
    "stochastic_depth of batches": "partial_forward",
    "zclip": "whole_weights",
}
CALLBACKS = {
    "checkpoint_saver": (CheckpointSaver, {"folder": "checkpoints"}, ("snapshot",)),
    "early_stopper": (EarlyStopper, {}, ("stop",)),
    "loss_guard": (LossGuard, {}, ("skip_step",)),
    "loss_guard that goes back": (LossGuard, {"policy": "rollback"}, ("skip_step", "go_back")),
    **{f"loss_guard: {policy}": (LossGuard, {"policy": policy}, ()) for policy in ("stop", "warn")},
    "threshold_stopper": (ThresholdStopper, {"metric": "eval/accuracy", "threshold": 0.9}, ("stop",)),
    "time_limit": (TimeLimit, {"limit": "1h"}, ("stop",)),
}


def made():
    algorithms = {name: make_default(name) for name in NAMES}
    depth, ema = type(algorithms["stochastic_depth"]), type(algorithms["ema"])
    warmup = type(algorithms["sequence_warmup"])
    return {
        **algorithms,
        "ema that starts late": ema(ema_start="0.5dur"),
        "sequence_warmup in tokens": warmup("1000tok"),
        "stochastic_depth of batches": depth(drop_per="batch"),
        "stochastic_depth that warms up": depth(drop_warmup="0.5dur"),
    }


def refused(**listed):
    """Return which needs an engine with these misses."""
    try:
        Engine(State(**listed), Logger()).close()
    except UnsupportedError as error:
        return str(error).partition(": no ")[2].partition(":")[0]
    return ""


def test_each_needs_these_and_has_these_events():
    assert len(NAMES) == 36
    declared = {name: (algorithm.metadata.needs, algorithm.metadata.events) for name, algorithm in made().items()}
    assert declared == {
        name: (tuple(needs.split()), tuple(map(Event, events.split()))) for name, (needs, events) in DECLARED.items()
    }


def test_fsdp_refuses_exactly_these_of_the_18():
    missing = {name: refused(algorithms=[algorithm], offers=FSDP_OFFERS) for name, algorithm in made().items()}
    assert {name: needs for name, needs in missing.items() if needs} == REFUSED_IN_FSDP


@pytest.mark.parametrize("name", CALLBACKS)
def test_a_callback_needs_these_and_a_loop_that_lacks_them_refuses_it(name):
    cls, arguments, needs = CALLBACKS[name]
    callback = cls(**arguments)
    bare = EVERYTHING.without(*EVERYTHING.gives, why="none here")
    assert (needs_of(callback), refused(callbacks=[callback], offers=bare)) == (needs, ", ".join(needs))


def test_the_other_callbacks_of_the_core_need_nothing():
    ours = ("engine-core", "engine-core-author")
    records = [r for r in Registry.scan().records if r.kind == "callbacks" and r.distribution in ours]
    needing = {record.name for record in records if needs_of(Registry.scan().load("callbacks", record.name))}
    assert needing == {"checkpoint_saver", "early_stopper", "threshold_stopper", "time_limit"}
