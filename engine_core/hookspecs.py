"""One hook specification per Event: the reference of what fires when. Specifications only.

Every hook receives `(event, state, logger, traces)`; an implementation names the ones it wants. A plain implementation
runs after the event's algorithms, and `traces` shows what they did (at INIT it runs before them).
An implementation with `wrapper=True` surrounds algorithms, callbacks and logger destinations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

from .event import Event

if TYPE_CHECKING:
    from .logger import Logger, Traces
    from .state import State

__all__ = ["PROJECT", "hookimpl"]

PROJECT = "engine_core"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a method of a pluggy plugin as the implementation of the event it is named after."""


@hookspec
def init(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire once, when the trainer is made: the model is still as the user passed it, on its own device.

    This is the moment for surgery on `state.model`. There is no optimizer yet, unless the user made one.
    """


@hookspec
def after_load(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire after a checkpoint was loaded, and only then; what it restored may be changed.

    Optimizers and parameter groups that the saved run had added in training may be added here; their states are loaded
    afterwards.
    """


@hookspec
def fit_start(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when `fit` begins, with the model on its device, optimizers made, loader known; weights may be changed."""


@hookspec
def epoch_start(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire before the first batch of an epoch.

    A `fit` that continues an epoch fires it only if an exception has undone what ran here. The loader is asked for
    an iterator after this event, so its sampler or dataset may be changed.
    """


@hookspec
def before_dataloader(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire before the loader is asked for a batch, even if it then turns out to be exhausted.

    `state.batch` is still the previous batch; changing it has no effect.
    """


@hookspec
def after_dataloader(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when `state.batch` holds a new, whole batch on the device: the moment to prune or augment it."""


@hookspec
def batch_start(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when work on a batch begins; `state.batch` is the whole batch and may be changed."""


@hookspec
def before_train_batch(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire with gradients cleared, before the split into microbatches: the last chance to change the whole batch."""


@hookspec
def before_forward(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire before the forward pass of each microbatch; `state.batch` is the microbatch until AFTER_BACKWARD.

    Changing it changes what the model and the loss receive.
    """


@hookspec
def after_forward(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when `state.outputs` holds what the model returned; it may be replaced."""


@hookspec
def before_loss(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire before the loss is computed from `state.outputs` and `state.batch`; both may be changed."""


@hookspec
def after_loss(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when `state.loss` is what the loss function returned, a scalar, tuple, dict or Loss; it may be replaced."""


@hookspec
def before_backward(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when `state.loss` is one scalar, the mean loss of the batch; it may be replaced.

    With microbatches or several processes it is the part's sum divided by `state.loss_weight`, the same for all parts.
    """


@hookspec
def after_backward(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when the gradients of the microbatch have been accumulated, still scaled under `amp_fp16`.

    With microbatches or several processes they are divided by `state.loss_weight`, not by what the loss counts.

    They may be changed, but AFTER_TRAIN_BATCH, where they are complete, is the better place.
    """


@hookspec
def after_train_batch(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire after all microbatches, with gradients unscaled and clipped, before the optimizer's step.

    `state.batch` is the whole batch again and `state.loss` its loss. This is the last moment to change the gradients,
    or to skip the step with `state.skip_step()`.
    """


@hookspec
def batch_end(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire after the optimizer's step, when the clock has advanced and the per-batch schedulers have stepped.

    Weights may be changed or averaged.
    """


@hookspec
def batch_checkpoint(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire after BATCH_END and the evaluation that may follow it: the moment to save, not to change anything.

    It fires once more at the same position if the loader fails to return the next batch.
    """


@hookspec
def epoch_end(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when the loader is exhausted and the clock is at the start of the next epoch.

    It does not fire if training stops in the middle of an epoch. Weights may be changed.
    """


@hookspec
def epoch_checkpoint(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire after EPOCH_END and the evaluation that may follow it: the moment to save, not to change anything."""


@hookspec
def fit_end(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire just before `fit` returns, but not when an exception ends it: the last moment to change weights."""


@hookspec
def eval_start(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire before the first batch of the evaluation loader `state.dataloader_label`, with the model in eval mode.

    Swap weights in here, and out again at EVAL_END.
    """


@hookspec
def eval_batch_start(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when `state.batch` holds a new batch of the evaluation loader; it may be changed."""


@hookspec
def eval_before_forward(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire before the forward pass of an evaluation batch: the last moment to change it."""


@hookspec
def eval_after_forward(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when `state.outputs` holds the outputs of an evaluation batch; replacing them changes loss and metrics."""


@hookspec
def eval_batch_end(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when the metrics have seen the evaluation batch; `state.loss` is its loss. Change nothing here."""


@hookspec
def eval_end(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when `state.metrics` holds the results of the evaluation loader, before they are logged.

    They are logged as computed, but `eval` returns `state.metrics`, which a callback may change here. Swap out here
    what was swapped in at EVAL_START.
    """
