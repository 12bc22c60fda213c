"""One hook specification per Event: the reference page of what fires when. Specifications only.

Every hook gets `(event, state, logger, traces)`; an implementation names those that it wants. When a plain
implementation runs, the algorithms of the event have run and `traces` tells what they did (at INIT they run after it).
An implementation with `wrapper=True` surrounds algorithms, callbacks and logger destinations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

from .event import Event

if TYPE_CHECKING:
    from .logger import Logger
    from .state import State
    from .trace import Traces

__all__ = ["PROJECT", "hookimpl"]

PROJECT = "engine_core"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a method of a pluggy plugin as the implementation of the event that it is named after."""


@hookspec
def init(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire once, when the trainer is made: the model is still as the user gave it, on its own device.

    This is the moment for surgery on `state.model`. There is no optimizer yet, unless the user made one.
    """


@hookspec
def after_load(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire after a checkpoint was loaded, and only then: what it restored may be changed."""


@hookspec
def fit_start(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when `fit` begins: model on its device, optimizers made, loader known; weights may be changed."""


@hookspec
def epoch_start(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire before the first batch of an epoch; not when `fit` goes on in the middle of one, but after an exception.

    The loader is asked for an iterator only afterwards, so its sampler or dataset may be changed.
    """


@hookspec
def before_dataloader(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire before the loader is asked for a batch, also when it then turns out to be exhausted.

    `state.batch` is still the former batch; changing it has no effect.
    """


@hookspec
def after_dataloader(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when `state.batch` holds a new whole batch on the device: the moment to prune or augment it."""


@hookspec
def batch_start(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when the work on a batch begins; `state.batch` is the whole batch and may be changed."""


@hookspec
def before_train_batch(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire with gradients cleared, before the batch is split into microbatches; the last moment to change all of it."""


@hookspec
def before_forward(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire before the forward pass of each microbatch; `state.batch` is the microbatch until AFTER_BACKWARD.

    Changing it changes what the model and the loss get.
    """


@hookspec
def after_forward(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when `state.outputs` holds what the model returned; it may be replaced."""


@hookspec
def before_loss(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire before the loss is computed from `state.outputs` and `state.batch`, both may be changed."""


@hookspec
def after_loss(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when `state.loss` is what the loss function returned: a scalar, tuple or dict; replacing it counts."""


@hookspec
def before_backward(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when `state.loss` is one scalar, reduced and weighted by the microbatch's share; replacing it counts."""


@hookspec
def after_backward(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when the gradients of the microbatch have been added up, still scaled under `amp_fp16`.

    They may be changed, better so at AFTER_TRAIN_BATCH, where they are complete.
    """


@hookspec
def after_train_batch(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire after all microbatches, gradients unscaled and clipped, before the optimizer's step.

    `state.batch` is the whole batch again and `state.loss` its loss. The last moment to change the gradients, or to
    have the step left out with `state.skip_step()`.
    """


@hookspec
def batch_end(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire after the optimizer's step, when the clock has advanced and the schedulers of the batch have stepped.

    Weights may be changed, or an average of them taken.
    """


@hookspec
def batch_checkpoint(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire after BATCH_END and the evaluation that may follow it: the moment to save, not to change anything.

    It fires once more at the same position where the loader fails to give the next batch.
    """


@hookspec
def epoch_end(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when the loader is exhausted and the clock stands at the start of the next epoch.

    It does not fire where training stops in the middle of an epoch. Weights may be changed.
    """


@hookspec
def epoch_checkpoint(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire after EPOCH_END and the evaluation that may follow it: the moment to save, not to change anything."""


@hookspec
def fit_end(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when `fit` is about to return, not when an exception ends it; weights may be changed a last time."""


@hookspec
def eval_start(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire before the first batch of an evaluation loader, model in eval mode; `state.dataloader_label` names it.

    Weights that are swapped in here are swapped out at EVAL_END.
    """


@hookspec
def eval_batch_start(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when `state.batch` holds a new batch of the evaluation loader; it may be changed."""


@hookspec
def eval_before_forward(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire before the forward pass of an evaluation batch, the last moment to change it."""


@hookspec
def eval_after_forward(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when `state.outputs` holds the outputs of an evaluation batch; replacing them changes loss and metrics."""


@hookspec
def eval_batch_end(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when the metrics have seen the evaluation batch; `state.loss` is its loss. To look, not to change."""


@hookspec
def eval_end(event: Event, state: State, logger: Logger, traces: Traces) -> None:
    """Fire when `state.metrics` holds the results of the evaluation loader, before they are logged.

    They are logged and returned as they were computed; whatever EVAL_START swapped in is swapped out.
    """
