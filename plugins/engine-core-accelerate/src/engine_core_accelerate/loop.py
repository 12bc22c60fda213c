"""Algorithms in a loop with Accelerate: the loop stays the user's, and asks here for batches and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import accelerate  # type: ignore[import-not-found,import-untyped,unused-ignore]
import torch

from engine_core import Batches, Objective
from engine_core import loop as seam
from engine_core.arguments import check_number
from engine_core.errors import ArgumentTypeError, CheckpointError, EngineError, UnsupportedError
from engine_core.objective import check_objective
from engine_core.randomness import check_seed
from engine_core.state import length_of

from .offers import offers_of

NAMES = ("optimizer:AcceleratedOptimizer", "scheduler:AcceleratedScheduler", "state:GradientState.sync_with_dataloader")
"""What is used of Accelerate besides what its guide shows; none of it is private by its name."""
_NONE = object()  # no batch


class EngineLoop:
    """An engine in a loop with Accelerate, with its `state`, and its moments as `loop`; refuses what can't work there.

    Args:
        accelerator: the user's; from now on its checkpoints hold the states of algorithms and callbacks.
        loss_fn, objective, batches: as the Trainer takes them; with none of them the loss is `model.loss`.
        max_duration: how long the loop will train, such as `"10ep"`. It tells algorithms, and ends nothing.
        max_grad_norm: `gradients` clips to it, before AFTER_TRAIN_BATCH.
        seed: of the algorithms' random draws; it seeds nothing else.
    """

    def __init__(  # noqa: PLR0913  each is one of the Trainer's
        self,
        accelerator: accelerate.Accelerator,
        *,
        algorithms: Any = (),
        callbacks: Any = (),
        loggers: Any = (),
        algorithm_passes: Any = None,
        loss_fn: Callable[[Any, Any], Any] | None = None,
        objective: Objective | None = None,
        batches: Batches | None = None,
        max_duration: Any = None,
        max_grad_norm: float | None = None,
        seed: int | None = None,
    ) -> None:
        seam.check_names("engine-core-accelerate", "accelerate", [f"accelerate.{name}" for name in NAMES])
        _check_accelerator(accelerator)
        if max_grad_norm is not None:
            check_number("max_grad_norm", max_grad_norm, "(0, inf)", "the norm that gradients are clipped to")
        self.accelerator, self.max_grad_norm = accelerator, max_grad_norm
        given: dict[str, Any] = {"algorithms": algorithms, "callbacks": callbacks, "loggers": loggers}
        given |= {"loss_fn": loss_fn, "objective": objective, "batches": batches, "max_duration": max_duration}
        given |= {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
        given["precision"] = {"bf16": "amp_bf16", "fp16": "amp_fp16"}.get(str(accelerator.mixed_precision), "fp32")
        given["seed"] = accelerate.utils.broadcast_object_list([check_seed(seed)])[0]
        offers = offers_of(accelerator, accelerate.__version__, max_duration)
        self.loop = seam.make_loop(offers, device=accelerator.device, algorithm_passes=algorithm_passes, **given)
        self.engine, self.state, self.close = self.loop.engine, self.loop.state, self.loop.close
        self._step = seam.Accumulated(self.loop, accelerator.reduce if accelerator.num_processes > 1 else None)
        self._autocast: Any = nullcontext if accelerator.mixed_precision == "no" else accelerator.autocast
        self._loops: list[EngineLoop] = vars(accelerator).setdefault("engine_loops", [])
        self._mark_name = f"engine-core{len(self._loops) or ''}.json"  # holds what is checked before anything is loaded
        self._loops.append(self)
        accelerator.register_for_checkpointing(self)
        accelerator.register_save_state_pre_hook(self._mark)
        accelerator.register_load_state_pre_hook(self._check_mark)

    def init(self, model: torch.nn.Module) -> torch.nn.Module:
        """Let algorithms change the model, before its optimizer is made and `prepare` wraps it; return the model."""
        if self.state.model is not None:
            raise EngineError("init() was called before: make another EngineLoop for another model")
        before, self.state.model = {*model.parameters()}, model
        check_objective(self.state.objective, model, "EngineLoop")
        self.loop.init()
        self._added = {*self.state.model.parameters()} - before
        return self.state.model

    @contextmanager
    def fit(self, model: Any, optimizer: Any, loader: Any = None, scheduler: Any = None) -> Iterator[None]:
        """Train inside of this with what `prepare` returned; several optimizers are a list, and so are schedulers."""
        loop, state, accelerator = self.loop, self.state, self.accelerator
        loop.status.check_can("fit")
        if any(other.loop.status.phase is not seam.Phase.IDLE for other in self._loops):
            raise EngineError("another EngineLoop of this accelerator is in a fit: end it, or make another accelerator")
        if not isinstance(model, torch.nn.Module):
            raise ArgumentTypeError(f"fit(model, optimizer) takes a model first, not {type(model).__name__}")
        if isinstance(model, torch.nn.DataParallel):
            raise UnsupportedError("EngineLoop can't work with DataParallel: start one process for each device")
        if state.model is None or accelerator.unwrap_model(model, keep_torch_compile=False) is not state.model:
            raise EngineError("fit() takes the model that init(model) returned, as prepare() wraps it")
        if accelerator.gradient_accumulation_steps > 1 and not accelerator.gradient_state.sync_with_dataloader:
            raise UnsupportedError("EngineLoop can't work with sync_with_dataloader=False: leave it out")
        state.optimizers = _unwrapped(optimizer, accelerate.optimizer.AcceleratedOptimizer, "optimizer")
        state.schedulers = _unwrapped(scheduler, accelerate.scheduler.AcceleratedScheduler, "scheduler")
        if not self._added <= {*self._parameters()}:
            raise EngineError("algorithms added parameters that no optimizer has: make the optimizer after init(model)")
        loop.offer(offers_of(accelerator, accelerate.__version__, state.max_duration))  # accumulation may be set since
        self._wrapped, self._count = model, accelerator.gradient_accumulation_steps
        self._begins, self._is_stepped, self._saves = True, False, False
        self._given: Any = _NONE  # the batch that waits for its gradients
        self._show(loader)
        with loop.fitting(self._again if "closure" in state.loop.offers.gives else None):
            self._epoch = state.timestamp.epoch if state.timestamp.batch_in_epoch else None
            yield
            self._settle("the end of fit()")

    def batches(self, loader: Any) -> Iterator[Any]:
        """Yield the batches of an epoch, or the rest of one, as algorithms leave them; end early on a stop."""
        loop, state = self.loop, self.state
        self._settle("batches()")
        if self._agree("stop_requested"):
            return
        if not state.timestamp.batch_in_epoch:
            self._show(loader)
        elif state.train_dataloader is None:
            raise EngineError("batches() continues an epoch: give the whole of it to fit(model, optimizer, loader)")
        if self._epoch != state.timestamp.epoch or loop.status.reopens_epoch:
            loop.epoch_start()
            self._epoch = state.timestamp.epoch
        for loaded in loader:
            if loaded is None and state.timestamp.batch_in_epoch >= (state.dataloader_len or 0):
                break  # no batch is left; Accelerate below 1.9 yields None, and fails if it is asked for more
            if self._begins and state.dataloader_len and state.timestamp.batch_in_epoch >= state.dataloader_len:
                rest = "what is left of one, even nothing, is accelerator.skip_first_batches(train, done)"
                raise EngineError(f"batches(): the epoch has had its {state.dataloader_len} steps; {rest}")
            batch = loop.take(loaded)
            if self._begins:
                self.accelerator.step = 0  # that of a step that was cut short, or loaded
                loop.begin_step(loop.clear_gradients)
                batch, self._begins = state.batch, False
                self._step.begin(self._count)
            self._given, self._accumulated = batch, self.accelerator.step
            yield batch
            self._settle("batches()")
            is_last = state.timestamp.batch_in_epoch == state.dataloader_len
            if self._begins and self._agree("stop_requested") and not is_last:
                return
        loop.epoch_end()
        loop.epoch_checkpoint()
        self._agree("stop_requested")

    def gradients(self, batch: Any) -> torch.Tensor:
        """Run forward, loss and backward of the batch that `batches` gave, and clip; return its loss."""
        accelerator = self.accelerator
        self._check("gradients(batch)", batch)
        if accelerator.step != self._accumulated:
            raise EngineError("gradients(batch) accumulates by itself: take accelerator.accumulate() away")
        self._given, self._begins = _NONE, True
        try:
            with accelerator.accumulate(self._wrapped):
                loss = self._microbatch(batch)
            if accelerator.sync_gradients:
                self._clip()
                self.loop.end_gradients()
                if self._agree("skip_requested"):
                    self.loop.leave_out_step()
        except BaseException as error:
            self.loop.undo_step(error)
            raise
        self._begins = self._is_stepped = accelerator.sync_gradients
        return loss

    def _microbatch(self, batch: Any) -> torch.Tensor:
        """Run a batch of the loader; return its mean loss."""
        loop, state, accelerator, step = self.loop, self.state, self.accelerator, self._step
        try:
            loop.begin_forward(batch)
            loop.end_forward(state.objective.forward(self._wrapped, state.batch))
            loop.begin_loss()
            with self._autocast():
                given = state.objective.given(state.model, state.outputs, state.batch)
            taken = loop.begin_backward(step.scalar(loop.end_loss(given)))
            if self.engine.may_create_graph and self.engine.backwards_create_graph:
                seam.backward_with_first_graph(accelerator.scaler.scale(taken) if accelerator.scaler else taken, None)
            else:
                accelerator.backward(taken if self._count == 1 else taken * self._count)  # which divides by the count
            loop.end_backward()
            return step.add(taken)
        except BaseException as error:
            loop.undo_microbatch(error)
            raise
        finally:
            state.batch = batch

    def _again(self) -> torch.Tensor:
        self.loop.clear_gradients()
        self._step.again()
        self._microbatch(self.state.batch)
        self._clip()
        return self.state.loss.detach()  # type: ignore[no-any-return]

    def _clip(self) -> None:
        self._step.end()
        if self.max_grad_norm is not None:
            self.state.gradient_norm = self.accelerator.clip_grad_norm_(self._parameters(), self.max_grad_norm)
        elif self.accelerator.scaler is not None:
            self.accelerator.unscale_gradients()

    def _parameters(self) -> list[torch.nn.Parameter]:
        groups = [group for optimizer in self.state.optimizers for group in optimizer.param_groups]
        return [*dict.fromkeys(p for group in groups for p in group["params"])]

    @contextmanager
    def evaluation(self, label: str, loader: Any = None) -> Iterator[dict[str, float]]:
        """Evaluate inside of this, in eval mode and without gradients; put results into the dict that it gives."""
        self._settle("evaluation()", saves=False)
        with self.loop.evaluating(self._wrapped, label, loader) as results:
            yield results

    def state_dict(self) -> dict[str, Any]:
        """Return what Accelerate's checkpoints hold of the engine; a step that was made counts as done."""
        if self.loop.status.phase in (seam.Phase.TRAINING, seam.Phase.EVALUATING) and self._given is _NONE:
            self._settle("save_state()")
        return self.loop.state_dict()

    def load_state_dict(self, saved: Any) -> None:
        """Take back what `state_dict` returned; before a fit, that begins with it."""
        if not isinstance(saved, dict) or "format" not in saved:
            raise CheckpointError("another object's state is in engine-core's place: register as the saved run did")
        self.loop.load_state_dict(saved)

    def _mark(self, _: Any, __: Any, folder: str) -> None:
        seam.write_part(Path(folder, self._mark_name), self.state_dict())

    def _check_mark(self, _: Any, folder: str) -> None:
        if self.loop.status.phase is not seam.Phase.IDLE:
            raise EngineError("load_state() can't be called here: a fit is running; load before `with loop.fit(...):`")
        if not (mark := Path(folder, self._mark_name)).is_file():
            raise CheckpointError(f"{folder} has no part of engine-core: load it before EngineLoop is made")
        seam.check_saved(self.engine, seam.read_part(mark))

    def _show(self, loader: Any) -> None:
        state, length = self.state, length_of(loader)
        state.train_dataloader = state.dataloader = loader
        state.dataloader_label, state.dataloader_len = "train", length and -(-length // self._count)

    def _agree(self, request: str) -> bool:
        """Let a field of `state.loop` ask if it does so on any process, since all have to do the same; return it."""
        if self.accelerator.num_processes > 1:
            asks = torch.tensor(float(getattr(self.state.loop, request)), device=self.accelerator.device)
            setattr(self.state.loop, request, bool(self.accelerator.reduce(asks).item()))
        return getattr(self.state.loop, request)  # type: ignore[no-any-return]

    def _settle(self, called: str, *, saves: bool = True) -> None:
        """Fire what is to come of the latest step, before something is `called`."""
        self._check(called)
        if self._is_stepped:
            self._is_stepped, self._saves = False, True
            self.loop.end_step()
        if self._saves and saves:
            self._saves = False
            self.loop.batch_checkpoint()

    def _check(self, called: str, waiting: Any = _NONE) -> None:
        """Raise unless it is the turn of what is `called`: while this batch, or none, is waiting for its gradients."""
        if (phase := self.loop.status.phase) is seam.Phase.EVALUATING:
            why = "an evaluation is running: it is for after that"
        elif phase is not seam.Phase.TRAINING:
            why = "no fit is running: it is for within `with loop.fit(model, optimizer):`"
        elif self._given is waiting:
            return
        elif self._given is _NONE:
            why = "no batch waits for it: it is for each batch that batches() gives, once"
        else:
            why = "the latest batch of batches() waits for gradients(batch), with the very batch; break after the step"
        raise EngineError(f"{called} can't be called here: {why}")


def _unwrapped(given: Any, wrapper: type, name: str) -> list[Any]:
    items = given if isinstance(given, (list, tuple)) else [] if given is None else [given]
    found = [getattr(item, name) if isinstance(item, wrapper) else item for item in items]
    fit = [isinstance(i, torch.optim.Optimizer) if name == "optimizer" else hasattr(i, "step") for i in found]
    if not all(fit) or (not found and name == "optimizer"):
        raise ArgumentTypeError(f"fit() takes a torch {name}, or a list of them, not {given!r:.80}")
    return found


def _check_accelerator(accelerator: accelerate.Accelerator) -> None:
    if not isinstance(accelerator, accelerate.Accelerator):
        raise ArgumentTypeError(f"EngineLoop(accelerator) takes an Accelerator, not {type(accelerator).__name__}")
    kind, config = accelerator.distributed_type.value, getattr(accelerator, "parallelism_config", None)
    split = [name for name in ("dp_shard", "tp", "cp", "sp") if getattr(config, f"{name}_size", 1) > 1]
    if split or not (kind == "NO" or kind.startswith("MULTI_")):
        raise UnsupportedError(f"EngineLoop can't work with {', '.join(split) or kind}: use one process, or DDP")
