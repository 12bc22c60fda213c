"""Hugging Face's Trainer with an engine: its methods and callbacks are the moments of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from engine_core import Batches, LoggerDestination, ModelLoss, Objective
from engine_core import loop as seam
from engine_core.batch import move_batch
from engine_core.errors import ArgumentError, CheckpointWarning, EngineError, UnsupportedError
from engine_core.messages import warn
from engine_core.state import length_of
from engine_core.time import Time, Timestamp

from .logits import LogitsLoss, target_keys
from .offers import check_arguments, offers_of

# What is used of transformers and is not documented there; HELD is looked for in a trainer: its class has none of it.
_PRIVATE = ("_maybe_log_save_evaluate", "_save_optimizer_and_scheduler", "call_model_init", "get_batch_samples")
NAMES = ("transformers.trainer_callback:CallbackHandler", *(f"transformers:Trainer.{name}" for name in _PRIVATE))
HELD = ("accelerator", "callback_handler", "compute_loss_func", "label_names", "model_accepts_loss_kwargs")
_check_names: Any = partial(seam.check_names, "engine-core-transformers")
_AnyTrainer: Any = object  # mypy can't know which class stands behind the mixin


class EngineTrainerMixin(_AnyTrainer):  # type: ignore[misc]
    """Put before a Trainer class: `class MyTrainer(EngineTrainerMixin, transformers.Seq2SeqTrainer): ...`.

    Algorithms, callbacks, loggers and passes are those of engine-core's Trainer; `engine` runs them on `engine_state`.

    Args:
        loss_fn: the loss of logits and labels, asked with `reduction="none"` too; None: the model's, in its forward.
        label_key: where the labels are in a batch.
        objective, batches: what model and loss get of a batch, and what its rows are, as for our Trainer.
    """

    _loop: Any = None
    _step: Any = ()

    def __init__(  # noqa: PLR0913  each is one of our Trainer's
        self,
        *args: Any,
        algorithms: Any = (),
        engine_callbacks: Any = (),
        engine_loggers: Any = (),
        algorithm_passes: Any = None,
        loss_fn: Any = None,
        label_key: str = "labels",
        objective: Objective | None = None,
        batches: Batches | None = None,
        **kwargs: Any,
    ) -> None:
        _check_names("transformers", NAMES)
        super().__init__(*args, **kwargs)
        _check_names("transformers", [f"transformers:Trainer.{name}" for name in HELD if not hasattr(self, name)])
        self._moment, self._ended_epoch, self._is_scaled = "", False, False
        self._objective: Any = self._check(loss_fn, label_key, objective)  # None: the model computes the loss, unseen
        if self._objective is not None:
            self.label_names = [*dict.fromkeys([*(self.args.label_names or ()), *target_keys(self._objective)])]
            self.model_accepts_loss_kwargs = False  # the Trainer divides a mean by the batches
        own, listed = self.args, {"algorithms": algorithms, "callbacks": engine_callbacks, "loggers": engine_loggers}
        fields = {"device": own.device, "seed": own.seed, "rank": own.process_index, "world_size": own.world_size}
        fields["precision"] = "amp_bf16" if own.bf16 else "amp_fp16" if own.fp16 else "fp32"
        fields["max_duration"] = f"{own.max_steps}ba" if own.max_steps > 0 else f"{-(-own.num_train_epochs // 1):.0f}ep"
        fields |= {"objective": self._objective or ModelLoss(targets=label_key), "batches": batches}
        offers = offers_of(transformers.__version__, own, self._objective)
        self._loop = seam.make_loop(offers, algorithm_passes=algorithm_passes, **listed, **fields)
        self.engine, self.engine_state, self._logged = self._loop.engine, self._loop.state, _Logged()
        self.engine.logger.destinations.append(self._logged)
        self._sums = seam.Accumulated(self._loop, self.accelerator.reduce if own.world_size > 1 else None)
        self._init_model(self.model, self.optimizer)

    def _check(self, loss_fn: Any = None, label_key: str = "labels", objective: Any = None) -> Objective | None:
        check_arguments(self.args, self.accelerator.distributed_type.name)
        if (objective := LogitsLoss.unless_given(loss_fn, label_key, objective)) is None:
            return None
        name = "objective" if loss_fn is None else "loss_fn"
        if self.compute_loss_func is not None or self.args.label_smoothing_factor:
            raise ArgumentError(f"{name} is the loss: give no compute_loss_func and no label_smoothing_factor")
        if (behind := super().compute_loss.__func__) is not transformers.Trainer.compute_loss:
            raise ArgumentError(f"{name} is the loss, and {behind.__qualname__} is another: leave one of them out")
        return objective

    def _init_model(self, model: Any, optimizer: Any = None) -> Any:
        state, state.model = self.engine_state, model
        isinstance(self._objective, LogitsLoss) and self._objective.look_at(model)
        state.optimizers = [] if optimizer is None else [optimizer]
        self._loop.init()
        self.optimizer: Any = state.optimizers[0] if state.optimizers else None

    def hyperparameter_search(self, *_: Any, **__: Any) -> Any:
        """Refuse: the states of algorithms would outlive a trial."""
        raise UnsupportedError("EngineTrainer can't run hyperparameter_search: make a trainer for each trial")

    def call_model_init(self, trial: Any = None) -> Any:
        """INIT, on the model of each training; that of `__init__` comes later."""
        model = super().call_model_init(trial)
        self._loop is None or self._init_model(model)
        return model

    def compute_loss(self, model: Any, inputs: Any, return_outputs: Any = False, **kwargs: Any) -> Any:  # noqa: FBT002
        """Fire the events of forward and loss, or those that an evaluation has of them."""
        loop, moment, self._moment = self._loop, self._moment, ""  # the first call for a batch counts
        if (objective := self._objective) is None:
            asks = return_outputs or moment == "evaluation"
            found = super().compute_loss(model, inputs, return_outputs=asks, **kwargs)
            moment == "evaluation" and loop.eval_outputs(found[1])
            return found[0] if asks and not return_outputs else found
        own, trains, outputs = self.engine_state, moment == "training", objective.forward(model, inputs)
        if moment:
            outputs = (loop.end_forward if trains else loop.eval_outputs)(outputs)
        trains and loop.begin_loss()
        if trains:
            loss = self._sums.scalar(loop.end_loss(objective.given(own.model, outputs, own.batch))) * self._sums.batches
        else:
            loss = self._sums.evaluated(outputs, inputs)
        if not isinstance(outputs, Mapping):  # then the Trainer takes the first item for the loss
            outputs = (loss, *outputs) if isinstance(outputs, tuple) else (loss, outputs)
        return (loss, outputs) if return_outputs else loss

    def get_batch_samples(self, epoch_iterator: Any, *args: Any, **kwargs: Any) -> Any:
        """AFTER_DATALOADER, of each batch of a step, before its items are counted."""
        self.model.training or self.model.train()
        take, device, self._step = self._loop.take, self.args.device, ()
        batches = (take(batch if device.type == "cpu" else move_batch(batch, device)) for batch in epoch_iterator)
        return super().get_batch_samples(batches, *args, **kwargs)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """BATCH_START and BEFORE_TRAIN_BATCH, at the first batch of a step, then the events of each."""
        loop, own, own.batch, self._is_scaled = self._loop, self.engine_state, inputs, True
        if not self._step:
            loop.begin_step()
            batches = getattr(self, "current_gradient_accumulation_steps", self.args.gradient_accumulation_steps)
            self._sums.begin(batches)
        inputs, self._moment = own.batch, "training"
        self._step = model, inputs, num_items_in_batch
        try:
            batch = inputs if self._objective is None else loop.begin_forward(inputs)
            loss = super().training_step(model, batch, num_items_in_batch)
        except BaseException as error:
            loop.undo_microbatch(error)
            raise
        finally:
            own.batch, idle, self._moment = inputs, self._moment, ""
        if idle and self._objective is not None:
            name = f"{type(self).__name__}.compute_loss"
            raise EngineError(f"{name} hides the loss from algorithms: let it call super().compute_loss(...)")
        return self._sums.shown(loss, is_last=self.accelerator.sync_gradients)

    def _gradients_again(self) -> Any:
        self._step[0].zero_grad()
        self._sums.again()
        loss = EngineTrainerMixin.training_step(self, *self._step)
        if (self.args.max_grad_norm or 0) > 0:
            self.accelerator.clip_grad_norm_(self._step[0].parameters(), self.args.max_grad_norm)
        return loss

    def _backward(self, original: Callable[..., None], loss: Any, **kwargs: Any) -> None:
        self._sums.add(loss := self._loop.begin_backward(loss))
        if self.engine.backwards_create_graph:  # offered without a scaler only, so accelerate would do no more
            original, kwargs = seam.backward_with_first_graph, {"gradient": None}
        original(loss, **kwargs)
        self._loop.end_backward()

    def _clip_grad_norm_(self, original: Callable[..., Any], parameters: Any, max_norm: float, **kwargs: Any) -> Any:
        norm = original(parameters, max_norm, **kwargs)
        self.engine_state.gradient_norm = norm if max_norm < torch.inf else None  # then it is only measured
        return norm

    def _unscale_gradients(self, original: Any, *args: Any) -> None:
        is_scaled, self._is_scaled = self._is_scaled, False
        is_scaled and original(*args)  # once a step: clipping does it too

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train as the Trainer does, with the engine."""
        last: Any = transformers.trainer_utils.get_last_checkpoint
        folder = last(self.args.output_dir) if resume_from_checkpoint is True else resume_from_checkpoint
        self.engine_state.timestamp = Timestamp()
        folder and self._loop.load_state_dict(seam.read_state(Path(folder)))
        if self.args.load_best_model_at_end and self.engine_state.algorithms:
            warn("load_best_model_at_end loads weights alone, no averages", CheckpointWarning)
        loop, own, handler = self._loop, self.engine_state, self.callback_handler
        unscale: Any = partial(self._unscale_gradients, self.accelerator.unscale_gradients)
        moments: dict[str, Callable[..., object]] = {
            "on_train_begin": self._begin_fit,
            "on_epoch_begin": lambda *_: own.timestamp.batch_in_epoch or loop.epoch_start(),  # unless in mid-epoch
            "on_pre_optimizer_step": lambda *_: unscale() or loop.end_gradients() or loop.leave_out_step(),
            "on_step_end": lambda *_: (loop.end_step(), loop.batch_checkpoint()),
            "on_epoch_end": self._end_epoch,
            "on_train_end": lambda *_: (loop.fit_end(), self._logged.held and self.log({})),
        }
        with ExitStack() as patches:
            for name in ("backward", "clip_grad_norm_", "unscale_gradients"):
                patches.enter_context(seam.patched(self.accelerator, name, getattr(self, f"_{name}")))
            for name, moment in moments.items():  # before all callbacks
                before = partial(lambda own, then, *a: (own(*a), then(*a))[1], moment)
                patches.enter_context(seam.patched(handler, name, before))
            patches.push(lambda _kind, error, _trace: error and loop.undo(error))
            return super().train(resume_from_checkpoint, *args, **kwargs)

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        super()._maybe_log_save_evaluate(*args, **kwargs)
        self._ended_epoch = self._ended_epoch and self._loop.epoch_checkpoint()  # which returns None
        self.control.should_training_stop |= self.engine_state.loop.stop_requested

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            seam.write_state(Path(output_dir), self._loop.state_dict())

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> Any:
        """Log what was logged to the engine, the last value of each name, then `logs`."""
        held, self._logged.held = self._logged.held, {}
        held and super().log({name: v.item() if hasattr(v, "item") else v for name, v in held.items()})
        logs and super().log(logs, *args, **kwargs)

    def evaluation_loop(self, dataloader: Any, description: str, *args: Any, **kwargs: Any) -> Any:
        """EVAL_START and EVAL_END; `predict` has no metrics."""
        predicts = description == "Prediction"
        self.model.eval()
        try:
            self._loop.eval_start("predict" if predicts else kwargs.get("metric_key_prefix", "eval"), dataloader)
            found = super().evaluation_loop(dataloader, description, *args, **kwargs)
            self._loop.eval_end({} if predicts else found.metrics)
        except BaseException as error:
            self._loop.undo_evaluation(error)
            raise
        return found

    @torch.no_grad()
    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Fire the events of a batch of an evaluation."""
        batch, self._moment = self._loop.eval_batch(move_batch(inputs, self.args.device)), "evaluation"
        loss, logits, labels = super().prediction_step(model, batch, *args, **kwargs)
        if self._moment:  # `compute_loss` was not called: there are no labels, or the model generates
            self._moment, logits = "", self._loop.eval_outputs(logits)
        self._loop.eval_batch_end(loss)
        return loss, logits, labels

    def _begin_fit(self, args: Any, state: Any, control: Any) -> None:
        """FIT_START; and EPOCH_END, if the run was saved after the last batch of an epoch and before its end."""
        own, loader, epochs = self.engine_state, self.callback_handler.train_dataloader, args.num_train_epochs
        self._loop.offer(offers_of(transformers.__version__, args, self._objective))  # args may have changed
        if not hasattr(self.optimizer, "optimizer"):
            _check_names("accelerate", ["accelerate.optimizer:AcceleratedOptimizer.optimizer"])
        own.optimizers, own.schedulers = [self.optimizer.optimizer], [self.lr_scheduler]
        own.train_dataloader, own.dataloader, length = loader, loader, length_of(loader)
        own.dataloader_len = None if length is None else -(-length // args.gradient_accumulation_steps)  # rounded up
        own.max_duration = Time(f"{state.max_steps}ba" if args.max_steps > 0 or epochs % 1 else f"{epochs:.0f}ep")
        self._loop.fit_start(self._gradients_again if "closure" in own.loop.offers.gives else None)
        own.timestamp.batch_in_epoch == own.dataloader_len and (self._loop.epoch_end(), self._loop.epoch_checkpoint())

    def _end_epoch(self, args: Any, state: Any, control: Any) -> None:
        done, length = self.engine_state.timestamp.batch_in_epoch, self.engine_state.dataloader_len
        complete = not control.should_training_stop if length is None else done >= length
        self._ended_epoch = complete or control.should_epoch_stop  # which a callback sets
        self._ended_epoch and self._loop.epoch_end()


class EngineTrainer(EngineTrainerMixin, transformers.Trainer):  # type: ignore[misc]
    """`transformers.Trainer` with `algorithms=[...]`; see `EngineTrainerMixin`."""


class _Logged(LoggerDestination):
    """Holds what is logged until the Trainer logs."""

    held: Mapping[str, Any] = {}

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        self.held = {**self.held, **metrics}
