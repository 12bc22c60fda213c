"""The callback: which of Lightning's moments are which of the seam's, and what runs around the module's methods."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch

from engine_core import Batches, LoggerDestination, Objective
from engine_core.callback import is_used_on
from engine_core.errors import ArgumentError, EngineError, UnsupportedError
from engine_core.loop import Phase, check_names, make_loop, patched
from engine_core.needs import EVERYTHING
from engine_core.time import Time

from .offers import LIGHTNING_OFFERS, OF_DDP, SPLIT_OFFERS, offers_of
from .written import WrittenStep

if TYPE_CHECKING:
    from lightning.pytorch import Callback as _Base
else:
    _Base = object  # a program may import Lightning by two names: its Callback joins when an instance is made

LIBRARIES = {"lightning.pytorch": "lightning", "pytorch_lightning": "pytorch-lightning"}
COVERED = ("training_step", "validation_step", "backward", "configure_gradient_clipping", "lr_scheduler_step")
NAMES = (
    *(f":LightningModule.{name}" for name in (*COVERED, "optimizer_zero_grad")),
    *(":Trainer.is_last_batch", ":Trainer.scaler", ".loops.fit_loop:_FitLoop.batch_idx"),
    *(".strategies:Strategy.backward", ".strategies:Strategy.training_step"),
)
"""What is used of Lightning and is not public, or not in its guide; besides, `OF_DDP`."""


class EngineCallback(_Base):
    """Runs algorithms of engine-core in `lightning.Trainer(callbacks=[EngineCallback(["ema"])])`.

    Args:
        algorithms, callbacks, loggers, algorithm_passes: as of the Trainer, instances or names among others.
        model: the attribute that `training_step` calls, with dots for one further down; None: the LightningModule.
        loss_fn: the one that it calls as `self.<loss_fn>(outputs, targets)`; None: the step is a black box.
        objective, batches: what algorithms that call model and loss give them, and what rows are; see `Trainer`.
        seed: what the draws of algorithms derive from.
    """

    def __new__(cls, *_: Any, **__: Any) -> Any:
        """Make an instance that is a Callback of each Lightning that the program has imported."""
        libraries = [sys.modules[n] for n in LIBRARIES if n in sys.modules] or [__import__("lightning.pytorch").pytorch]
        own = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        return object.__new__(type(cls.__name__, (cls, *(library.Callback for library in libraries)), own))

    def __init__(  # noqa: PLR0913  what engines take, and two names
        self,
        algorithms: Any = (),
        *,
        callbacks: Any = (),
        loggers: Any = (),
        algorithm_passes: Any = None,
        model: str | None = None,
        loss_fn: str | None = None,
        objective: Objective | None = None,
        batches: Batches | None = None,
        seed: int | None = None,
    ) -> None:
        given: dict[str, Any] = {"algorithms": algorithms, "callbacks": callbacks, "loggers": loggers, "seed": seed}
        rest = {"algorithm_passes": algorithm_passes, "objective": objective, "batches": batches}
        self.loop = make_loop(EVERYTHING, **given, **rest)  # what a run does not offer is refused when it is known
        self.engine, self.state = self.loop.engine, self.loop.state
        self._names = {"model": model, "loss_fn": loss_fn}
        self._module: Any = None
        self._patches, self._loaded = ExitStack(), False  # a checkpoint whose states are not handed out yet

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Say what this run offers, which refuses who needs more; INIT follows when the module has its layers."""
        if stage != "fit":
            return
        libraries = map(sys.modules.get, LIBRARIES)
        library: Any = next(m for m in libraries if isinstance(trainer, getattr(m, "Trainer", ())))
        self._check(trainer, pl_module, library)
        state, heard, rank = self.state, self.engine.logger.destinations, trainer.global_rank
        state.rank, state.world_size, state.seed = rank, trainer.world_size, trainer.strategy.broadcast(state.seed)
        state.precision = {"bf16-mixed": "amp_bf16", "16-mixed": "amp_fp16"}.get(str(trainer.precision), "fp32")
        state.max_duration = _horizon(trainer)
        state.callbacks[:] = [callback for callback in state.callbacks if is_used_on(rank, callback)]
        heard[:] = [d for d in heard if is_used_on(rank, d) and not isinstance(d, _Sink)]
        heard += [_Sink(trainer)] if trainer.loggers else []
        offers = SPLIT_OFFERS if self._names["loss_fn"] else LIGHTNING_OFFERS
        self.loop.offer(offers_of(offers, trainer, library, ends=state.max_duration is not None))
        if self._module is None:
            own = getattr(pl_module.configure_model, "__func__", None)
            name = "setup" if own is library.LightningModule.configure_model else "configure_model"
            self._patches.enter_context(patched(pl_module, name, partial(self._then_init, pl_module)))

    def _check(self, trainer: Any, module: Any, library: Any) -> None:
        name, strategy, known = library.__name__, trainer.strategy, library.strategies
        is_ddp = isinstance(strategy, known.DDPStrategy) and not isinstance(strategy, known.DeepSpeedStrategy)
        gone = [f".strategies:DDPStrategy.{OF_DDP}"] if is_ddp and not hasattr(strategy, OF_DDP) else []
        check_names("engine-core-lightning", LIBRARIES[name], [name + path for path in (*NAMES, *gone)])
        takes = {*signature(module.training_step).parameters, *signature(module.validation_step).parameters}
        alone = isinstance(strategy, known.SingleDeviceStrategy)
        callbacks = [callback for callback in trainer.callbacks if isinstance(callback, EngineCallback)]
        for is_wrong, kind, what in (
            (not is_ddp and not alone, UnsupportedError, f"{type(strategy).__name__}: use strategy='ddp'"),
            (not module.automatic_optimization, UnsupportedError, "manual optimization: let Lightning step"),
            ("dataloader_iter" in takes, UnsupportedError, "a step of dataloader_iter: let it take a batch"),
            (len(callbacks) > 1, ArgumentError, "two of it in a Trainer: give all algorithms to one"),
            (self._module not in (None, module), ArgumentError, "another LightningModule: make one for each"),
        ):
            if is_wrong:
                raise kind(f"EngineCallback, for {type(module).__name__}, can't work with {what}")

    def _then_init(self, module: Any, original: Any, *args: Any, **kwargs: Any) -> None:
        """INIT: the model is there, and no optimizer, no DDP and no loaded weights are."""
        original(*args, **kwargs)
        state, self._written = self.state, WrittenStep(self.loop, module, **self._names)
        given = state.model
        self.loop.init()
        if self._names["model"]:
            self._written.put_model()
        elif state.model is not given:
            raise EngineError("an algorithm replaced the LightningModule: name a part of it, EngineCallback(model=...)")
        self._module = module

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """FIT_START: weights and states of optimizers are loaded, and the sanity check is over."""
        state, self._trainer, own = self.state, trainer, trainer.optimizers[0]
        state.optimizers, state.device = list(trainer.optimizers), pl_module.device
        state.schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        state.train_dataloader = state.dataloader = trainer.train_dataloader
        state.dataloader_len, state.dataloader_label = _steps_of(trainer, trainer.current_epoch), "train"
        state.max_duration = _horizon(trainer)
        for name in COVERED:
            self._patches.enter_context(patched(pl_module, name, getattr(self, f"_{name}")))
        self._written.watch(self._patches)
        self._zero: Any = lambda: pl_module.optimizer_zero_grad(trainer.current_epoch, trainer.fit_loop.batch_idx, own)
        mixed = partial(torch.autocast, pl_module.device.type, enabled=False)
        self._outside = nullcontext if state.precision == "fp32" else mixed
        self._fresh, self._begins, self._steps, self._loaded = True, True, trainer.global_step, False
        self.loop.fit_start(self._again if "closure" in state.loop.offers.gives else None)

    def _training_step(self, original: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        loop, state = self.loop, self.state
        if self._fresh:  # a closure runs it again
            self._fresh = False
            with self._outside():
                loop.take(batch)
                if self._begins:
                    self._begins = False
                    unheard = self.engine.unheard  # Lightning clears after the forward pass
                    loop.begin_step(None if {"before_train_batch", "before_forward"} <= unheard else self._zero)
            self._given = state.batch, args, kwargs
        return self._written.train(original, self._given[0], *args, **kwargs)

    def _backward(self, original: Any, loss: Any, *args: Any, **kwargs: Any) -> None:
        scaler, engine = self._trainer.scaler, self.engine
        scale = 1 if scaler is None else scaler.scale(loss.new_ones(()))  # algorithms see the loss as it was
        loss = self.loop.begin_backward(loss if scaler is None else loss / scale)
        if engine.may_create_graph and engine.backwards_create_graph:
            kwargs["create_graph"] = True
        original(loss if scaler is None else loss * scale, *args, **kwargs)
        self.loop.end_backward()

    def _configure_gradient_clipping(self, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        self._clip_again, self.state.batch = partial(original, optimizer, *args, **kwargs), self._given[0]
        if not self.loop.end_gradients():
            self.loop.leave_out_step()

    def _again(self) -> Any:
        """Compute the gradients of the batch again; what training_step logs was logged the first time."""
        strategy, (batch, args, kwargs) = self._trainer.strategy, self._given
        self._zero()
        silenced = partial(patched, self._module, wrapper=lambda *_, **__: None)
        with silenced("log"), silenced("log_dict"):
            output = strategy.training_step(batch, *args, **kwargs)
        strategy.backward(output["loss"] if isinstance(output, Mapping) else output, self._trainer.optimizers[0])
        self._clip_again()
        self.state.batch = batch
        return self.state.loss

    def _lr_scheduler_step(self, original: Any, *args: Any, **kwargs: Any) -> None:
        self.state.loop.schedulers_paused or original(*args, **kwargs)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """BATCH_END and BATCH_CHECKPOINT, where the optimizer has stepped; after the last batch, EPOCH_END."""
        self._fresh = True
        if trainer.global_step != self._steps:  # else it accumulates
            self._steps, self._begins = trainer.global_step, True
            self.loop.end_step()
            self.loop.batch_checkpoint()
            if trainer.is_last_batch:  # before the validation
                self.loop.epoch_end()
            self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        self._trainer.should_stop |= self.state.loop.stop_requested

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """EPOCH_START; Lightning does not come here when it resumes in mid-epoch."""
        self.state.dataloader_len = _steps_of(trainer, trainer.current_epoch)
        self.loop.epoch_start()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """EPOCH_CHECKPOINT, unless training ended in mid-epoch."""
        if trainer.is_last_batch or not (trainer.should_stop or trainer.global_step == trainer.max_steps):
            self.loop.epoch_end()
            self.loop.epoch_checkpoint()
            self._stop_if_asked()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """EVAL_START, within a fit and after its sanity check."""
        if self.loop.status.phase is Phase.TRAINING:
            loaders = trainer.val_dataloaders
            self.loop.eval_start("val", None if isinstance(loaders, (list, tuple, Mapping)) else loaders)

    def _validation_step(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        return self._written.evaluate(original, *args, **kwargs)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """EVAL_END, with the results that Lightning has for its callbacks, under its names."""
        if self.loop.status.phase is Phase.TRAINING:
            results = trainer.callback_metrics.items()
            self.loop.eval_end({name: float(result) for name, result in results if result.numel() == 1})
            self._stop_if_asked()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """FIT_END."""
        self.loop.fit_end()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Hand out the states of a run that was at its end when it was loaded: Lightning did not start to train."""
        if self._loaded:
            self.on_train_start(trainer, pl_module)
            self.loop.fit_end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Let algorithms put back what they changed for a while, then leave the module as it was."""
        self.engine.name_who_ran(exception)
        self.loop.undo(exception)
        self.teardown(trainer, pl_module, "fit")

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave the module as it was."""
        self._patches.close()

    # Not state_dict: for that, Lightning refuses a second callback before this one can say why.
    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Add our part, under the key of this callback."""
        checkpoint["callbacks"][self.state_key] = self.loop.state_dict()

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Take our part; its states are handed out at FIT_START."""
        if trainer.state.fn == "fit":
            self.loop.load_state_dict(checkpoint["callbacks"].get(self.state_key, {}))
            self._loaded = True


class _Sink(LoggerDestination):
    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        for logger in self._trainer.loggers:
            logger.log_metrics(dict(metrics), step)


def _steps_of(trainer: Any, epoch: int) -> int | None:
    """Return how many steps an epoch has, even before its scheduler tells the Trainer; None: the loader can't say."""
    schedulers = [callback for callback in trainer.callbacks if hasattr(callback, "get_accumulate_grad_batches")]
    parts = schedulers[-1].get_accumulate_grad_batches(epoch) if schedulers else trainer.accumulate_grad_batches
    return None if math.isinf(trainer.num_training_batches) else math.ceil(trainer.num_training_batches / parts)


def _horizon(trainer: Any) -> Time | None:
    """Return the end of training that comes first, as far as the length of an epoch is known; -1 is none."""
    epochs, steps = (None if end in (None, -1) else end for end in (trainer.max_epochs, trainer.max_steps))
    if epochs is None or steps is None:
        return Time(f"{epochs}ep") if epochs is not None else None if steps is None else Time(f"{steps}ba")
    length = sum(_steps_of(trainer, epoch) or math.inf for epoch in range(min(epochs, steps)))
    return Time(f"{epochs}ep" if length < steps else f"{steps}ba")
